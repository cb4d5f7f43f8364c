package safetensors

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// OpenSharded opens the files of a model that was split, given its index
// (model.safetensors.index.json: a weight_map from each tensor to the file
// that holds it). It returns the files in the order of their names. Index and
// files must agree: a tensor that is missing, unlisted or in another file than
// listed is an error. The caller closes every File.
func OpenSharded(indexPath string) ([]*File, error) {
	files, err := openSharded(indexPath)
	if err != nil {
		for _, f := range files {
			err = errors.Join(err, f.Close())
		}
		return nil, err
	}
	return files, nil
}

// openSharded also returns what it had opened when it failed.
func openSharded(indexPath string) (files []*File, err error) {
	weightMap, err := readIndex(indexPath)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", indexPath, err)
	}
	listed := map[string]int{} // tensors by file
	for _, name := range weightMap {
		listed[name]++
	}
	for _, name := range slices.Sorted(maps.Keys(listed)) {
		// A plain name, also by the rules of Windows: the index may not reach
		// out of its folder.
		if !filepath.IsLocal(name) || name == "." || strings.ContainsAny(name, `/\:`) {
			return files, fmt.Errorf("%s: %s is not the plain name of a file", indexPath, quote(name))
		}
		f, err := Open(filepath.Join(filepath.Dir(indexPath), name))
		if err != nil {
			return files, fmt.Errorf("%s: %w", indexPath, err)
		}
		files = append(files, f)
		for _, t := range f.Tensors() {
			in, indexed := weightMap[t.Name]
			if !indexed {
				return files, fmt.Errorf("%s: tensor %s is in %s, but is not in the index", indexPath, quote(t.Name), name)
			}
			if in != name {
				return files, fmt.Errorf("%s: tensor %s is in %s, but the index says %s", indexPath, quote(t.Name), name, quote(in))
			}
		}
		if missing := listed[name] - len(f.Tensors()); missing != 0 {
			return files, fmt.Errorf("%s: %s lacks %d of the %d tensors that the index lists", indexPath, name, missing, listed[name])
		}
	}
	return files, nil
}

func readIndex(path string) (map[string]string, error) {
	f, size, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size > maxHeader {
		return nil, fmt.Errorf("longer than %d bytes: this is not the index of a model", maxHeader)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxHeader))
	if err != nil {
		return nil, err
	}
	var index struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(text, &index); err != nil {
		return nil, fmt.Errorf("JSON: %w", err)
	}
	if len(index.WeightMap) == 0 {
		return nil, errors.New("it lists no tensors in a weight_map")
	}
	return index.WeightMap, nil
}
