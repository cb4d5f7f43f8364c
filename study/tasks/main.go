// Command tasks writes two tasks for octet eval --task from the validation text of runs that
// train on the source of Go. Models that are too small for a published data set can be scored
// on them:
//
//	continuation.jsonl   choose the continuation of a context among four, as in HellaSwag
//	lastword.jsonl       predict an identifier that the context has already, as in LAMBADA
//
// The documents follow from the text alone: the same version of Go gives the same files.
//
//	go run ./study/tasks -o sweeps/tasks
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"octet/internal/disk"
	"octet/internal/task"
	"octet/study/internal/start"
)

func main() {
	log.SetFlags(0)
	dir := flag.String("o", "", "folder to write the task files to")
	n := flag.Int("n", 500, "documents of each task")
	valBytes := flag.Int64("val_bytes", 200_000, "data.val_bytes of the runs")
	flag.Parse()
	if err := write(context.Background(), *dir, *n, *valBytes); err != nil {
		log.Fatal(err)
	}
}

// write writes n documents of each task to dir.
func write(ctx context.Context, dir string, n int, valBytes int64) error {
	if dir == "" || n < 1 {
		return errors.New("expected a folder, such as -o sweeps/tasks, and a positive -n")
	}
	corpus, version, err := start.Corpus(ctx, valBytes)
	if err != nil {
		return err
	}
	_, text, ok := corpus.Text()
	if !ok {
		return errors.New("the text of Go's source is not in memory")
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	for _, t := range []struct {
		name string
		kind task.Kind
		from func([]byte, int) ([]task.Document, error)
	}{
		{"continuation", task.Choice, continuations},
		{"lastword", task.Cloze, lastWords},
	} {
		documents, err := t.from(text, n)
		if err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
		lines, err := encode(task.Header{Version: task.Version, Kind: t.kind, Name: t.name}, documents)
		if err != nil {
			return err
		}
		name := filepath.Join(dir, t.name+".jsonl")
		if err := disk.WriteAtomic(name, lines); err != nil {
			return err
		}
		fmt.Printf("%s: %d documents from %d bytes held out from the source of %s\n", name, n, len(text), version)
	}
	return corpus.Close()
}

// encode returns the lines of a task file.
func encode(h task.Header, documents []task.Document) ([]byte, error) {
	var lines bytes.Buffer
	e := json.NewEncoder(&lines)
	e.SetEscapeHTML(false)
	if err := e.Encode(h); err != nil {
		return nil, err
	}
	for _, d := range documents {
		if err := e.Encode(d); err != nil {
			return nil, err
		}
	}
	return lines.Bytes(), nil
}
