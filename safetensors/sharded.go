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

// OpenSharded opens the files of a sharded model and returns them in the order
// of their names. indexPath is its model.safetensors.index.json, whose
// weight_map maps each tensor to its file. Index and files must agree: a tensor
// that is missing, unlisted or in the wrong file is an error. The caller must
// close every File.
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

// openSharded is OpenSharded; on error it also returns the files that it opened.
func openSharded(indexPath string) (files []*File, err error) {
	weightMap, err := readIndex(indexPath)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", indexPath, err)
	}
	listed := map[string]int{} // number of tensors by file
	for _, name := range weightMap {
		listed[name]++
	}
	for _, name := range slices.Sorted(maps.Keys(listed)) {
		// A path in the index, including Windows paths, could escape its
		// directory.
		if !filepath.IsLocal(name) || name == "." || strings.ContainsAny(name, `/\:`) {
			return files, fmt.Errorf("%s: %s is not a plain file name", indexPath, quote(name))
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
			return files, fmt.Errorf("%s: %s lacks %d of the %d tensors that the index lists for it", indexPath, name, missing, listed[name])
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
		return nil, fmt.Errorf("not the index of a model: longer than %d bytes", maxHeader)
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
		return nil, errors.New("not the index of a model: weight_map lists no tensors")
	}
	return index.WeightMap, nil
}
