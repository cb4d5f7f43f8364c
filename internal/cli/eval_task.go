package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"octet/backend"
	"octet/data"
	"octet/infer"
	"octet/internal/disk"
	"octet/internal/task"
	"octet/internal/writers"
	"octet/recipe"
	"octet/run"
)

// scoredTasks is the result of eval --task.
type scoredTasks struct {
	Path       string      `json:"path"`
	Recipe     string      `json:"recipe"`
	Window     int         `json:"window"` // tokens
	Calibrated int64       `json:"calibration_tokens,omitempty"`
	Tasks      []taskScore `json:"tasks"`
}

// taskScore is the result of a task.
type taskScore struct {
	Name      string        `json:"name"`
	Kind      task.Kind     `json:"kind"`
	Documents int           `json:"documents"`
	Metrics   []metricScore `json:"metrics"`
	metrics   []task.Metric
}

type metricScore struct {
	Name   string         `json:"name"`
	Value  writers.Float  `json:"value"`
	StdErr writers.Float  `json:"stderr"`
	Above  *writers.Float `json:"above,omitempty"`        // the value of the unquantized model
	Paired *writers.Float `json:"above_stderr,omitempty"` // of Above, over documents
}

// taskSet is the documents of task files with their rows of tokens.
type taskSet struct {
	files   []taskFile
	rows    []infer.Row   // of all documents
	windows infer.Windows // Seq bounds the tokens of a row, Batch·Seq those of a batch
}

type taskFile struct {
	task.Header
	documents []*task.Document
	rows      []int // number of rows of each document
}

// errEnough ends the reading of a file.
var errEnough = errors.New("enough")

// checkTaskFlags returns an error for flags that need --task.
func (c evalCmd) checkTaskFlags() error {
	switch {
	case len(c.Task) == 0 && (c.Samples != "" || c.Limit != 0 || c.PrefixToken != nil):
		return errors.New("--samples, --limit and --prefix-token need --task FILE")
	case len(c.Task) > 0 && c.Sharp:
		return errors.New("--sharpness is of a text: give it without --task")
	case c.Limit < 0:
		return fmt.Errorf("--limit %d: expected a positive number", c.Limit)
	}
	return nil
}

