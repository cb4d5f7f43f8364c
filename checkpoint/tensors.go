package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"

	"octet/fp8"
	"octet/safetensors"
)

// Tensor is a tensor of a checkpoint to write or read.
type Tensor struct {
	Name  string
	DType fp8.DType
	Shape []int

	// Data writes the tensor's bytes, little-endian and in C order, in pieces
	// of any length.
	Data func(w io.Writer) error
}

// Elems returns the number of elements.
func (t Tensor) Elems() int64 {
	n := int64(1)
	for _, d := range t.Shape {
		n *= int64(d)
	}
	return n
}

// Bytes returns a Tensor.Data that writes b.
func Bytes(b []byte) func(io.Writer) error { return safetensors.Bytes(b) }

// The safetensors format has one E4M3, OCP's, with the maximum 448. If F8_E4M3
// tensors hold codes of fp8.E4M3IEEE, Octet sets this key in the file's
// metadata. The two formats agree on every code up to 240, so a reader that
// ignores the key misreads only infinities and NaN.
const (
	e4m3MaxKey  = "e4m3_max"
	e4m3MaxIEEE = "240"
	e4m3MaxOCP  = "448"
)

// storedDType returns the format of a tensor, given its safetensors dtype and the file's
// metadata.
func storedDType(tensor, dtype string, metadata map[string]string) (fp8.DType, error) {
	if name, ok := metadata[safetensors.FormatKey+tensor]; ok && dtype == "U8" {
		d, err := fp8.ParseDType(name)
		if err == nil && d.Size() != 1 {
			err = fmt.Errorf("%s does not have one byte for each element", d)
		}
		if err != nil {
			return fp8.Invalid, fmt.Errorf("metadata %s%s: %w", safetensors.FormatKey, tensor, err)
		}
		return d, nil
	}
	if dtype == fp8.E4M3.Format().File {
		switch largest := metadata[e4m3MaxKey]; largest {
		case "", e4m3MaxOCP:
			return fp8.E4M3, nil
		case e4m3MaxIEEE:
			return fp8.E4M3IEEE, nil
		default:
			return fp8.Invalid, fmt.Errorf("metadata %s = %q: expected %s or %s", e4m3MaxKey, largest, e4m3MaxIEEE, e4m3MaxOCP)
		}
	}
	if d, ok := fp8.FromFile(dtype); ok && fileDType(d) != "" {
		return d, nil
	}
	return fp8.Invalid, fmt.Errorf("octet does not support dtype %s: store it as F32, BF16 or F16", dtype)
}

// fileDType returns the safetensors dtype for elements of format d as they are in memory, ""
// if there is none.
func fileDType(d fp8.DType) string {
	if f := d.Format(); f.Bits == f.Store && d.Size() > 0 {
		return f.File
	}
	return ""
}

// writeTensors writes tensors as one safetensors file, with more metadata.
func writeTensors(w io.Writer, tensors []Tensor, more map[string]string) error {
	// transformers rejects files whose metadata has no format.
	metadata := map[string]string{"format": "pt"}
	maps.Copy(metadata, more)
	var e4m3 [2]string // the name of an E4M3 tensor, and of an E4M3IEEE tensor
	sources := make([]safetensors.Source, len(tensors))
	for i, t := range tensors {
		dtype := fileDType(t.DType)
		switch {
		case t.DType == fp8.E4M3:
			e4m3[0] = t.Name
		case t.DType == fp8.E4M3IEEE:
			e4m3[1], dtype = t.Name, fp8.E4M3.Format().File
			metadata[e4m3MaxKey] = e4m3MaxIEEE
		case dtype == "" && t.DType.Size() == 1:
			dtype, metadata[safetensors.FormatKey+t.Name] = "U8", t.DType.String()
		case dtype == "":
			return fmt.Errorf("tensor %s: cannot store format %v", t.Name, t.DType)
		}
		shape := make([]int64, len(t.Shape))
		for d := range shape {
			shape[d] = int64(t.Shape[d])
		}
		sources[i] = safetensors.Source{Name: t.Name, DType: dtype, Shape: shape, Data: t.Data}
	}
	if e4m3[0] != "" && e4m3[1] != "" {
		return fmt.Errorf("tensor %s is %v and tensor %s is %v: one file can store only one of these formats", e4m3[0], fp8.E4M3, e4m3[1], fp8.E4M3IEEE)
	}
	return safetensors.Write(w, sources, metadata)
}

// Tensors are the tensors of one safetensors file, of all files of a sharded model, or
// of the shards of a checkpoint, which hold rows of them. Its methods read tensors by name
// and are safe for concurrent use.
type Tensors struct {
	path    string // for messages: the file, the index of a sharded model, or the checkpoint
	closers []io.Closer
	list    []Tensor
	rows    []*rows // of each tensor of list
	byName  map[string]int
}

// rows are the bytes of a tensor: those of its rows, in one or several files. A row is
// everything at one index of the first dimension; a scalar is one row.
type rows struct {
	n        int
	rowBytes int64
	pieces   []piece // in order, without gaps
}

// piece holds the rows from and to, without to, from an offset in a file.
type piece struct {
	from, to int
	columns  [2]int // of these rows, until joinColumns; zero: all
	data     io.ReaderAt
	offset   int64
	file     string // for messages
}

// rowsOf returns the number of rows of a shape.
func rowsOf(shape []int) int {
	if len(shape) == 0 {
		return 1
	}
	return shape[0]
}

// size returns the number of bytes of all rows.
func (r *rows) size() int64 { return int64(r.n) * r.rowBytes }

