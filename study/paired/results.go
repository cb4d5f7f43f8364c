package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// result holds the losses of one run, in nats per byte: the training loss of every step,
// and the validation loss at the end.
type result struct {
	Train []float64 `json:"train"`
	Val   float64   `json:"val"`
}

// runName names a run. Text is the corpus's SHA-256 and ValBytes the length of its
// validation part.
type runName struct {
	Variant  string `json:"variant"`
	Seed     int    `json:"seed"`
	Steps    int    `json:"steps"`
	Text     string `json:"text"`
	ValBytes int64  `json:"val_bytes"`
}

// record is one line of a file of results.
type record struct {
	runName
	result
}

// finished are the results of finished runs, in a file to which each run adds a line. A
// line that a crash cut off does not count. The file does not know the version of the
// program: it serves one version.
type finished struct {
	mu      sync.Mutex
	results map[runName]result
	file    *os.File // nil: nothing is stored
}

// openResults reads the results of earlier calls; name "" stores nothing.
func openResults(name string) (*finished, error) {
	f := &finished{results: map[runName]result{}}
	if name == "" {
		return f, nil
	}
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	f.file = file
	size, err := f.read()
	if err == nil {
		err = file.Truncate(size)
	}
	if err == nil {
		_, err = file.Seek(size, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", name, err), file.Close())
	}
	return f, nil
}

// read returns the size of the whole lines.
func (f *finished) read() (size int64, err error) {
	lines := bufio.NewReader(f.file)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return size, nil
		}
		if err != nil {
			return 0, err
		}
		var r record
		if err := json.Unmarshal(line, &r); err != nil {
			return 0, fmt.Errorf("byte %d: no line of results: %w", size, err)
		}
		f.results[r.runName] = r.result
		size += int64(len(line))
	}
}

func (f *finished) lookup(name runName) (result, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, ok := f.results[name]
	return r, ok
}

func (f *finished) add(name runName, r result) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.results[name] = r
	if f.file == nil {
		return nil
	}
	line, err := json.Marshal(record{name, r})
	if err == nil {
		_, err = f.file.Write(append(line, '\n'))
	}
	return err
}

func (f *finished) close() error {
	if f.file == nil {
		return nil
	}
	return f.file.Close()
}
