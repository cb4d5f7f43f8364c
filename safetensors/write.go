package safetensors

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"unicode/utf8"
)

// FormatKey is the prefix of a metadata key of Octet's files that ends in a tensor's name.
// Its value is the tensor's number format, where the dtype does not say it: U8 for formats
// that safetensors does not have.
const FormatKey = "format."

// Source is a tensor to write. Data writes its bytes, little-endian and in C
// order, in pieces of any length. It must write exactly the number of bytes that
// DType and Shape determine.
type Source struct {
	Name  string
	DType string
	Shape []int64
	Data  func(w io.Writer) error
}

// Bytes returns a Source.Data that writes b.
func Bytes(b []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	}
}

// Write writes a safetensors file: the header, then each tensor through its
// callback, one at a time. The order of the list does not affect the file.
// Like the reference implementation, Write sorts by alignment, then by name, and
// pads the header with spaces to a multiple of eight, so that every tensor is
// aligned to its element size. Write checks all names, dtypes and shapes before
// it writes anything.
func Write(w io.Writer, tensors []Source, metadata map[string]string) error {
	tensors = slices.Clone(tensors)
	slices.SortStableFunc(tensors, func(a, b Source) int {
		return cmp.Or(-cmp.Compare(dtypeIndex(a.DType), dtypeIndex(b.DType)), cmp.Compare(a.Name, b.Name))
	})
	header, sizes, err := buildHeader(tensors, metadata)
	if err != nil {
		return err
	}
	var prefix [8]byte
	binary.LittleEndian.PutUint64(prefix[:], uint64(len(header)))
	if _, err := w.Write(prefix[:]); err != nil {
		return err
	}
	if _, err := w.Write(header); err != nil {
		return err
	}
	for i, t := range tensors {
		exact := &exactWriter{w: w, left: sizes[i]}
		if err := t.Data(exact); err != nil {
			return fmt.Errorf("tensor %s: %w", quote(t.Name), err)
		}
		if exact.left != 0 {
			return fmt.Errorf("tensor %s: data ended %d bytes short of %d", quote(t.Name), exact.left, sizes[i])
		}
	}
	return nil
}

// buildHeader returns the padded header and the tensors' sizes in bytes.
func buildHeader(tensors []Source, metadata map[string]string) (header []byte, sizes []int64, err error) {
	seen := make(map[string]bool, len(tensors))
	header = append(header, '{')
	member := func(name string, value any) {
		if len(header) > 1 {
			header = append(header, ',')
		}
		header = append(appendJSON(header, name), ':')
		header = appendJSON(header, value)
	}
	if len(metadata) > 0 {
		for _, key := range slices.Sorted(maps.Keys(metadata)) {
			if !utf8.ValidString(key) || !utf8.ValidString(metadata[key]) {
				return nil, nil, fmt.Errorf("metadata %s: not valid UTF-8", quote(key))
			}
		}
		member(metadataKey, metadata)
	}
	var offset int64
	for _, t := range tensors {
		size, err := checkSource(t)
		if err == nil && seen[t.Name] {
			err = errors.New("the name appears twice")
		}
		if err == nil && offset+size < offset {
			err = errors.New("the file size overflows 64 bits")
		}
		if err != nil {
			return nil, nil, fmt.Errorf("tensor %s: %w", quote(t.Name), err)
		}
		seen[t.Name] = true
		member(t.Name, entry{t.DType, append([]int64{}, t.Shape...), [2]int64{offset, offset + size}})
		sizes = append(sizes, size)
		offset += size
	}
	header = append(header, '}')
	for len(header)%8 != 0 {
		header = append(header, ' ')
	}
	if len(header) > maxHeader {
		return nil, nil, fmt.Errorf("the header has %d bytes, must have at most %d", len(header), maxHeader)
	}
	return header, sizes, nil
}

func checkSource(t Source) (size int64, err error) {
	if t.Name == metadataKey {
		return 0, errors.New("the format reserves this name")
	}
	if !utf8.ValidString(t.Name) {
		return 0, errors.New("the name is not valid UTF-8")
	}
	dtype := dtypeIndex(t.DType)
	if dtype < 0 {
		return 0, fmt.Errorf("unknown dtype %s", quote(t.DType))
	}
	return byteSize(dtype, t.Shape)
}

// entry is a tensor's value in the header.
type entry struct {
	DType   string   `json:"dtype"`
	Shape   []int64  `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

func appendJSON(b []byte, value any) []byte {
	text, _ := json.Marshal(value) // never fails for strings and numbers
	return append(b, text...)
}

// exactWriter rejects writes beyond the tensor's size in the header.
type exactWriter struct {
	w    io.Writer
	left int64
}

func (e *exactWriter) Write(p []byte) (int, error) {
	if int64(len(p)) > e.left {
		return 0, fmt.Errorf("data exceeds the tensor's shape: got %d more bytes, expected %d", len(p), e.left)
	}
	n, err := e.w.Write(p)
	e.left -= int64(n)
	return n, err
}
