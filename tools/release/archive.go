package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	_ "embed"
	"fmt"
	"strings"
	"time"
)

// archiveReadme is for users of the command, who have no checkout and no Go.
//
//go:embed archive.md
var archiveReadme string

// archive returns a target's archive: a zip file on Windows, else a compressed tar file. An archive has
// one top-level folder.
func (s *source) archive(c *contents) (file, error) {
	base := fmt.Sprintf("octet-%s-%s", s.version, c.target)
	readme := strings.ReplaceAll(archiveReadme, "VERSION", s.version)
	if c.os == "windows" {
		readme = strings.ReplaceAll(readme, "./octet", `.\octet`)
	}
	files := []file{
		{name: base + "/" + c.command(), content: c.content, mode: 0o755},
		{name: base + "/README.md", content: []byte(readme), mode: 0o644},
		{name: base + "/THIRD_PARTY_LICENSES", content: c.licenses(), mode: 0o644},
	}
	if c.os == "windows" {
		content, err := zipOf(files, s.time)
		return file{name: base + ".zip", content: content}, err
	}
	raw, err := tarOf(files, s.time)
	if err != nil {
		return file{}, err
	}
	var packed bytes.Buffer
	z, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return file{}, err
	}
	if _, err := z.Write(raw); err != nil {
		return file{}, err
	}
	err = z.Close()
	return file{name: base + ".tar.gz", content: packed.Bytes()}, err
}

// tarOf returns a tar file whose entries all have a time.
func tarOf(files []file, at time.Time) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Mode: int64(f.mode), Size: int64(len(f.content)), ModTime: at, Uid: f.owner, Gid: f.owner, Format: tar.FormatPAX}
		if strings.HasSuffix(f.name, "/") {
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
