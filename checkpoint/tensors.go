package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"math"

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

// writeTensors writes tensors as one safetensors file.
func writeTensors(w io.Writer, tensors []Tensor) error {
	// transformers rejects files whose metadata has no format.
	metadata := map[string]string{"format": "pt"}
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

// Tensors are the tensors of one safetensors file, or of all files of a
// sharded model. Its methods read tensors by name and are safe for concurrent use.
type Tensors struct {
	path   string // the file, or the index of a sharded model
	files  []*safetensors.File
	list   []Tensor
	byName map[string]stored
}

type stored struct {
	index int // in list
	file  *safetensors.File
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
	s := &Tensors{path: path, files: files, byName: map[string]stored{}}
	for _, f := range files {
		for _, t := range f.Tensors() {
			tensor, err := fromStored(f, t)
			if err != nil {
				return nil, errors.Join(fmt.Errorf("%s: tensor %q: %w", path, t.Name, err), s.Close())
			}
			s.byName[t.Name] = stored{len(s.list), f}
			s.list = append(s.list, tensor)
		}
	}
	return s, nil
}

func fromStored(f *safetensors.File, t safetensors.Tensor) (Tensor, error) {
	dtype, err := storedDType(t.Name, t.DType, f.Metadata())
	if err != nil {
		return Tensor{}, err
	}
	shape := make([]int, len(t.Shape))
	for d, n := range t.Shape {
		if n > math.MaxInt {
			return Tensor{}, fmt.Errorf("dimension %d = %d is too large for this machine", d, n)
		}
		shape[d] = int(n)
	}
	data := func(w io.Writer) error {
		section, err := f.Section(t.Name)
		if err != nil {
			return err
		}
		_, err = io.Copy(w, section)
		return err
	}
	return Tensor{Name: t.Name, DType: dtype, Shape: shape, Data: data}, nil
}

// List returns all tensors in the order of the files. Their Data read from the
// files. Do not modify the slice.
func (s *Tensors) List() []Tensor { return s.list }

// Lookup returns the tensor with the given name; false if there is none.
func (s *Tensors) Lookup(name string) (Tensor, bool) {
	at, ok := s.byName[name]
	if !ok {
		return Tensor{}, false
	}
	return s.list[at.index], true
}

// Reader returns a reader of a tensor's bytes.
func (s *Tensors) Reader(name string) (io.Reader, error) {
	at, ok := s.byName[name]
	if !ok {
		return nil, fmt.Errorf("there is no tensor %q", name)
	}
	return at.file.Section(name)
}

// ReadInto reads a whole tensor into dst, which must have the tensor's size.
func (s *Tensors) ReadInto(name string, dst []byte) error {
	at, ok := s.byName[name]
	if !ok {
		return fmt.Errorf("there is no tensor %q", name)
	}
	return at.file.ReadInto(name, dst)
}

// Close closes the files.
func (s *Tensors) Close() error {
	var errs []error
	for _, f := range s.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