// readTasks reads the task files for a model.
func (c evalCmd) readTasks(w *run.Weights) (*taskSet, error) {
	seq := c.Seq
	if w.Run == nil {
		seq = cmp.Or(seq, w.HF.MaxPositionEmbeddings)
	}
	windows := sizesOf(w, seq)
	if windows.Seq < 1 || windows.Seq > 1<<20 {
		return nil, fmt.Errorf("--seq %d: expected a number from 1 to 2^20", windows.Seq)
	}
	tok, err := w.Tokenizer()
	if err != nil {
		return nil, err
	}
	var prefix int32
	if c.PrefixToken != nil {
		if prefix = *c.PrefixToken; prefix < 0 || int(prefix) >= w.Model.Vocab {
			return nil, fmt.Errorf("--prefix-token %d: expected an id of the vocabulary, 0 to %d", prefix, w.Model.Vocab-1)
		}
	} else if prefix, err = task.PrefixToken(tok); err != nil {
		return nil, err
	}
	e, err := task.NewEncoder(tok.Tokenizer, prefix, windows.Seq)
	if err != nil {
		return nil, err
	}
	s := &taskSet{windows: windows}
	for _, path := range c.Task {
		if err := s.read(path, e, c.Limit); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// read adds at most limit documents of a task file; 0: all.
func (s *taskSet) read(path string, e *task.Encoder, limit int) error {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	var p task.Parser
	var f taskFile
	err = eachLine(in, path, func(line []byte) error {
		d, err := p.Parse(line)
		if d == nil || err != nil {
			return err
		}
		rows, err := e.Rows(p.Header, d)
		if err != nil {
			return err
		}
		f.documents, f.rows, s.rows = append(f.documents, d), append(f.rows, len(rows)), append(s.rows, rows...)
		if len(f.documents) == limit {
			return errEnough
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return err
	}
	if len(f.documents) == 0 {
		return fmt.Errorf("%s has no documents", path)
	}
	f.Header = p.Header
	s.files = append(s.files, f)
	return nil
}

// results returns the outcomes of the documents of each file.
func (s *taskSet) results(scores []infer.Score) (list [][]task.Result) {
	for _, f := range s.files {
		var results []task.Result
		for i, d := range f.documents {
			results = append(results, task.NewResult(f.Header, d, scores[:f.rows[i]]))
			scores = scores[f.rows[i]:]
		}
		list = append(list, results)
	}
	return list
}

// scores returns the metrics of outcomes, and how much they exceed base, unless that is nil.
func (s *taskSet) scores(results [][]task.Result, base []taskScore) (list []taskScore) {
	for i, f := range s.files {
		t := taskScore{Name: f.Name, Kind: f.Kind, Documents: len(f.documents), metrics: task.Metrics(f.Kind, results[i])}
		for j, m := range t.metrics {
			score := metricScore{Name: m.Name, Value: writers.Float(m.Value), StdErr: writers.Float(m.StdErr)}
			if base != nil {
				above, stdErr := m.Difference(base[i].metrics[j])
				score.Above, score.Paired = (*writers.Float)(&above), (*writers.Float)(&stdErr)
			}
			t.Metrics = append(t.Metrics, score)
		}
		list = append(list, t)
	}
	return list
}

// sample is a line of --samples.
type sample struct {
	Task         string `json:"task"`
	Document     int    `json:"document"` // from 0
	Quantization string `json:"quantization,omitempty"`
	task.Result
}

// appendSamples appends a line for each document.
func (s *taskSet) appendSamples(to *bytes.Buffer, quantization string, results [][]task.Result) error {
	e := json.NewEncoder(to)
	e.SetEscapeHTML(false)
	for i, f := range s.files {
		for j, r := range results[i] {
			if err := e.Encode(sample{f.Name, j, quantization, r}); err != nil {
				return err
			}
		}
	}
	return nil
}

// saveSamples writes --samples.
func (c evalCmd) saveSamples(lines *bytes.Buffer) error {
	if c.Samples == "" {
		return nil
	}
	return disk.WriteAtomic(c.Samples, lines.Bytes())
}

// score scores the rows with weights on a device. open returns text from which missing scales are
// measured, and its windows; nil: there is none.
func (s *taskSet) score(ctx context.Context, t *terminal, w *run.Weights, weights infer.Weights, r recipe.Recipe, dev backend.Backend, open func() (data.Tokens, infer.Windows, error)) (scores []infer.Score, calibrated int64, err error) {
	scorer, err := infer.NewScorer(ctx, w.Model, r, weights, dev, s.windows, s.rows, nil)
	if errors.Is(err, infer.ErrNoScales) && open != nil { // nothing is loaded yet
		var calibration data.Tokens
		var windows infer.Windows
		if calibration, windows, err = open(); err == nil {
			scorer, err = infer.NewScorer(ctx, w.Model, r, weights, dev, windows, s.rows, calibration)
		}
	}
	if err != nil {
		return nil, 0, modelError(err)
	}
	p := t.startProgress(int64(len(s.rows)), "rows")
	defer p.close()
	scores, err = scorer.Score(ctx, s.rows, func(done int) { p.set(int64(done), nil) })
	return scores, scorer.Calibrated, err
}

// tasks scores the task files in one precision.
func (c evalCmd) tasks(ctx context.Context, t *terminal) (err error) {
	w, err := run.OpenWeights(c.Model, c.Recipe)
	if err != nil {
		return badInput(err)
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	t.reportSkipped(w.Skipped)
	set, err := c.readTasks(w)
	if err != nil {
		return badInput(err)
	}
	dev, err := c.open()
	if err != nil {
		return badInput(err)
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	var corpus *data.Corpus
	defer func() {
		if corpus != nil {
			err = errors.Join(err, corpus.Close())
		}
	}()
	d := memoryLimited{compileNotice{dev, t.err}, "the evaluation", "use a smaller --seq, or a machine with more memory"}
	scores, calibrated, err := set.score(ctx, t, w, w, w.Recipe, d, func() (_ data.Tokens, windows infer.Windows, err error) {
		if corpus, err = corpusOf(ctx, t, w, c.Data, "text for scales"); err != nil {
			return nil, windows, err
		}
		windows, err = windowsOf(w, set.windows.Seq, corpus)
		return corpus.Train, windows, err
	})
	if err != nil {
		return err
	}
	results := set.results(scores)
	var lines bytes.Buffer
	if err := set.appendSamples(&lines, "", results); err != nil {
		return err
	}
	if err := c.saveSamples(&lines); err != nil {
		return err
	}
	s := scoredTasks{w.Path, w.Recipe.Name, set.windows.Seq, calibrated, set.scores(results, nil)}
	if c.JSON {
		return json.NewEncoder(t.out).Encode(s)
	}
	fmt.Fprintf(prose(t.out), "checkpoint  %s\nrecipe      %s\nwindow      %s tokens\n", s.Path, s.Recipe, writers.Count(int64(s.Window)))
	if s.Calibrated > 0 {
		fmt.Fprintf(prose(t.out), "scales      measured on %s tokens\n", writers.Count(s.Calibrated))
	}
	fmt.Fprintln(t.out)
	rows := table{columns: []column{{head: "task"}, {head: "documents", optional: true}, {head: "metric"}, {head: "value"}, {head: "± standard error", short: "±"}}}
	for _, task := range s.Tasks {
		for _, m := range task.Metrics {
			rows.add(task.Name, fmt.Sprint(task.Documents), m.Name, figure(m.Value), figure(m.StdErr))
		}
	}
	return rows.print(t.out)
}

// printTasks prints a table for each task: the scores of each precision, beside those of the
// unquantized model.
func printTasks(t *terminal, e evaluated) error {
	for i, task := range e.Tasks {
		fmt.Fprintf(prose(t.out), "\n%s, %s documents\n", task.Name, writers.Count(int64(task.Documents)))
		rows := table{columns: []column{{head: "metric"}, {head: "quantization"}, {head: "value"}, {head: "above"}, {head: "± standard error", short: "±"}}}
		for j, m := range task.Metrics {
			rows.add(m.Name, "none", figure(m.Value), "", "")
			for _, r := range e.Quantized {
				q := r.Tasks[i].Metrics[j]
				rows.add(m.Name, r.Quantization, figure(q.Value), signed(*q.Above), figure(*q.Paired))
			}
		}
		if err := rows.print(t.out); err != nil {
			return err
		}
	}
	return nil
}

// figure formats a metric; the perplexity of a model that knows nothing may have many digits.
func figure(x writers.Float) string {
	if x > -1e5 && x < 1e5 {
		return fmt.Sprintf("%.4f", x)
	}
	return fmt.Sprintf("%.3e", x)
}

func signed(x writers.Float) string {
	if s := figure(x); s[0] == '-' {
		return s
	}
	return "+" + figure(x)
}
