package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"octet/backend"
	_ "octet/backend/emu" // scores the models
	"octet/infer"
	"octet/internal/disk"
	"octet/internal/runs"
	"octet/internal/task"
	"octet/run"
)

// score is the result of a run.
type score struct {
	// Tasks, the SHA-256 of the task files, and the loss tell whether a stored score is still
	// that of the run.
	Tasks   string             `json:"tasks_sha256"`
	ValLoss float64            `json:"val_loss"`
	Metrics map[string]float64 `json:"metrics"` // "continuation acc"
}

// taskNames are the files of study/tasks.
var taskNames = []string{"continuation", "lastword"}

// taskFile is the content of a task file.
type taskFile struct {
	task.Header
	documents []*task.Document
}

// readTasks reads the task files and returns their SHA-256.
func readTasks(dir string) (files []taskFile, sum string, err error) {
	hash := sha256.New()
	for _, name := range taskNames {
		path := filepath.Join(dir, name+".jsonl")
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, "", err
		}
		hash.Write(text)
		var f taskFile
		var p task.Parser
		for line := range bytes.Lines(text) {
			d, err := p.Parse(bytes.TrimSpace(line))
			if err != nil {
				return nil, "", fmt.Errorf("%s: %w", path, err)
			}
			if d != nil {
				f.documents = append(f.documents, d)
			}
		}
		f.Header = p.Header
		files = append(files, f)
	}
	return files, hex.EncodeToString(hash.Sum(nil)), nil
}

// scoreOf returns the score of a run as stored in a file, or computes and stores it.
func scoreOf(ctx context.Context, r *runs.Run, file string, files []taskFile, sum string, threads int) (*score, error) {
	loss, ok := r.Metrics["val_loss"].Last()
	if !ok || !r.Done() {
		return nil, fmt.Errorf("%s is not done: run octet sweep again to resume it", r.Dir)
	}
	text, err := os.ReadFile(file)
	if err == nil {
		var s score
		if err := json.Unmarshal(text, &s); err != nil {
			return nil, fmt.Errorf("%s is damaged: %w; remove it", file, err)
		}
		if s.Tasks == sum && s.ValLoss == loss {
			return &s, nil
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	metrics, err := evaluate(ctx, r.Dir, files, threads)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.Dir, err)
	}
	s := &score{sum, loss, metrics}
	if text, err = json.MarshalIndent(s, "", "  "); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
		return nil, err
	}
	return s, disk.WriteAtomic(file, append(text, '\n'))
}

// evaluate scores a run in its own recipe, with its saved scales, as octet eval --task does.
func evaluate(ctx context.Context, dir string, files []taskFile, threads int) (metrics map[string]float64, err error) {
	w, err := run.OpenWeights(dir, "")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	tok, err := w.Tokenizer()
	if err != nil {
		return nil, err
	}
	prefix, err := task.PrefixToken(tok)
	if err != nil {
		return nil, err
	}
	windows := infer.Windows{Batch: w.Run.Train.MicroBatch, Seq: w.Run.Data.Seq}
	e, err := task.NewEncoder(tok.Tokenizer, prefix, windows.Seq)
	if err != nil {
		return nil, err
	}
	var all []infer.Row
	counts := make([][]int, len(files)) // of the rows of each document
	for i, f := range files {
		for _, d := range f.documents {
			rows, err := e.Rows(f.Header, d)
			if err != nil {
				return nil, err
			}
			all, counts[i] = append(all, rows...), append(counts[i], len(rows))
		}
	}
	dev, err := backend.Open("emu", backend.Options{Threads: threads})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	scorer, err := infer.NewScorer(ctx, w.Model, w.Recipe, w, dev, windows, all, nil)
	if err != nil {
		return nil, err
	}
	scores, err := scorer.Score(ctx, all, nil)
	if err != nil {
		return nil, err
	}
	metrics = map[string]float64{}
	for i, f := range files {
		var results []task.Result
		for j, d := range f.documents {
			results = append(results, task.NewResult(f.Header, d, scores[:counts[i][j]]))
			scores = scores[counts[i][j]:]
		}
		for _, m := range task.Metrics(f.Kind, results) {
			metrics[f.Name+" "+m.Name] = m.Value
		}
	}
	return metrics, nil
}
