package checkpoint

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// The files of a checkpoint.
const (
	ModelFile     = "model.safetensors"
	ConfigFile    = "config.json"
	OptimizerFile = "optimizer.safetensors"
	StateFile     = "state.json"
	ManifestFile  = "MANIFEST.json"
)

// contentFiles are the only files that a manifest lists, in its order. A manifest
// therefore cannot refer to files outside its folder.
var contentFiles = []string{ModelFile, ConfigFile, OptimizerFile, StateFile}

const (
	manifestFormat  = "octet-checkpoint"
	manifestVersion = 1

	// maxJSON bounds the JSON files, which are read into memory. The largest known
	// ones, config.json files with a classifier's labels, have a tenth of that size.
	maxJSON = 1 << 20
)

// manifest is MANIFEST.json. It contains neither step nor time, so that Verify can
// check every byte of it against the other files or a constant.
type manifest struct {
	Format  string      `json:"format"`
	Version int         `json:"version"`
	Files   []fileEntry `json:"files"`
}

type fileEntry struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

func encodeJSON(v any) ([]byte, error) {
	text, err := json.MarshalIndent(v, "", "  ")
	return append(text, '\n'), err
}

func parseManifest(text []byte) (manifest, error) {
	var m manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return manifest{}, fmt.Errorf("not valid JSON: %w", err)
	}
	if m.Format != manifestFormat {
		return manifest{}, fmt.Errorf("format = %.40q: expected %q", m.Format, manifestFormat)
	}
	if m.Version != manifestVersion {
		return manifest{}, fmt.Errorf("version = %d: this octet reads version %d", m.Version, manifestVersion)
	}
	if len(m.Files) != len(contentFiles) {
		return manifest{}, fmt.Errorf("it lists %d files: expected %q", len(m.Files), contentFiles)
	}
	for i, f := range m.Files {
		if f.Name != contentFiles[i] {
			return manifest{}, fmt.Errorf("it lists %.40q: expected %q", f.Name, contentFiles[i])
		}
	}
	// A manifest has exactly one encoding. This rejects what json.Unmarshal
	// ignores: other keys, other case, white space.
	if again, err := encodeJSON(m); err != nil || !bytes.Equal(again, text) {
		return manifest{}, errors.New("its bytes have changed since it was written")
	}
	return m, nil
}

func readManifest(path string) (manifest, error) {
	name := filepath.Join(path, ManifestFile)
	_, err := lstatRegular(name)
	if errors.Is(err, fs.ErrNotExist) {
		return manifest{}, fmt.Errorf("%s: no %s: the checkpoint was not finished, or this is not a checkpoint (an export has no manifest)", path, ManifestFile)
	}
	if err != nil {
		return manifest{}, err
	}
	text, err := readSmall(name)
	if err != nil {
		return manifest{}, err
	}
	m, err := parseManifest(text)
	if err != nil {
		return manifest{}, fmt.Errorf("%s: %w", name, err)
	}
	return m, nil
}

// lstatRegular returns the FileInfo of a regular file, an error for anything else.
// It rejects symlinks: the owner of the target can change or delete it, which no
// checksum shows until the checkpoint is needed.
func lstatRegular(name string) (fs.FileInfo, error) {
	info, err := os.Lstat(name)
	switch {
	case err != nil:
		return nil, err
	case info.Mode()&fs.ModeSymlink != 0:
		return nil, fmt.Errorf("%s: a symbolic link: a checkpoint must contain its files; replace the link by a copy", name)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: not a regular file", name)
	}
	return info, nil
}

// checkSizes compares the files' sizes with the manifest's. It detects missing and
// truncated files without reading them.
func (m manifest) checkSizes(path string) error {
	for _, f := range m.Files {
		name := filepath.Join(path, f.Name)
		info, err := lstatRegular(name)
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s: missing", name)
		}
		if err != nil {
			return err
		}
		if info.Size() != f.Size {
			return fmt.Errorf("%s: %d bytes, the manifest says %d", name, info.Size(), f.Size)
		}
	}
	return nil
}

// checkSums compares the files' checksums with the manifest's. If names are given,
// it reads only those files.
func (m manifest) checkSums(path string, names ...string) error {
	buffer := make([]byte, 256<<10)
	for _, f := range m.Files {
		if len(names) > 0 && !slices.Contains(names, f.Name) {
			continue
		}
		name := filepath.Join(path, f.Name)
		sum, err := hashFile(name, buffer)
		if err != nil {
			return err
		}
		if sum != f.SHA256 {
			return fmt.Errorf("%s: its bytes have changed: SHA-256 is %s, the manifest says %s", name, sum, f.SHA256)
		}
	}
	return nil
}

func hashFile(name string, buffer []byte) (string, error) {
	file, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer file.Close()
	sha := sha256.New()
	if _, err := io.CopyBuffer(sha, file, buffer); err != nil {
		return "", err
	}
	return hex.EncodeToString(sha.Sum(nil)), nil
}

// Verify reads all bytes of a checkpoint and compares them with its manifest. The
// error names the first file that is missing or differs.
func Verify(path string) error {
	m, err := readManifest(path)
	if err != nil {
		return err
	}
	if err := m.checkSizes(path); err != nil {
		return err
	}
	return m.checkSums(path)
}

// readSmall returns the bytes of a file of at most maxJSON bytes. It opens regular
// files only, because opening a pipe blocks.
func readSmall(name string) ([]byte, error) {
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: not a regular file", name)
	case info.Size() > maxJSON:
		return nil, fmt.Errorf("%s: longer than %d bytes", name, maxJSON)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxJSON))
}
