package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"text/tabwriter"

	"octet/data"
	"octet/infer"
	"octet/internal/writers"
	"octet/run"
	"octet/train"
)

// textFlags name the text or tokens that a model is evaluated on.
type textFlags struct {
	Data []string `placeholder:"PATH" sep:"none" help:"Text or tokens to evaluate on: all of a file or folder, the held-out part of one that data prepare wrote; may be repeated; default: the run's validation data."`
	Seq  int      `placeholder:"N" help:"Tokens in a window; default: that of the run, or 256; with --task, for a model without a run: its max_position_embeddings."`
}

type evalCmd struct {
	Model  string   `arg:"" name:"run or checkpoint" help:"A run folder, a checkpoint, or a Hugging Face folder."`
	Recipe string   `placeholder:"NAME|FILE" help:"Evaluate in another precision: a recipe such as fp32, or a recipe file; default: the run's recipe."`
	Quant  []string `aliases:"ladder" xor:"losses" placeholder:"NAME" help:"Evaluate the model quantized after training, and print the loss above the unquantized model: w8a8-fp8, w4a16-g128 and others above; --ladder is the same flag."`
	textFlags

	Task        []string `placeholder:"FILE" help:"Score the documents of a task file instead, by the rules of lm-evaluation-harness; with --quant, besides. octet data task writes such files."`
	Limit       int      `placeholder:"N" help:"Read the first N documents of each task file."`
	Samples     string   `placeholder:"FILE" help:"Write the log-likelihoods of each document to a file of JSON lines."`
	PrefixToken *int32   `placeholder:"ID" help:"The token before texts without a context; default: BOS, or else EOS."`

	Sharp bool `name:"sharpness" xor:"losses" help:"Also print the sharpness of the loss around the last logits of each window."`
	JSON  bool `help:"Print one JSON object."`
	device
}

// Help returns the text that eval --help adds.
func (evalCmd) Help() string {
	return `Loss is in nats per token. Bits per byte need the model's tokenizer: they are the loss per byte of the text, by which models with different tokenizers compare. A recipe with per-tensor scales takes those of the run. If the run trained with another recipe, the scales are measured first, in 16 batches of its training data, or of --data.

--quant computes what it does not quantize in BF16, or in --recipe fp32. GPTQ (w4a16-g128) and SmoothQuant (-smooth) observe the model on such batches. ` + schemesHelp() + `

The sharpness of a window is 100·(max f(y+z) − f(y)) / (1 + f(y)): y are its last logits, f is the cross-entropy, |z| is at most 5e-4·(|y|+1) for each logit. It is that of arXiv 2405.18710.

Examples:
  octet eval runs/mine
  octet eval runs/mine --data book.txt --recipe fp32
  octet eval runs/mine --quant w8a8-fp8,w4a16-g128,w4a16-g128-rtn
  octet eval runs/mine --recipe fp8-current --sharpness
  octet eval runs/mine --task hellaswag.jsonl,lambada.jsonl
  octet eval runs/mine --task lambada.jsonl --ladder w8a8-fp8,w4a16-g128
  octet eval runs/mine/checkpoints/step-00000200 --json`
}

// evalBatch is the number of windows in a batch for weights without a run. evalTokens
// bounds the tokens of a batch, since a run may have been trained on a larger machine.
const (
	evalBatch  = 8
	evalTokens = 1 << 15
)

type evaluated struct {
	Path        string         `json:"path"`
	Recipe      string         `json:"recipe"`
	Tokens      int64          `json:"tokens"`
	Loss        writers.Float  `json:"loss"` // nats per token
	Perplexity  writers.Float  `json:"perplexity"`
	BitsPerByte *writers.Float `json:"bits_per_byte,omitempty"` // with a tokenizer only
	Sharpness   *writers.Float `json:"sharpness,omitempty"`
	Calibrated  int64          `json:"calibration_tokens,omitempty"`
	Quantized   []rung         `json:"quantized,omitempty"`
	Tasks       []taskScore    `json:"tasks,omitempty"` // of the unquantized model
}

