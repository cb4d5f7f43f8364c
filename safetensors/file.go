package safetensors

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
)

// File is an open safetensors file: its header in memory, its tensors on disk.
// Its methods may be called from several goroutines.
type File struct {
	name     string // for messages
	r        io.ReaderAt
	closer   io.Closer // nil: the bytes belong to the caller
	tensors  []Tensor
	index    map[string]int
	metadata map[string]string
}

// Open reads and checks the header of the file at path; no tensor is read.
// The caller closes the File.
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

// openRegular opens a file and returns its size. It looks before it opens: to
// open a named pipe is to wait for whoever writes into it.
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
	if info, err = f.Stat(); err != nil { // of what was opened
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}

// NewReader is Open for the size bytes that r holds. Closing the File does not
// close r.
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
		return fmt.Errorf("%d bytes are too few for a safetensors file", size)
	}
	var prefix [8]byte
	if err := readFull(f.r, prefix[:], 0); err != nil {
		return err
	}
	n := binary.LittleEndian.Uint64(prefix[:])
	if n > maxHeader {
		return fmt.Errorf("header of %d bytes: at most %d are allowed; this is not a safetensors file", n, maxHeader)
	}
	if int64(n) > size-8 {
		return fmt.Errorf("header of %d bytes in a file of %d: it was cut short", n, size)
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

// readFull fills dst from offset; running out of bytes is an error, whatever
// the ReaderAt calls it.
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

// Tensors lists the tensors in the order of their bytes. The slice is the
// File's own: read it, don't write it.
func (f *File) Tensors() []Tensor { return f.tensors }

// Tensor finds a tensor by name.
func (f *File) Tensor(name string) (Tensor, bool) {
	i, ok := f.index[name]
	if !ok {
		return Tensor{}, false
	}
	return f.tensors[i], true
}

// Metadata is the header's string map, nil if it has none. The map is the
// File's own.
func (f *File) Metadata() map[string]string { return f.metadata }

// ReadInto reads a whole tensor into dst, whose length must be the tensor's
// Size.
func (f *File) ReadInto(name string, dst []byte) error {
	t, ok := f.Tensor(name)
	if !ok {
		return fmt.Errorf("%s: no tensor %s", f.name, quote(name))
	}
	if int64(len(dst)) != t.Size {
		return fmt.Errorf("%s: tensor %s has %d bytes, the destination %d", f.name, quote(name), t.Size, len(dst))
	}
	if err := readFull(f.r, dst, t.Offset); err != nil {
		return fmt.Errorf("%s: tensor %s: %w", f.name, quote(name), err)
	}
	return nil
}

// Section returns a reader of one tensor's bytes, for those who want a part of
// it or a stream.
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
