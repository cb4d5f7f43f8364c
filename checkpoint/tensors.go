package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"math"

	"octet/fp8"
	"octet/safetensors"
)

// Tensor is a tensor of a checkpoint, to be written or read.
type Tensor struct {
	Name  string
	DType fp8.DType
	Shape []int

	// Data writes the tensor's bytes, little-endian and in C order, in pieces
	// of any length.
	Data func(w io.Writer) error
}

// Elems is the number of elements.
func (t Tensor) Elems() int64 {
	n := int64(1)
	for _, d := range t.Shape {
		n *= int64(d)
	}
	return n
}

// Bytes is the Data of a tensor that is in memory already.
func Bytes(b []byte) func(io.Writer) error { return safetensors.Bytes(b) }

// The safetensors format has one E4M3, OCP's, whose largest value is 448. A
// file whose F8_E4M3 tensors hold codes of fp8.E4M3IEEE says so in its
// metadata. Up to 240 the two agree on every code, so a reader that does not
// know the key goes wrong only on infinities and NaN.
const (
	e4m3MaxKey  = "e4m3_max"
	e4m3MaxIEEE = "240"
	e4m3MaxOCP  = "448"
)

var storedNames = map[fp8.DType]string{
	fp8.F32: "F32", fp8.BF16: "BF16", fp8.F16: "F16",
	fp8.E4M3: "F8_E4M3", fp8.E4M3IEEE: "F8_E4M3", fp8.E5M2: "F8_E5M2", fp8.E8M0: "F8_E8M0",
	fp8.I32: "I32",
}

// storedDType is the format of a tensor that a file calls name, given the
// file's metadata.
func storedDType(name string, metadata map[string]string) (fp8.DType, error) {
	if name == "F8_E4M3" {
		switch largest := metadata[e4m3MaxKey]; largest {
		case "", e4m3MaxOCP:
			return fp8.E4M3, nil
		case e4m3MaxIEEE:
			return fp8.E4M3IEEE, nil
		default:
			return fp8.Invalid, fmt.Errorf("metadata %s = %q: expected %s or %s", e4m3MaxKey, largest, e4m3MaxIEEE, e4m3MaxOCP)
		}
	}
	for dtype, stored := range storedNames {
		if stored == name {
			return dtype, nil
		}
	}
	return fp8.Invalid, fmt.Errorf("octet has no number format %s: store it in F32, BF16 or F16", name)
}

// writeTensors writes tensors as one safetensors file.
func writeTensors(w io.Writer, tensors []Tensor) error {
	// transformers refuses a file that does not name its framework's layout.
	metadata := map[string]string{"format": "pt"}
	var e4m3 [2]string // a tensor of each E4M3
	sources := make([]safetensors.Source, len(tensors))
	for i, t := range tensors {
		name, ok := storedNames[t.DType]
		if !ok {
			return fmt.Errorf("tensor %s: its number format is %v", t.Name, t.DType)
		}
		switch t.DType {
		case fp8.E4M3:
			e4m3[0] = t.Name
		case fp8.E4M3IEEE:
			e4m3[1] = t.Name
			metadata[e4m3MaxKey] = e4m3MaxIEEE
		}
		shape := make([]int64, len(t.Shape))
		for d := range shape {
			shape[d] = int64(t.Shape[d])
		}
		sources[i] = safetensors.Source{Name: t.Name, DType: name, Shape: shape, Data: t.Data}
	}
	if e4m3[0] != "" && e4m3[1] != "" {
		return fmt.Errorf("tensor %s is %v and tensor %s is %v: one file stores one of the two", e4m3[0], fp8.E4M3, e4m3[1], fp8.E4M3IEEE)
	}
	return safetensors.Write(w, sources, metadata)
}

// Tensors are the tensors of one safetensors file, or of all files of a
// sharded model, to be read by name from any number of goroutines.
type Tensors struct {
	path   string // of the file, or of the index of several
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

// newTensors takes over the files, which hold no name twice, and closes them
// if one holds what Octet has no format for.
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
	dtype, err := storedDType(t.DType, f.Metadata())
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

// List is every tensor in the order of the files; its Data read them. The
// slice is the Tensors' own.
func (s *Tensors) List() []Tensor { return s.list }

// Lookup finds a tensor by name.
func (s *Tensors) Lookup(name string) (Tensor, bool) {
	at, ok := s.byName[name]
	if !ok {
		return Tensor{}, false
	}
	return s.list[at.index], true
}

// Reader reads a tensor's bytes piece by piece.
func (s *Tensors) Reader(name string) (io.Reader, error) {
	at, ok := s.byName[name]
	if !ok {
		return nil, fmt.Errorf("there is no tensor %q", name)
	}
	return at.file.Section(name)
}

// ReadInto reads a whole tensor into dst, which must have its size.
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