func (c evalCmd) Run(ctx context.Context, t *terminal) (err error) {
	if err := c.checkTaskFlags(); err != nil {
		return badInput(err)
	}
	switch {
	case len(c.Quant) > 0:
		return c.ladder(ctx, t)
	case len(c.Task) > 0:
		return c.tasks(ctx, t)
	}
	w, err := run.OpenWeights(c.Model, c.Recipe)
	if err != nil {
		return badInput(err)
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	t.reportSkipped(w.Skipped)
	corpus, stream, windows, err := c.openText(ctx, t, w)
	if err != nil {
		return badInput(err)
	}
	defer func() { err = errors.Join(err, corpus.Close()) }()
	counted, err := countedTokens(stream, windows)
	if err != nil {
		return badInput(err)
	}
	dev, err := c.open()
	if err != nil {
		return badInput(err)
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	d := memoryLimited{compileNotice{dev, t.err}, "the evaluation", "use a smaller --seq, or a machine with more memory"}
	open := infer.NewEvaluator
	if c.Sharp {
		open = infer.NewSharpnessEvaluator
	}
	evaluator, err := open(ctx, w.Model, w.Recipe, w, d, windows, corpus.Train)
	if err != nil {
		return modelError(err)
	}
	p := t.startProgress(counted, "tokens")
	loss, err := evaluator.Evaluate(ctx, stream, func(done, _ int64, mean float64) { p.set(done, &mean) })
	p.close()
	if err != nil {
		return err
	}
	e := evaluated{
		Path: w.Path, Recipe: w.Recipe.Name, Tokens: counted,
		Loss: writers.Float(loss), Perplexity: writers.Float(math.Exp(loss)),
		Calibrated: evaluator.Calibrated,
	}
	if e.BitsPerByte, err = bitsPerByte(loss, stream, w); err != nil {
		return err
	}
	if c.Sharp {
		sharpness := writers.Float(evaluator.Sharpness)
		e.Sharpness = &sharpness
	}
	if c.JSON {
		return json.NewEncoder(t.out).Encode(e)
	}
	tw := tabwriter.NewWriter(t.out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "checkpoint\t%s\nrecipe\t%s\ntokens\t%s\n", e.Path, e.Recipe, writers.Count(e.Tokens))
	if e.Calibrated > 0 {
		of := "the data's training part"
		if len(c.Data) > 0 {
			of = "--data"
		}
		fmt.Fprintf(tw, "scales\tmeasured on %s tokens of %s\n", writers.Count(e.Calibrated), of)
	}
	fmt.Fprintf(tw, "loss\t%.4f nats per token\nperplexity\t%.3f\n", e.Loss, e.Perplexity)
	if e.BitsPerByte != nil {
		fmt.Fprintf(tw, "bits per byte\t%.4f\n", *e.BitsPerByte)
	}
	if e.Sharpness != nil {
		fmt.Fprintf(tw, "sharpness\t%.4f\n", *e.Sharpness)
	}
	return tw.Flush()
}

// bitsPerByte returns the loss in bits per byte of the text; nil without a tokenizer.
func bitsPerByte(loss float64, stream data.Tokens, w *run.Weights) (*writers.Float, error) {
	tok, err := w.Tokenizer()
	if errors.Is(err, run.ErrNoTokenizer) {
		return nil, nil
	}
	bits := 0.0
	if err == nil {
		bits, err = data.BitsPerByte(loss, stream, tok)
	}
	return (*writers.Float)(&bits), err
}

// countedTokens returns how many tokens of a stream count in the loss.
func countedTokens(stream data.Tokens, windows infer.Windows) (int64, error) {
	sweep, err := data.NewSweep(stream, windows.Seq)
	if err != nil {
		return 0, err
	}
	return sweep.Targets(), nil
}

// openText opens the data, and returns the tokens to evaluate on and their windows. The caller closes
// the corpus.
func (c textFlags) openText(ctx context.Context, t *terminal, w *run.Weights) (corpus *data.Corpus, stream data.Tokens, windows infer.Windows, err error) {
	if corpus, err = corpusOf(ctx, t, w, c.Data, "validation data"); err != nil {
		return nil, nil, windows, err
	}
	if stream, windows, err = c.windows(w, corpus); err != nil {
		return nil, nil, windows, errors.Join(err, corpus.Close())
	}
	return corpus, stream, windows, nil
}

// windows returns the tokens to evaluate on and their windows.
func (c textFlags) windows(w *run.Weights, corpus *data.Corpus) (stream data.Tokens, windows infer.Windows, err error) {
	stream = corpus.Val
	if len(c.Data) > 0 && (corpus.Info.Kind != data.KindPrepared || stream.Len() == 0) {
		stream = corpus.Train
	}
	if stream == nil || stream.Len() == 0 {
		return nil, windows, errors.New("the run's data has no validation part: give data with --data")
	}
	if windows, err = windowsOf(w, c.Seq, corpus); err != nil {
		return nil, windows, err
	}
	seq := windows.Seq
	if seq < 1 || seq > 1<<20 {
		return nil, windows, fmt.Errorf("--seq %d: expected a number from 1 to 2^20", seq)
	}
	if n := stream.Len(); n <= int64(seq) {
		return nil, windows, fmt.Errorf("%s tokens are too few to evaluate in windows of %d: give more text with --data, or a smaller --seq", writers.Count(n), seq)
	}
	return stream, windows, nil
}

// sameTokenizer returns an error for data with tokens of another tokenizer than the model's.
func sameTokenizer(w *run.Weights, corpus *data.Corpus, path string) error {
	tok, err := w.Tokenizer()
	switch {
	case errors.Is(err, run.ErrNoTokenizer) || corpus.Tokenizer == nil:
		return nil
	case err != nil:
		return err
	}
	id, differs := tok.Differs(corpus.Tokenizer)
	switch {
	case !differs && corpus.Tokenizer.Vocab() <= w.Model.Vocab:
		return nil
	case corpus.Info.Kind == data.KindText:
		return fmt.Errorf("%s is text, whose tokens are bytes, but %s has a tokenizer of %d tokens: octet data prepare %s --tokenizer %s --val 0 --out DIR makes them; evaluate on DIR", path, w.Path, tok.Vocab(), path, w.Path)
	}
	return fmt.Errorf("%s has the tokens of another tokenizer than %s: id %d is %q there and %q here; prepare it with --tokenizer %s", path, w.Path, id, corpus.Tokenizer.Text(id), tok.Text(id), w.Path)
}

// windowsOf returns windows of seq tokens, unless it is 0, of a corpus. Their number in a
// batch and their attention are those of the run, if there is one.
func windowsOf(w *run.Weights, seq int, corpus *data.Corpus) (infer.Windows, error) {
	windows := sizesOf(w, seq)
	if r := w.Run; r != nil {
		if err := r.CheckCorpus(corpus); err != nil {
			return windows, err
		}
		windows.Documents, windows.EndOfText = r.Data.Attention == train.AttendDocument, corpus.EndOfText
	}
	return windows, nil
}

// sizesOf returns windows of seq tokens, unless it is 0, and their number in a batch.
func sizesOf(w *run.Weights, seq int) infer.Windows {
	windows := infer.Windows{Batch: evalBatch, Seq: seq}
	if r := w.Run; r != nil {
		windows = infer.Windows{Batch: r.Train.MicroBatch, Seq: cmp.Or(seq, r.Data.Seq)}
	}
	windows.Seq = cmp.Or(windows.Seq, 256)
	windows.Batch = min(windows.Batch, max(1, evalTokens/max(1, windows.Seq)))
	return windows
}

// corpusOf returns the text of paths, as the training part, or the run's data. A note says
// which data that is, if the configuration does not name it; what is its use.
func corpusOf(ctx context.Context, t *terminal, w *run.Weights, paths []string, what string) (*data.Corpus, error) {
	if len(paths) > 0 {
		o := data.Options{Vocab: w.Model.Vocab}
		if data.IsPrepared(paths[0]) { // evaluated on its held-out part, on answers where training is
			p, err := data.ReadDescription(paths[0])
			if err != nil {
				return nil, err
			}
			o.ValBytes = math.MaxInt64
			o.Answers = w.Run != nil && w.Run.Answers() && p.Kind != data.KindDocuments
		}
		corpus, err := data.OpenFiles(paths, o)
		if err != nil {
			return nil, err
		}
		if err := sameTokenizer(w, corpus, paths[0]); err != nil {
			return nil, errors.Join(err, corpus.Close())
		}
		if corpus.Info.Kind == data.KindPrepared {
			part := "held-out part"
			if corpus.Val.Len() == 0 {
				part = "training part, since none is held out"
			}
			fmt.Fprintf(prose(t.err), "%s: %s, its %s\n", what, paths[0], part)
		}
		return corpus, nil
	}
	config := train.Default()
	if w.Run != nil {
		config = *w.Run
	} else if w.Model.Vocab != data.TextVocab {
		return nil, fmt.Errorf("%s does not say which data it was trained on: give data with --data", w.Path)
	}
	corpus, note, err := run.OpenCorpus(ctx, config, t.sources)
	if err != nil {
		return nil, err
	}
	if note != "" {
		fmt.Fprintf(prose(t.err), "%s: %s\n", what, note)
	}
	return corpus, nil
}
