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

	"octet/tokenizer"
)

// The files of a checkpoint.
const (
	ModelFile     = "model.safetensors"
	ConfigFile    = "config.json"
	OptimizerFile = "optimizer.safetensors"
	StateFile     = "state.json"
	ManifestFile  = "MANIFEST.json"
)

// wholeFiles and shardedFiles begin the only lists of files that a manifest may have. A
// shardName for each rank follows shardedFiles. The files of a tokenizer end the list, in the order
// of tokenizer.FileNames. A manifest therefore cannot refer to files outside its folder.
var (
	wholeFiles   = []string{ModelFile, ConfigFile, OptimizerFile, StateFile}
	shardedFiles = []string{ConfigFile, StateFile}
)

// maxRanks is the maximum number of shards of a checkpoint: the largest of five digits.
const maxRanks = 99_999

// shardName returns the name of the file of one rank.
func shardName(rank, ranks int) string {
	return fmt.Sprintf("shard-%05d-of-%05d.safetensors", rank, ranks)
}

const (
	manifestFormat = "octet-checkpoint"
	wholeVersion   = 1
	shardedVersion = 2

	// maxJSON bounds the other JSON files, which are read into memory. The largest known
	// ones, config.json files with a classifier's labels, have a tenth of that size.
	maxJSON = 1 << 20

	// maxManifest bounds the manifest: 200 bytes for each of maxRanks shards, and more.
	maxManifest = 24 << 20
)

// manifest is MANIFEST.json. It contains neither step nor time, so that Verify can
// check every byte of it against the other files or a constant.
type manifest struct {
	Format  string      `json:"format"`
	Version int         `json:"version"`
	Files   []fileEntry `json:"files"`
}

// ranks returns the number of shards, 0 for a whole checkpoint.
func (m manifest) ranks() int {
	if m.Version == wholeVersion {
		return 0
	}
	return len(m.Files) - m.tokenizerFiles() - len(shardedFiles)
}

// tokenizerFiles returns the number of files of a tokenizer.
func (m manifest) tokenizerFiles() (n int) {
	for n < len(m.Files) && slices.Contains(tokenizer.FileNames, m.Files[len(m.Files)-1-n].Name) {
		n++
	}
	return n
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
	if m.Version != wholeVersion && m.Version != shardedVersion {
		return manifest{}, fmt.Errorf("version = %d: this octet reads versions %d and %d", m.Version, wholeVersion, shardedVersion)
	}
	if err := m.checkNames(); err != nil {
		return manifest{}, err
	}
	// A manifest has exactly one encoding. This rejects what json.Unmarshal
	// ignores: other keys, other case, white space.
	if again, err := encodeJSON(m); err != nil || !bytes.Equal(again, text) {
		return manifest{}, errors.New("its bytes have changed since it was written")
	}
	return m, nil
}

// checkNames returns an error unless the manifest lists the files of its layout in order.
func (m manifest) checkNames() error {
	own := m.Files[:len(m.Files)-m.tokenizerFiles()]
	if m.Version == wholeVersion && len(own) != len(wholeFiles) {
		return fmt.Errorf("it lists %d files: expected %q", len(m.Files), wholeFiles)
	}
	ranks := m.ranks()
	if m.Version == shardedVersion && (ranks < 1 || ranks > maxRanks) {
		return fmt.Errorf("it lists %d files: expected %q and 1 to %d shards", len(m.Files), shardedFiles, maxRanks)
	}
	last := -1
	for _, f := range m.Files[len(own):] {
		i := slices.Index(tokenizer.FileNames, f.Name)
		if i <= last {
			return fmt.Errorf("it lists %q again, or in another order than %q", f.Name, tokenizer.FileNames)
		}
		last = i
	}
	for i, f := range own {
		var want string
		switch shard := i - len(shardedFiles); {
		case ranks == 0:
			want = wholeFiles[i]
		case shard < 0:
			want = shardedFiles[i]
		default:
			want = shardName(shard, ranks)
		}
		if f.Name != want {
			return fmt.Errorf("it lists %.40q: expected %q", f.Name, want)
		}
	}
	return nil
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
	text, err := readBounded(name, maxManifest)
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
	_, err := verify(path)
	return err
}

// verify is Verify; it returns the manifest.
func verify(path string) (manifest, error) {
	m, err := readManifest(path)
	if err == nil {
		err = m.checkSizes(path)
	}
	if err == nil {
		err = m.checkSums(path)
	}
	return m, err
}

// readSmall returns the bytes of a JSON file other than the manifest.
func readSmall(name string) ([]byte, error) { return readBounded(name, maxJSON) }

// readBounded returns the bytes of a file of at most limit bytes. It opens regular files
// only, because opening a pipe blocks.
func readBounded(name string, limit int64) ([]byte, error) {
	info, err := os.Stat(name)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: not a regular file", name)
	case info.Size() > limit:
		return nil, fmt.Errorf("%s: longer than %d bytes", name, limit)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit))
}
