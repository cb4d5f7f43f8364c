// Package npy reads and writes the .npy files of NumPy (numpy.lib.format, versions 1 to 3):
// one array of numbers, in C order and little-endian. It is small because files of arrays
// need no more: the Go libraries for the format also unpickle objects and link a library
// of linear algebra.
package npy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
)

// DType is the format of an array's elements, as NumPy names it.
type DType string

// The formats that this package reads and writes.
const (
	Float16 DType = "float16"
	Float32 DType = "float32"
	Float64 DType = "float64"
	Int8    DType = "int8"
	Uint8   DType = "uint8"
	Int32   DType = "int32"
)

var formats = []struct {
	dtype DType
	descr string // in the header
	size  int
}{
	{Float32, "<f4", 4},
	{Float64, "<f8", 8},
	{Float16, "<f2", 2},
	{Int8, "|i1", 1},
	{Uint8, "|u1", 1},
	{Int32, "<i4", 4},
}

// Array is an array of any shape.
type Array struct {
	DType DType
	Shape []int  // empty for a single number
	Data  []byte // row-major, little-endian
}

// size returns the bytes of an element; 0 for a DType that this package does not know.
func (d DType) size() int {
	for _, f := range formats {
		if f.dtype == d {
			return f.size
		}
	}
	return 0
}

// bytesOf returns the bytes of an array; ok is false if they overflow.
func bytesOf(d DType, shape []int) (n int, ok bool) {
	n = d.size()
	for _, x := range shape {
		if x < 0 || x > 0 && n > math.MaxInt/x {
			return 0, false
		}
		n *= x
	}
	return n, true
}

const (
	magic   = "\x93NUMPY"
	maxDims = 64 // NumPy's limit
)

// ReadFile reads the array of the file at path, which must be a regular file.
func ReadFile(path string) (Array, error) {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: not a regular file", path)
	}
	if err != nil {
		return Array{}, err
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return Array{}, err
	}
	a, err := Parse(raw)
	if err != nil {
		return a, fmt.Errorf("%s: %w", path, err)
	}
	return a, nil
}

// Parse reads the array of a whole file. Array.Data is a part of file.
func Parse(file []byte) (a Array, err error) {
	rest, ok := bytes.CutPrefix(file, []byte(magic))
	if !ok || len(rest) < 4 {
		return a, errors.New("not a .npy file: it does not begin with \\x93NUMPY and a version")
	}
	var n int
	switch version := rest[0]; version {
	case 1:
		n, rest = int(binary.LittleEndian.Uint16(rest[2:])), rest[4:]
	case 2, 3:
		if len(rest) < 6 {
			return a, errors.New("the file is truncated within the length of its header")
		}
		n, rest = int(binary.LittleEndian.Uint32(rest[2:])), rest[6:]
	default:
		return a, fmt.Errorf("version %d of the .npy format is unknown (known: 1, 2 and 3)", version)
	}
	if n > len(rest) {
		return a, fmt.Errorf("the file is truncated: its header has %d bytes, %d follow", n, len(rest))
	}
	if a, err = parseHeader(string(rest[:n])); err != nil {
		return Array{}, fmt.Errorf("header: %w", err)
	}
	a.Data = rest[n:]
	want, ok := bytesOf(a.DType, a.Shape)
	if !ok || want != len(a.Data) {
		return Array{}, fmt.Errorf("%s%v needs another number of bytes than the %d that follow the header", a.DType, a.Shape, len(a.Data))
	}
	return a, nil
}

// Write writes an array as a file of version 1.
func Write(w io.Writer, a Array) error {
	if n, ok := bytesOf(a.DType, a.Shape); !ok || a.DType.size() == 0 || n != len(a.Data) || len(a.Shape) > maxDims {
		return fmt.Errorf("npy: %s%v with %d bytes is no array that this package writes", a.DType, a.Shape, len(a.Data))
	}
	descr := ""
	for _, f := range formats {
		if f.dtype == a.DType {
			descr = f.descr
		}
	}
	var shape strings.Builder
	for _, n := range a.Shape {
		fmt.Fprintf(&shape, "%d, ", n)
	}
	list := strings.TrimSuffix(shape.String(), " ")
	if len(a.Shape) > 1 {
		list = strings.TrimSuffix(list, ",")
	}
	header := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", descr, list)
	// The data begin at a multiple of 64 bytes, after a newline.
	const before = len(magic) + 4
	header += strings.Repeat(" ", 63-(before+len(header))%64) + "\n"
	raw := append([]byte(magic), 1, 0)
	raw = binary.LittleEndian.AppendUint16(raw, uint16(len(header)))
	if _, err := w.Write(append(raw, header...)); err != nil {
		return err
	}
	_, err := w.Write(a.Data)
	return err
}
