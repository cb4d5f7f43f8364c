package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"octet/fp8"
	"octet/safetensors"
)

// openShards opens the shards of a checkpoint and joins their rows. It reads their headers
// and no tensor. Closing model closes the files of both.
func openShards(path string, ranks int) (model, optimizer *Tensors, err error) {
	model = &Tensors{path: path, byName: map[string]int{}}
	optimizer = &Tensors{path: path, byName: map[string]int{}}
	for rank := range ranks {
		f := &shardFile{name: filepath.Join(path, shardName(rank, ranks))}
		if err = f.read(model, optimizer, rank < maxOpen); err != nil {
			return nil, nil, errors.Join(fmt.Errorf("%s: %w", f.name, err), model.Close())
		}
	}
	for _, s := range []*Tensors{model, optimizer} {
		if err := s.joinRows(); err != nil {
			return nil, nil, errors.Join(err, model.Close())
		}
	}
	return model, optimizer, nil
}

// read reads the header of a shard and adds its pieces to the tensors. If the file stays
// open, model closes it.
func (f *shardFile) read(model, optimizer *Tensors, keepOpen bool) (err error) {
	info, err := lstatRegular(f.name)
	if err != nil {
		return err
	}
	file, err := os.Open(f.name)
	if err != nil {
		return err
	}
	if keepOpen {
		f.open = file
		model.closers = append(model.closers, file)
	} else {
		defer func() { err = errors.Join(err, file.Close()) }()
	}
	header, err := safetensors.NewReader(file, info.Size())
	if err != nil {
		return err
	}
	ranges := 0
	for key := range header.Metadata() {
		if strings.HasPrefix(key, rowsKey) || strings.HasPrefix(key, columnsKey) {
			ranges++
		}
	}
	for _, t := range header.Tensors() {
		to := model
		name, ok := strings.CutPrefix(t.Name, modelPrefix)
		if !ok {
			to = optimizer
			if name, ok = strings.CutPrefix(t.Name, optimizerPrefix); !ok {
				return fmt.Errorf("tensor %.200q: expected a name that begins with %s or %s", t.Name, modelPrefix, optimizerPrefix)
			}
		}
		dtype, shape, err := stored(t, header.Metadata())
		if err != nil {
			return fmt.Errorf("tensor %.200q: %w", t.Name, err)
		}
		p := piece{to: rowsOf(shape), data: f, offset: t.Offset, file: f.name}
		if text, ok := header.Metadata()[rowsKey+t.Name]; ok {
			ranges--
			if p.from, p.to, err = parseRange("rows", text, shape, 0); err != nil {
				return fmt.Errorf("tensor %.200q: %w", t.Name, err)
			}
		}
		if text, ok := header.Metadata()[columnsKey+t.Name]; ok {
			ranges--
			if p.columns[0], p.columns[1], err = parseRange("columns", text, shape, 1); err != nil {
				return fmt.Errorf("tensor %.200q: %w", t.Name, err)
			}
		}
		if err := to.addPiece(name, dtype, shape, p); err != nil {
			return fmt.Errorf("tensor %.200q: %w", t.Name, err)
		}
	}
	if ranges != 0 {
		return fmt.Errorf("the metadata has %d ranges of tensors that are not in the file", ranges)
	}
	return nil
}

// parseRange returns the range of a piece along a dimension from a rangeFormat. It changes shape, that of
// the piece, to that of the whole tensor. what names the parts.
func parseRange(what, text string, shape []int, dim int) (from, to int, err error) {
	var n int
	_, err = fmt.Sscanf(text, rangeFormat, &from, &to, &n)
	if err != nil || fmt.Sprintf(rangeFormat, from, to, n) != text {
		return 0, 0, fmt.Errorf("its %s are %.80q: expected FROM:TO/ALL", what, text)
	}
	if from < 0 || to < from || to > n || to == from && dim > 0 {
		return 0, 0, fmt.Errorf("its %s are %d to %d of %d", what, from, to, n)
	}
	if len(shape) <= dim || shape[dim] != to-from {
		return 0, 0, fmt.Errorf("its %s are %d to %d, but its shape is %.200v", what, from, to, fmt.Sprint(shape))
	}
	shape[dim] = n
	return from, to, nil
}

// addPiece adds rows of a tensor, which must agree with those of other shards.
func (s *Tensors) addPiece(name string, dtype fp8.DType, shape []int, p piece) error {
	i, ok := s.byName[name]
	if !ok {
		i = s.add(name, dtype, shape)
	}
	if t := s.list[i]; t.DType != dtype || !slices.Equal(t.Shape, shape) {
		return fmt.Errorf("it is %v %.200v, but %v %.200v in %s", dtype, fmt.Sprint(shape), t.DType, fmt.Sprint(t.Shape), filepath.Base(s.rows[i].pieces[0].file))
	}
	s.rows[i].pieces = append(s.rows[i].pieces, p)
	return nil
}

// joinRows sorts the pieces of all tensors and returns an error unless they hold every row
// once.
func (s *Tensors) joinRows() error {
	for i, r := range s.rows {
		slices.SortFunc(r.pieces, func(a, b piece) int {
			return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to), cmp.Compare(a.columns[0], b.columns[0]), strings.Compare(a.file, b.file))
		})
		if err := r.joinColumns(s.list[i].Name, s.list[i].Shape); err != nil {
			return err
		}
		end, last := 0, r.pieces[0]
		for _, p := range r.pieces {
			if p.from < end {
				return fmt.Errorf("%s: tensor %.200q: its rows %d to %d overlap those of %s, which end at %d", p.file, s.list[i].Name, p.from, p.to, filepath.Base(last.file), end)
			}
			if p.from > end {
				break
			}
			end, last = p.to, p
		}
		if end < r.n {
			return fmt.Errorf("%s: tensor %.200q: no shard holds row %d of %d", last.file, s.list[i].Name, end, r.n)
		}
	}
	return nil
}

// maxOpen is the maximum number of shards that stay open. The pieces of more shards are
// small, and the number of open files of a process is limited. Tests change it.
var maxOpen = 256

// shardFile reads a shard.
type shardFile struct {
	name string
	open *os.File // nil: each read opens the file
}

var _ io.ReaderAt = (*shardFile)(nil)

// ReadAt implements io.ReaderAt.
func (f *shardFile) ReadAt(dst []byte, at int64) (int, error) {
	if f.open != nil {
		return f.open.ReadAt(dst, at)
	}
	file, err := os.Open(f.name)
	if err != nil {
		return 0, err
	}
	n, err := file.ReadAt(dst, at)
	return n, errors.Join(err, file.Close())
}
