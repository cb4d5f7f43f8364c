package safetensors

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
)

// File is an open safetensors file. The header is in memory, the tensors are on
// disk. Its methods are safe for concurrent use.
type File struct {
	name     string // for error messages
	r        io.ReaderAt
	closer   io.Closer // nil if the caller owns r
	tensors  []Tensor
	index    map[string]int
	metadata map[string]string
}

// Open reads and checks the header of the file at path. It reads no tensor. The
// caller must close the File.
func Open(path string) (*File, error) {
	f, size, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	file, err := newFile(path, f, size)
	if err != nil {
		f.Close()
		return nil, err
	}
	file.closer = f
	return file, nil
}

// openRegular opens a regular file and returns its size. It checks the type
// first, because opening a named pipe blocks until there is a writer.
func openRegular(path string) (f *os.File, size int64, err error) {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: not a regular file", path)
	}
	if err != nil {
		return nil, 0, err
	}
	if f, err = os.Open(path); err != nil {
		return nil, 0, err
	}
	if info, err = f.Stat(); err != nil { // the size of the opened file: path may have changed
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}

// NewReader returns a File that reads from r, which has size bytes. Closing the
// File does not close r.
func NewReader(r io.ReaderAt, size int64) (*File, error) {
	return newFile("safetensors", r, size)
}

func newFile(name string, r io.ReaderAt, size int64) (*File, error) {
	f := &File{name: name, r: r}
	if err := f.readHeader(size); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return f, nil
}

func (f *File) readHeader(size int64) error {
	if size < 8 {
		return fmt.Errorf("not a safetensors file: it has %d bytes, needs at least 8", size)
	}
	var prefix [8]byte
	if err := readFull(f.r, prefix[:], 0); err != nil {
		return err
	}
	n := binary.LittleEndian.Uint64(prefix[:])
	if n > maxHeader {
		return fmt.Errorf("not a safetensors file: header length is %d bytes, must be at most %d", n, maxHeader)
	}
	if int64(n) > size-8 {
		return fmt.Errorf("file is truncated: header length is %d bytes, file size %d", n, size)
	}
	header := make([]byte, n)
	if err := readFull(f.r, header, 8); err != nil {
		return err
	}
	start := 8 + int64(n)
	var err error
	if f.tensors, f.metadata, err = parseHeader(header, size-start); err != nil {
		return err
	}
	f.index = make(map[string]int, len(f.tensors))
	for i := range f.tensors {
		f.tensors[i].Offset += start
		f.index[f.tensors[i].Name] = i
	}
	return nil
}

// readFull fills dst from offset. If r ends early, readFull returns
// io.ErrUnexpectedEOF, wrapped.
func readFull(r io.ReaderAt, dst []byte, offset int64) error {
	n, err := r.ReadAt(dst, offset)
	if n == len(dst) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("reading %d bytes at %d: %w", len(dst), offset, err)
}

// Tensors returns the tensors in the order of their offsets. Do not modify the
// slice.
func (f *File) Tensors() []Tensor { return f.tensors }

// Tensor returns the tensor with the given name; false if there is none.
func (f *File) Tensor(name string) (Tensor, bool) {
	i, ok := f.index[name]
	if !ok {
		return Tensor{}, false
	}
	return f.tensors[i], true
}

// Metadata returns the header's __metadata__ map, nil if it has none. Do not
// modify the map.
func (f *File) Metadata() map[string]string { return f.metadata }

// ReadInto reads a whole tensor into dst, whose length must be the tensor's
// Size.
func (f *File) ReadInto(name string, dst []byte) error {
	t, ok := f.Tensor(name)
	if !ok {
		return fmt.Errorf("%s: no tensor %s", f.name, quote(name))
	}
	if int64(len(dst)) != t.Size {
		return fmt.Errorf("%s: tensor %s has %d bytes, but the destination has %d", f.name, quote(name), t.Size, len(dst))
	}
	if err := readFull(f.r, dst, t.Offset); err != nil {
		return fmt.Errorf("%s: tensor %s: %w", f.name, quote(name), err)
	}
	return nil
}

// Section returns a reader of one tensor's bytes, for partial or streaming
// reads.
func (f *File) Section(name string) (*io.SectionReader, error) {
	t, ok := f.Tensor(name)
	if !ok {
		return nil, fmt.Errorf("%s: no tensor %s", f.name, quote(name))
	}
	return io.NewSectionReader(f.r, t.Offset, t.Size), nil
}

// Close closes the file that Open opened.
func (f *File) Close() error {
	if f.closer == nil {
		return nil
	}
	return f.closer.Close()
}
