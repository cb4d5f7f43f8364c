package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"

	"octet/backend"
	"octet/data"
	"octet/infer"
	"octet/internal/config"
	"octet/internal/export"
	"octet/internal/ptq"
	"octet/internal/writers"
	"octet/recipe"
	"octet/run"
)

// rung is the loss of a quantized model.
type rung struct {
	Quantization string        `json:"quantization"`
	Bits         float64       `json:"bits_per_weight"` // scales included
	Loss         writers.Float `json:"loss"`            // nats per token
	Above        writers.Float `json:"above"`           // the loss of the unquantized model
	StdErr       writers.Float `json:"above_stderr"`    // of Above, over batches; null for one batch
	Tasks        []taskScore   `json:"tasks,omitempty"`
}

// ladder evaluates the model unquantized and by each of the schemes.
func (c evalCmd) ladder(ctx context.Context, t *terminal) (err error) {
	var schemes []ptq.Scheme
	for _, name := range c.Quant {
		s, err := ptq.Lookup(name)
		if err != nil {
			return badInput(fmt.Errorf("--quant: %w", err))
		}
		schemes = append(schemes, s)
	}
	plain, err := config.FindRecipe(cmp.Or(c.Recipe, "bf16"))
	if err == nil {
		_, err = schemes[0].Recipe(plain)
	}
	if err != nil {
		return badInput(err)
	}
	w, err := run.OpenWeights(c.Model, "")
	if err != nil {
		return badInput(err)
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	if err := schemes[0].Check(ptq.Source{Config: w.HF, Model: w.Model}); err != nil {
		return badInput(err)
	}
	t.reportSkipped(w.Skipped)
	var set *taskSet
	if len(c.Task) > 0 {
		if set, err = c.readTasks(w); err != nil {
			return badInput(err)
		}
	}
	corpus, stream, windows, err := c.openText(ctx, t, w)
	if err != nil {
		return badInput(err)
	}
	defer func() { err = errors.Join(err, corpus.Close()) }()
	counted, err := countedTokens(stream, windows)
	if err != nil {
		return badInput(err)
	}
	q := quantizer{device: c.device, t: t, w: w, set: set, samples: &bytes.Buffer{}, options: ptq.Options{Plain: plain, Tokens: corpus.Train, Windows: windows}}
	base, err := q.losses(ctx, w, plain, stream)
	if err != nil {
		return err
	}
	e := evaluated{Path: w.Path, Recipe: plain.Name, Tokens: counted, Loss: writers.Float(base.mean()), Perplexity: writers.Float(math.Exp(base.mean()))}
	if e.Tasks, err = q.scores(ctx, w, plain, "", nil); err != nil {
		return err
	}
	var from export.Model // with Smooth-SwiGLU folded, as octet export writes it
	err = q.onDevice(func(dev backend.Backend) error {
		from, err = export.FromRun(ctx, w, dev)
		return err
	})
	if err != nil {
		return modelError(err)
	}
	for _, s := range schemes {
		m, err := q.quantize(ctx, from, s)
		if err != nil {
			return err
		}
		r, err := s.Recipe(plain)
		if err != nil {
			return badInput(err)
		}
		losses, err := q.losses(ctx, m, r, stream)
		if err != nil {
			return err
		}
		scores, err := q.scores(ctx, m, r, s.Name, e.Tasks)
		if err != nil {
			return err
		}
		above, stderr := losses.above(base)
		e.Quantized = append(e.Quantized, rung{s.Name, m.Bits(), writers.Float(losses.mean()), writers.Float(above), writers.Float(stderr), scores})
	}
	if err := c.saveSamples(q.samples); err != nil {
		return err
	}
	if c.JSON {
		return json.NewEncoder(t.out).Encode(e)
	}
	fmt.Fprintf(prose(t.out), "checkpoint  %s\nrecipe      %s\ntokens      %s\nloss        %.4f nats per token, unquantized\n\n", e.Path, e.Recipe, writers.Count(e.Tokens), e.Loss)
	rows := table{columns: []column{{head: "quantization"}, {head: "bits per weight", short: "bits"}, {head: "loss"}, {head: "above"}, {head: "± standard error", short: "±"}}}
	for _, r := range e.Quantized {
		rows.add(r.Quantization, fmt.Sprintf("%.2f", r.Bits), fmt.Sprintf("%.4f", r.Loss), fmt.Sprintf("%+.4f", r.Above), fmt.Sprintf("%.4f", r.StdErr))
	}
	if err := rows.print(t.out); err != nil || len(e.Tasks) == 0 {
		return err
	}
	return printTasks(t, e)
}

// quantizer quantizes a model and evaluates it, each time on a device of its own, because
// a backend is bound once.
type quantizer struct {
	device
	t       *terminal
	w       *run.Weights
	set     *taskSet // nil without --task
	samples *bytes.Buffer
	options ptq.Options
}

const quantizeAdvice = "use a smaller --seq, or a machine with more memory"

func (q quantizer) onDevice(do func(backend.Backend) error) error {
	dev, err := q.open()
	if err != nil {
		return badInput(err)
	}
	return errors.Join(do(memoryLimited{compileNotice{dev, q.t.err}, "the quantized model", quantizeAdvice}), dev.Close())
}

// quantize quantizes a model to export.
func (q quantizer) quantize(ctx context.Context, from export.Model, s ptq.Scheme) (m *ptq.Model, err error) {
	q.options.OnDevice = q.onDevice
	m, err = ptq.Quantize(ctx, s, ptq.Source{Config: q.w.HF, Model: q.w.Model, Param: from.Folded}, q.options)
	return m, modelError(err)
}

// batchLosses are the sums of the losses of batches and their numbers of tokens.
type batchLosses struct{ sums, tokens []float64 }

// losses evaluates weights on a stream.
func (q quantizer) losses(ctx context.Context, w infer.Weights, r recipe.Recipe, stream data.Tokens) (l batchLosses, err error) {
	o := q.options
	err = q.onDevice(func(dev backend.Backend) error {
		e, err := infer.NewEvaluator(ctx, q.w.Model, r, w, dev, o.Windows, nil)
		if err != nil {
			return modelError(err)
		}
		p := q.t.startProgress(stream.Len()-1, "tokens")
		defer p.close()
		last, before := 0.0, int64(0)
		_, err = e.Evaluate(ctx, stream, func(done, _ int64, mean float64) {
			p.set(done, &mean)
			l.sums, l.tokens = append(l.sums, mean*float64(done)-last), append(l.tokens, float64(done-before))
			last, before = mean*float64(done), done
		})
		return err
	})
	return l, err
}

// scores scores the tasks with weights, and adds their samples.
func (q quantizer) scores(ctx context.Context, w infer.Weights, r recipe.Recipe, quantization string, base []taskScore) (list []taskScore, err error) {
	if q.set == nil {
		return nil, nil
	}
	err = q.onDevice(func(dev backend.Backend) error {
		scores, _, err := q.set.score(ctx, q.t, q.w, w, r, dev, nil)
		if err != nil {
			return err
		}
		results := q.set.results(scores)
		list = q.set.scores(results, base)
		return q.set.appendSamples(q.samples, quantization, results)
	})
	return list, err
}

func (l batchLosses) mean() float64 { return sum(l.sums) / sum(l.tokens) }

// above returns how much the mean exceeds that of base, on the same batches, and the standard
// error of the difference over batches; NaN for one batch.
func (l batchLosses) above(base batchLosses) (mean, stderr float64) {
	mean = l.mean() - base.mean()
	squares, n := 0.0, float64(len(l.sums))
	for i := range l.sums {
		d := l.sums[i] - base.sums[i] - mean*l.tokens[i]
		squares += d * d
	}
	return mean, math.Sqrt(squares*n/(n-1)) / sum(l.tokens)
}

func sum(x []float64) (s float64) {
	for _, v := range x {
		s += v
	}
	return s
}

// schemesHelp lists the schemes in help texts.
func schemesHelp() string {
	return "Quantizations: " + strings.Join(ptq.Names(), ", ") + "."
}
