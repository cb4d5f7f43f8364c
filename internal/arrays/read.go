// Package arrays reads matrices from .npy and safetensors files, and writes tensors in any
// format to them: the files of commands that exchange arrays with other programs.
package arrays

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"octet/fp8"
	"octet/internal/npy"
	"octet/internal/spelling"
	"octet/safetensors"
)

// Matrix is a matrix of FP32 values, row-major. Its rows are all dimensions of the stored
// tensor but the last.
type Matrix struct {
	Name       string
	Source     string // format in the file, as the file names it: "float64", "BF16"
	Rows, Cols int
	Values     []float32 // FP64 is rounded to nearest
}

// Ext returns the extension of the files of a kind that this package knows, ".npy" or
// ".safetensors", or an error that names both.
func Ext(file string) (string, error) {
	ext := strings.ToLower(filepath.Ext(file))
	if ext != ".npy" && ext != ".safetensors" {
		return "", fmt.Errorf("%s: expected a file whose name ends in .npy or .safetensors", file)
	}
	return ext, nil
}

// Each calls do for the matrices of a file: the one of a .npy file, named after it, or
// those of a safetensors file whose names match the glob pattern (see path.Match), in the
// order of their names. An empty pattern takes all floating-point tensors but the scales of
// codes. Each holds one matrix in memory at a time.
func Each(file, pattern string, do func(Matrix) error) error {
	ext, err := Ext(file)
	if err != nil {
		return err
	}
	if ext == ".npy" {
		if pattern != "" {
			return fmt.Errorf("%s holds one array without a name: omit the tensor's name, %s", file, pattern)
		}
		m, err := readNpy(file)
		if err != nil {
			return err
		}
		return do(m)
	}
	f, err := safetensors.Open(file)
	if err != nil {
		return err
	}
	return errors.Join(eachTensor(f, file, pattern, do), f.Close())
}

// ReadOne reads the matrix of a .npy file, or the one that name gives of a safetensors file.
func ReadOne(file, name string) (found Matrix, err error) {
	n := 0
	err = Each(file, name, func(m Matrix) error {
		if n++; n > 1 {
			return fmt.Errorf("%s holds several tensors, such as %s and %s: name one", file, found.Name, m.Name)
		}
		found = m
		return nil
	})
	return found, err
}

func readNpy(file string) (m Matrix, err error) {
	a, err := npy.ReadFile(file)
	if err != nil {
		return m, err
	}
	m.Name, m.Source = strings.TrimSuffix(filepath.Base(file), filepath.Ext(file)), string(a.DType)
	if err = m.shape(a.Shape); err == nil {
		m.Values, err = floats(m.Source, a.Data, m.Rows*m.Cols)
	}
	if err != nil {
		return m, fmt.Errorf("%s: %w", file, err)
	}
	return m, nil
}

func eachTensor(f *safetensors.File, file, pattern string, do func(Matrix) error) error {
	var known []string
	codes := scaled(f)
	for _, t := range f.Tensors() {
		if isFloat(t.DType) && !isScaleOf(codes, t.Name) {
			known = append(known, t.Name)
		}
	}
	slices.Sort(known)
	names := known
	var err error
	if pattern != "" {
		names, err = Match(pattern, known)
	}
	for _, name := range codes {
		if match, _ := path.Match(pattern, name); len(names) == 0 && (match || pattern == "") {
			return fmt.Errorf("%s: %s is quantized already: give the values that it was cast from", file, name)
		}
	}
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", file, err)
	case len(names) == 0:
		return fmt.Errorf("%s holds no tensor of floating-point numbers", file)
	}
	for _, name := range names {
		t, _ := f.Tensor(name)
		m := Matrix{Name: name, Source: t.DType}
		shape := make([]int, len(t.Shape))
		for i, n := range t.Shape {
			shape[i] = int(n)
		}
		raw := make([]byte, t.Size)
		err := m.shape(shape)
		if err == nil {
			err = f.ReadInto(name, raw)
		}
		if err == nil {
			m.Values, err = floats(m.Source, raw, m.Rows*m.Cols)
		}
		if err != nil {
			return fmt.Errorf("%s: %s: %w", file, name, err)
		}
		if err := do(m); err != nil {
			return err
		}
	}
	return nil
}

// Match returns the names that a glob pattern matches, or an error with similar names if
// there are none.
func Match(pattern string, names []string) (list []string, err error) {
	if _, err := path.Match(pattern, ""); err != nil {
		return nil, fmt.Errorf("%s is not a valid glob pattern (see Go's path.Match)", pattern)
	}
	for _, name := range names {
		if ok, _ := path.Match(pattern, name); ok {
			list = append(list, name)
		}
	}
	if len(list) == 0 {
		// A name with as many parts is more similar than one that lacks a part.
		similar := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return strings.Count(name, ".") != strings.Count(pattern, ".") })
		meant := cmp.Or(spelling.DidYouMean(pattern, similar), spelling.DidYouMean(pattern, names))
		some := names
		if len(some) > 3 {
			some = some[:3]
		}
		return nil, fmt.Errorf("no tensor matches %s%s (%d tensors: %s, …)", pattern, meant, len(names), strings.Join(some, ", "))
	}
	return list, nil
}

// shape sets the size.
func (m *Matrix) shape(shape []int) error {
	if len(shape) == 0 || slices.Contains(shape, 0) {
		return fmt.Errorf("its shape is %v: expected a matrix or a vector with at least one element", shape)
	}
	m.Rows, m.Cols = 1, shape[len(shape)-1]
	for _, n := range shape[:len(shape)-1] {
		m.Rows *= n
	}
	return nil
}

// formats are the formats of matrices by the names of both kinds of files. Invalid stands
// for FP64.
var formats = map[string]fp8.DType{
	"float16": fp8.F16, "float32": fp8.F32, "float64": fp8.Invalid,
	"F16": fp8.F16, "BF16": fp8.BF16, "F32": fp8.F32, "F64": fp8.Invalid,
}

func isFloat(format string) bool {
	_, ok := formats[format]
	return ok
}

// floats decodes n values of a format.
func floats(format string, raw []byte, n int) ([]float32, error) {
	if !isFloat(format) {
		return nil, fmt.Errorf("its elements are %s: expected floating-point numbers of 16, 32 or 64 bits", format)
	}
	x := make([]float32, n)
	if d := formats[format]; d != fp8.Invalid {
		d.Decode(x, raw)
		return x, nil
	}
	for i := range x {
		x[i] = float32(math.Float64frombits(binary.LittleEndian.Uint64(raw[8*i:])))
	}
	return x, nil
}
