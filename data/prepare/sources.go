package prepare

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"octet/data"
)

// format is the format of a source.
type format uint8

const (
	text  format = iota // the file is a document
	lines               // a line is a document
	rows                // of Parquet: a row is a document
	unread
)

// source is a file to read.
type source struct {
	Path     string `json:"path"`
	Bytes    int64  `json:"bytes"`
	Modified int64  `json:"modified"` // nanoseconds since 1970
	Named    bool   `json:"named"`    // not found in a folder

	format      format
	compression string // suffix of the name; "": none
}

// describe sets the format, which the name tells.
func (s *source) describe() {
	name := strings.ToLower(filepath.Base(s.Path))
	for _, suffix := range []string{".gz", ".zst"} {
		if rest, ok := strings.CutSuffix(name, suffix); ok {
			s.compression, name = suffix, rest
			break
		}
	}
	ext := filepath.Ext(name)
	switch {
	case slices.Contains([]string{".jsonl", ".ndjson"}, ext):
		s.format = lines
	case ext == ".parquet" && s.compression == "":
		s.format = rows
	case s.compression != "" && !slices.Contains([]string{".txt", ".md"}, ext):
		s.format = unread
	}
}

const whatIsRead = "octet reads text files, .jsonl and .ndjson, both also as .gz and .zst (.txt.gz, .md.gz, .jsonl.gz), and .parquet"

// findSources returns the files to read and the number of those in folders that are left out.
func findSources(o *Options) (list []source, leftOut int64, err error) {
	files, err := data.FindFiles(o.Sources, o.Out)
	if err != nil {
		return nil, 0, &InputError{err}
	}
	for _, f := range files {
		info, err := os.Stat(f.Path)
		if err != nil {
			return nil, 0, &InputError{err}
		}
		s := source{Path: f.Path, Bytes: info.Size(), Modified: info.ModTime().UnixNano(), Named: f.Named}
		s.describe()
		if s.format == unread || s.format == text && o.Kind != data.KindDocuments {
			if s.Named {
				if s.format == text {
					return nil, 0, badInput("%s: kind %s reads JSON lines (.jsonl, .ndjson) and .parquet, not text files", s.Path, o.Kind)
				}
				return nil, 0, badInput("%s: %s", s.Path, whatIsRead)
			}
			leftOut++
			continue
		}
		list = append(list, s)
	}
	if len(list) == 0 {
		return nil, 0, badInput("%s: no file to read: %s", o.Sources[0], whatIsRead)
	}
	return list, leftOut, nil
}

// opened is an open source. It counts the bytes of the file that were read.
type opened struct {
	file   *os.File
	source *source
	text   io.Reader // decompressed
	read   int64
	failed error // of the system, from reading the file
	close  func()
}

// note keeps an error of the system: decompressors and the Parquet library may hide it.
func (o *opened) note(err error) {
	if err != nil && !errors.Is(err, io.EOF) {
		o.failed = fmt.Errorf("%s: %w", o.source.Path, err)
	}
}

// ReadAt implements io.ReaderAt.
func (o *opened) ReadAt(p []byte, offset int64) (int, error) {
	if offset < 0 { // from a damaged table; the system would refuse it
		return 0, io.ErrUnexpectedEOF
	}
	n, err := o.file.ReadAt(p, offset)
	o.note(err)
	return n, err
}

// open opens a source that has not changed since it was found.
func (s *source) open() (*opened, error) {
	f, err := os.Open(s.Path)
	if err != nil { // it was there when it was found
		return nil, err
	}
	o := &opened{file: f, source: s, close: func() { _ = f.Close() }} // it was only read
	if err := o.unchanged(); err != nil {
		o.close()
		return nil, err
	}
	raw := readerFunc(func(p []byte) (int, error) {
		n, err := f.Read(p)
		o.read += int64(n)
		o.note(err)
		return n, err
	})
	switch s.compression {
	case ".gz":
		var z *gzip.Reader
		if z, err = gzip.NewReader(raw); err == nil {
			o.text = z
		}
	case ".zst":
		var z *zstd.Decoder
		if z, err = zstd.NewReader(raw, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow)); err == nil {
			o.text, o.close = z, func() { z.Close(); _ = f.Close() }
		}
	default:
		o.text = raw
	}
	if err != nil {
		o.close()
		return nil, o.damaged(err)
	}
	return o, nil
}

// maxWindow bounds the memory of zstd in bytes: that of zstd --long=27.
const maxWindow = 128 << 20

// damaged returns the error for a file that cannot be decompressed or read.
func (o *opened) damaged(err error) error {
	s := o.source
	switch {
	case o.failed != nil:
		return o.failed
	case s.compression == "":
		return fmt.Errorf("%s: %w", s.Path, err)
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return badInput("%s is truncated: copy it again", s.Path)
	case errors.Is(err, zstd.ErrWindowSizeExceeded):
		return badInput("%s needs a window above %d MiB: compress it again, without --long or with --long=27", s.Path, maxWindow>>20)
	}
	return badInput("%s is damaged, or not a %s file: %w", s.Path, s.compression, err)
}

// unchanged returns an error if the file is not the one that was found.
func (o *opened) unchanged() error {
	info, err := o.file.Stat()
	if err != nil {
		return err
	}
	if s := o.source; info.Size() != s.Bytes || info.ModTime().UnixNano() != s.Modified {
		return badInput("%s changed while it was read: start again when no program writes to it", s.Path)
	}
	return nil
}

type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
