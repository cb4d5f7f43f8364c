package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// archive returns the name and the content of a target's archive: a zip file on Windows, else a
// compressed tar file. All is in one folder.
func (s *source) archive(b *binary, licenses []byte) (name string, content []byte, err error) {
	base := fmt.Sprintf("octet-%s-%s", s.version, b.target)
	readme, err := os.ReadFile(filepath.Join(s.dir, "README.md"))
	if err != nil {
		return "", nil, err
	}
	files := []file{
		{base + "/" + b.command(), b.content, 0o755},
		{base + "/README.md", readme, 0o644},
		{base + "/THIRD_PARTY_LICENSES", licenses, 0o644},
	}
	if b.os == "windows" {
		content, err = zipOf(files, s.time)
		return base + ".zip", content, err
	}
	raw, err := tarOf(files, s.time, 0)
	if err != nil {
		return "", nil, err
	}
	var packed bytes.Buffer
	z, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return "", nil, err
	}
	if _, err := z.Write(raw); err != nil {
		return "", nil, err
	}
	err = z.Close()
	return base + ".tar.gz", packed.Bytes(), err
}

// tarOf returns a tar file whose entries all have a time and an owner. Names that end in a slash
// are folders.
func tarOf(files []file, at time.Time, owner int) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Mode: int64(f.mode), Size: int64(len(f.content)), ModTime: at, Uid: owner, Gid: owner, Format: tar.FormatPAX}
		if f.name[len(f.name)-1] == '/' {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}

// zipOf returns a zip file whose entries all have a time.
func zipOf(files []file, at time.Time) ([]byte, error) {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for _, f := range files {
		h := &zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: at}
		h.SetMode(f.mode)
		to, err := w.CreateHeader(h)
		if err != nil {
			return nil, err
		}
		if _, err := to.Write(f.content); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}