// ReadAt implements io.ReaderAt.
func (r *rows) ReadAt(dst []byte, at int64) (n int, err error) {
	// The first piece that ends after at.
	first, _ := slices.BinarySearchFunc(r.pieces, at, func(p piece, at int64) int {
		if int64(p.to)*r.rowBytes > at {
			return 1
		}
		return -1
	})
	for _, p := range r.pieces[first:] {
		if n == len(dst) {
			return n, nil
		}
		begin := at + int64(n)
		want := dst[n:][:min(int64(len(dst)-n), int64(p.to)*r.rowBytes-begin)]
		got, err := p.data.ReadAt(want, p.offset+begin-int64(p.from)*r.rowBytes)
		n += got
		if got == len(want) {
			continue
		}
		if err == nil || errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return n, fmt.Errorf("%s: %w", p.file, err)
	}
	if n < len(dst) {
		return n, io.EOF
	}
	return n, nil
}

func openTensors(path string) (*Tensors, error) {
	f, err := safetensors.Open(path)
	if err != nil {
		return nil, err
	}
	return newTensors(path, []*safetensors.File{f})
}

func openSharded(indexPath string) (*Tensors, error) {
	files, err := safetensors.OpenSharded(indexPath)
	if err != nil {
		return nil, err
	}
	return newTensors(indexPath, files)
}

// newTensors returns the tensors of files, whose names are unique, and takes
// ownership of the files. It closes them if Octet lacks the format of a tensor.
func newTensors(path string, files []*safetensors.File) (*Tensors, error) {
	s := &Tensors{path: path, byName: map[string]int{}}
	for _, f := range files {
		s.closers = append(s.closers, f)
	}
	for _, f := range files {
		for _, t := range f.Tensors() {
			dtype, shape, err := stored(t, f.Metadata())
			var section io.ReaderAt
			if err == nil {
				section, err = f.Section(t.Name)
			}
			if err != nil {
				return nil, errors.Join(fmt.Errorf("%s: tensor %q: %w", path, t.Name, err), s.Close())
			}
			r := s.rows[s.add(t.Name, dtype, shape)]
			r.pieces = []piece{{to: r.n, data: section, file: path}}
		}
	}
	return s, nil
}

// add adds a tensor without pieces and returns its index.
func (s *Tensors) add(name string, dtype fp8.DType, shape []int) int {
	i, r := len(s.list), &rows{n: rowsOf(shape), rowBytes: int64(dtype.Size())}
	for _, d := range shape[min(1, len(shape)):] {
		r.rowBytes *= int64(d)
	}
	s.byName[name] = i
	s.rows = append(s.rows, r)
	s.list = append(s.list, Tensor{Name: name, DType: dtype, Shape: shape, Data: func(w io.Writer) error {
		_, err := io.Copy(w, s.reader(i))
		return err
	}})
	return i
}

func (s *Tensors) reader(i int) io.Reader {
	return io.NewSectionReader(s.rows[i], 0, s.rows[i].size())
}

// stored returns the format and the shape of a tensor of a file with this metadata.
func stored(t safetensors.Tensor, metadata map[string]string) (dtype fp8.DType, shape []int, err error) {
	if dtype, err = storedDType(t.Name, t.DType, metadata); err != nil {
		return dtype, nil, err
	}
	shape = make([]int, len(t.Shape))
	for d, n := range t.Shape {
		if n > math.MaxInt {
			return dtype, nil, fmt.Errorf("dimension %d = %d is too large for this machine", d, n)
		}
		shape[d] = int(n)
	}
	return dtype, shape, nil
}

// List returns all tensors in the order of the files. Their Data read from the
// files. Do not modify the slice.
func (s *Tensors) List() []Tensor { return s.list }

// Lookup returns the tensor with the given name; false if there is none.
func (s *Tensors) Lookup(name string) (Tensor, bool) {
	i, ok := s.byName[name]
	if !ok {
		return Tensor{}, false
	}
	return s.list[i], true
}

// Reader returns a reader of a tensor's bytes.
func (s *Tensors) Reader(name string) (io.Reader, error) {
	i, ok := s.byName[name]
	if !ok {
		return nil, fmt.Errorf("there is no tensor %q", name)
	}
	return s.reader(i), nil
}

// ReadInto reads a whole tensor into dst, which must have the tensor's size.
func (s *Tensors) ReadInto(name string, dst []byte) error {
	t, _ := s.Lookup(name)
	return s.ReadRows(name, 0, rowsOf(t.Shape), dst)
}

// ReadRows reads the rows from and to of a tensor, without to, into dst, which must have
// their size. A row is everything at one index of the first dimension; a scalar has one row.
func (s *Tensors) ReadRows(name string, from, to int, dst []byte) error {
	i, ok := s.byName[name]
	if !ok {
		return fmt.Errorf("there is no tensor %q", name)
	}
	r := s.rows[i]
	if from < 0 || to < from || to > r.n {
		return fmt.Errorf("%s: tensor %q has %d rows: there are no rows %d to %d", s.path, name, r.n, from, to)
	}
	if size := int64(to-from) * r.rowBytes; size != int64(len(dst)) {
		return fmt.Errorf("%s: rows %d to %d of tensor %q have %d bytes, but the destination has %d", s.path, from, to, name, size, len(dst))
	}
	if _, err := r.ReadAt(dst, int64(from)*r.rowBytes); err != nil {
		return fmt.Errorf("%s: reading tensor %q: %w", s.path, name, err)
	}
	return nil
}

// Close closes the files.
func (s *Tensors) Close() error {
	var errs []error
	for _, c := range s.closers {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}
