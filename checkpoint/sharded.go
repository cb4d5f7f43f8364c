package checkpoint

import (
	"encoding/hex"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"octet/internal/disk"
	"octet/tokenizer"
)

// Sharded is a checkpoint to which each rank of a run writes a shard.
type Sharded struct {
	unfinished
	ranks int
}

// Shard is the part of a checkpoint that one rank writes. The shards together hold every
// row of every tensor once. Rank 0 writes the tensors that all ranks hold.
type Shard struct {
	Model     []Rows // under Hugging Face's names
	Optimizer []Rows
}

// Rows are the rows from From to To, without To, of a tensor. A row is everything at one
// index of the first dimension; a scalar has one row.
type Rows struct {
	Tensor // the whole tensor; but Data writes the rows alone
	From   int
	To     int
	// Columns are what Data has of each row: the indexes of the second dimension from the first to
	// before the second. Zero: all of it.
	Columns [2]int
}

// Part is what a rank tells rank 0 about its shard.
type Part struct {
	Folder string `json:"folder"` // the name of the hidden folder
	Rank   int    `json:"rank"`
	Ranks  int    `json:"ranks"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// BeginSharded makes the hidden folder of a checkpoint of several ranks in dir, as [Save]
// does. Only rank 0 calls it. Each rank then calls [WriteShard], with rank 0's
// [Sharded.Partial] and in any order, and sends its Part to rank 0, which calls
// [Sharded.Finish]. No Retain may run until then.
func BeginSharded(dir string, step, ranks int) (*Sharded, error) {
	if ranks < 1 || ranks > maxRanks {
		return nil, fmt.Errorf("checkpoint of step %d: %d ranks: expected 1 to %d", step, ranks, maxRanks)
	}
	u, err := begin(dir, step)
	if err != nil {
		return nil, err
	}
	return &Sharded{u, ranks}, nil
}

// Partial returns the path of the hidden folder.
func (s *Sharded) Partial() string { return s.partial }

// Discard removes the hidden folder: the checkpoint is given up before [Sharded.Finish],
// because a rank failed.
func (s *Sharded) Discard() error { return disk.RemoveAll(s.partial) }

// The tensors of a shard have one of these prefixes before their names.
const (
	modelPrefix     = "model/"
	optimizerPrefix = "optimizer/"
)

// rowsKey is the prefix of a metadata key of a shard that ends in a tensor's name in the
// file. The value is the range of rows that the file holds, see rangeFormat. A tensor
// without this key is whole.
const rowsKey = "rows."

// columnsKey is like rowsKey for the range of columns.
const columnsKey = "columns."

// rangeFormat has the first row, the row after the last one, and the number of rows of the
// whole tensor; or columns.
const rangeFormat = "%d:%d/%d"

// WriteShard writes the shard of a rank to the hidden folder partial and syncs it to disk.
// Ranks may be in different processes, and on different machines that share a file system.
func WriteShard(partial string, rank, ranks int, s Shard) (Part, error) {
	if ranks < 1 || ranks > maxRanks || rank < 0 || rank >= ranks {
		return Part{}, fmt.Errorf("%s: rank %d of %d: expected 1 to %d ranks, counted from 0", partial, rank, ranks, maxRanks)
	}
	name := shardName(rank, ranks)
	entry, err := writeFile(partial, name, func(w io.Writer) error { return s.write(w) })
	if err == nil {
		err = disk.SyncDir(partial) // on another machine, rank 0 cannot sync the file's name
	}
	if err != nil {
		return Part{}, fmt.Errorf("writing %s: %w", filepath.Join(partial, name), err)
	}
	return Part{Folder: filepath.Base(partial), Rank: rank, Ranks: ranks, Size: entry.Size, SHA256: entry.SHA256}, nil
}

func (s Shard) write(w io.Writer) error {
	var list []Tensor
	metadata := map[string]string{}
	for _, group := range []struct {
		prefix string
		rows   []Rows
	}{{modelPrefix, s.Model}, {optimizerPrefix, s.Optimizer}} {
		for _, r := range group.rows {
			t, n := r.Tensor, rowsOf(r.Shape)
			if r.From < 0 || r.To < r.From || r.To > n {
				return fmt.Errorf("tensor %s has %d rows: there are no rows %d to %d", r.Name, n, r.From, r.To)
			}
			t.Name = group.prefix + r.Name
			if r.From > 0 || r.To < n {
				t.Shape = append([]int{r.To - r.From}, r.Shape[1:]...)
				metadata[rowsKey+t.Name] = fmt.Sprintf(rangeFormat, r.From, r.To, n)
			}
			if from, to := r.Columns[0], r.Columns[1]; to != 0 {
				if len(r.Shape) < 2 || from < 0 || to <= from || to > r.Shape[1] {
					return fmt.Errorf("tensor %s has the shape %v: there are no columns %d to %d", r.Name, r.Shape, from, to)
				}
				t.Shape = append([]int{t.Shape[0], to - from}, r.Shape[2:]...)
				metadata[columnsKey+t.Name] = fmt.Sprintf(rangeFormat, from, to, r.Shape[1])
			}
			list = append(list, t)
		}
	}
	return writeTensors(w, list, metadata)
}

// Finish completes the checkpoint with the parts of all ranks, in any order, and the
// contents of config.json and state.json and the files of the tokenizer, and returns its path. As with [Save], it
// survives a power cut. Finish compares the files' sizes with the parts and reads the
// shards' headers: together they must hold every row of every tensor once. It trusts the
// parts' checksums. If Finish fails, it removes the hidden folder; the error names the
// rank whose part is missing or wrong. Older checkpoints are unchanged.
func (s *Sharded) Finish(parts []Part, config Config, state any, tok ...tokenizer.File) (path string, err error) {
	shards, err := s.entries(parts)
	if err != nil {
		return "", s.discard(err)
	}
	if err := config.Validate(); err != nil {
		return "", s.discard(fmt.Errorf("%s: %w", ConfigFile, err))
	}
	model, _, err := openShards(s.partial, s.ranks)
	if err == nil {
		err = model.Close()
	}
	if err != nil {
		return "", s.discard(err)
	}
	m := manifest{Format: manifestFormat, Version: shardedVersion}
	if m.Files, err = s.write([]content{{ConfigFile, jsonOf(config)}, {StateFile, jsonOf(state)}}); err != nil {
		return "", s.discard(err)
	}
	files, err := s.write(contentsOf(tok))
	if err != nil {
		return "", s.discard(err)
	}
	m.Files = slices.Concat(m.Files, shards, files)
	return s.publish(m)
}

// entries returns the manifest entries of the shards, in the order of their ranks. It
// compares the parts with each other and with the sizes of the files.
func (s *Sharded) entries(parts []Part) ([]fileEntry, error) {
	entries := make([]fileEntry, s.ranks)
	for _, p := range parts {
		switch sum, err := hex.DecodeString(p.SHA256); {
		case p.Folder != filepath.Base(s.partial):
			return nil, fmt.Errorf("rank %d wrote to %.80q: expected %q", p.Rank, p.Folder, filepath.Base(s.partial))
		case p.Ranks != s.ranks || p.Rank < 0 || p.Rank >= s.ranks:
			return nil, fmt.Errorf("rank %d of %d wrote a part: the checkpoint has %d ranks", p.Rank, p.Ranks, s.ranks)
		case entries[p.Rank].Name != "":
			return nil, fmt.Errorf("rank %d: there are two parts of this rank", p.Rank)
		case err != nil || len(sum) != 32 || strings.ToLower(p.SHA256) != p.SHA256:
			return nil, fmt.Errorf("rank %d: its part has the SHA-256 %.80q: expected 64 hexadecimal digits", p.Rank, p.SHA256)
		}
		entries[p.Rank] = fileEntry{Name: shardName(p.Rank, s.ranks), Size: p.Size, SHA256: p.SHA256}
	}
	for rank, e := range entries {
		if e.Name == "" {
			return nil, fmt.Errorf("rank %d: its part is missing", rank)
		}
		name := filepath.Join(s.partial, e.Name)
		info, err := lstatRegular(name)
		if err != nil {
			return nil, fmt.Errorf("rank %d: %w", rank, err)
		}
		if info.Size() != e.Size {
			return nil, fmt.Errorf("rank %d: %s: %d bytes, its part says %d", rank, name, info.Size(), e.Size)
		}
	}
	return entries, nil
}
