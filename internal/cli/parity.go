package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"text/tabwriter"

	"octet/data"
	"octet/infer"
	"octet/internal/parity"
	"octet/internal/writers"
	"octet/run"
)

type parityCmd struct {
	Model  string `arg:"" name:"run or checkpoint" help:"A run folder, a checkpoint, or a Hugging Face folder: its training path, in its recipe."`
	Other  string `arg:"" optional:"" name:"export" help:"Weights of the inference path, such as an export; default: the same."`
	Recipe string `placeholder:"NAME|FILE" help:"Recipe of the inference path; default: fp32 for an export, otherwise the run's recipe."`
	KV     string `name:"kv" placeholder:"FORMAT" help:"Format of cached keys and values: e4m3 or e5m2; default: the compute format."`
	textFlags
	Windows int64   `default:"16" placeholder:"N" help:"Windows, spread evenly over the data; default: ${default}."`
	Above   float64 `default:"0.01" placeholder:"E" help:"Relative difference of a tensor from which the paths part; default: ${default}."`
	JSON    bool    `help:"Print one JSON object."`
	device
}

// Help returns the text that parity --help adds.
func (parityCmd) Help() string {
	return `Compares the probabilities that a model gives to the next token in training and in generation. The training path is the forward of a training step: current scales come from the window itself. The inference path has the scales that generate uses, a KV cache, and the weights of an export if one is given.

KL is the Kullback-Leibler divergence of the distributions after each token, in nats. The ratio is that of the probabilities of the text's own next token, p(inference)/p(training). Reinforcement learning that samples with one path and trains with the other multiplies such ratios; they should be near 1.

The last lines name the first op of the first window whose result differs at all, and by more than --above.

Examples:
  octet parity runs/mine
  octet parity runs/mine mine-fp8 --kv e4m3
  octet parity runs/mine --recipe fp8-current --json`
}

// parityResult is the output of parity --json.
type parityResult struct {
	Training   string        `json:"training"`
	Inference  string        `json:"inference"`
	Tokens     int           `json:"tokens"`
	KL         writers.Float `json:"kl"` // nats per token
	KLMax      writers.Float `json:"kl_max"`
	LogRatio   writers.Float `json:"mean_abs_log_ratio"`
	Largest    parityRatio   `json:"largest_ratio"`
	SameTop    writers.Float `json:"same_top"` // share of tokens
	LossA      writers.Float `json:"loss_training"`
	LossB      writers.Float `json:"loss_inference"`
	First      *parityOp     `json:"first_difference,omitempty"`
	FirstLarge *parityOp     `json:"first_above,omitempty"`
	Layers     []parityOp    `json:"layers"` // the last tensor of each
}

type parityRatio struct {
	Ratio  writers.Float `json:"ratio"`
	Window int64         `json:"window"`
	At     int           `json:"position"`
	ID     int32         `json:"id"`
	Text   string        `json:"text,omitempty"`
}

type parityOp struct {
	Op     string        `json:"op"`
	Tensor string        `json:"tensor"`
	Error  writers.Float `json:"error"`
}

func (c parityCmd) Run(ctx context.Context, t *terminal) (err error) {
	if c.Windows < 1 || !(c.Above > 0) {
		return badInput(fmt.Errorf("--windows %d, --above %v: expected positive numbers", c.Windows, c.Above))
	}
	format, err := cacheFormat(c.KV)
	if err != nil {
		return badInput(err)
	}
	a, err := run.OpenWeights(c.Model, "")
	if err != nil {
		return badInput(err)
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	b, err := run.OpenWeights(cmp.Or(c.Other, c.Model), c.Recipe)
	if err != nil {
		return badInput(err)
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	if a.Model.Vocab != b.Model.Vocab {
		return badInput(fmt.Errorf("%s has a vocabulary of %d tokens, %s of %d: they have no common text", a.Path, a.Model.Vocab, b.Path, b.Model.Vocab))
	}
	t.reportSkipped(a.Skipped)
	corpus, stream, windows, err := c.openText(ctx, t, a)
	if err != nil {
		return badInput(err)
	}
	defer func() { err = errors.Join(err, corpus.Close()) }()
	if windows.Documents {
		fmt.Fprintln(prose(t.err), "Both paths attend to the whole window, as generation does; the run trains with data.attention=document.")
	}
	var devices [2]memoryLimited // a device runs the programs of one model
	for i := range devices {
		dev, openErr := c.open()
		if openErr != nil {
			return badInput(openErr)
		}
		defer func() { err = errors.Join(err, dev.Close()) }()
		devices[i] = memoryLimited{compileNotice{dev, t.err}, "the comparison", "use a smaller --seq, or a machine with more memory"}
	}
	training, err := infer.NewTrainingPath(ctx, a.Model, a.Recipe, a, devices[0], windows.Seq)
	if err != nil {
		return modelError(err)
	}
	inference, err := infer.NewInferencePath(ctx, b.Model, b.Recipe, b, devices[1], windows.Seq, format)
	if err != nil {
		return modelError(err)
	}
	r, err := parity.Compare(ctx, training, inference, stream, windows.Seq, c.Windows)
	if err != nil {
		return err
	}
	out := c.result(r, a, b, corpus)
	if c.JSON {
		return json.NewEncoder(t.out).Encode(out)
	}
	return out.print(t, c.Above)
}

// result returns what is printed.
func (c parityCmd) result(r parity.Report, a, b *run.Weights, corpus *data.Corpus) parityResult {
	cache := ""
	if c.KV != "" {
		cache = ", KV cache in " + c.KV
	}
	out := parityResult{
		Training: fmt.Sprintf("%s, %s", a.Path, a.Recipe.Name), Inference: fmt.Sprintf("%s, %s%s", b.Path, b.Recipe.Name, cache),
		Tokens: r.Tokens, KL: writers.Float(r.KL), KLMax: writers.Float(r.KLMax), LogRatio: writers.Float(r.Ratio),
		Largest: parityRatio{Ratio: writers.Float(r.Largest.B / r.Largest.A), Window: r.Largest.Window, At: r.Largest.At, ID: r.Largest.ID},
		SameTop: writers.Float(r.Same), LossA: writers.Float(r.LossA), LossB: writers.Float(r.LossB), Layers: lastOfLayers(r.Layers),
	}
	if corpus.Tokenizer != nil {
		out.Largest.Text = string(corpus.Tokenizer.Text(r.Largest.ID))
	}
	for _, x := range r.Layers {
		op := &parityOp{x.Op, x.Tensor, writers.Float(x.Error)}
		if out.First == nil && x.Error > 0 {
			out.First = op
		}
		if out.FirstLarge == nil && x.Error > c.Above {
			out.FirstLarge = op
		}
	}
	return out
}

// lastOfLayers returns the difference of the last tensor of each layer, which later layers read.
func lastOfLayers(all []parity.Difference) (list []parityOp) {
	layer := func(op string) string {
		parts := strings.SplitN(op, ".", 3)
		if len(parts) < 3 || parts[0] != "layers" {
			return ""
		}
		return parts[0] + "." + parts[1]
	}
	for i, x := range all {
		name := layer(x.Op)
		if name != "" && (i+1 == len(all) || layer(all[i+1].Op) != name) {
			list = append(list, parityOp{name, x.Tensor, writers.Float(x.Error)})
		}
	}
	return list
}

func (r parityResult) print(t *terminal, above float64) error {
	tw := tabwriter.NewWriter(prose(t.out), 0, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "training\t%s\ninference\t%s\ntokens\t%s\n", r.Training, r.Inference, writers.Count(int64(r.Tokens)))
	fmt.Fprintf(tw, "loss\t%.4f in training, %.4f in inference, nats per token\n", r.LossA, r.LossB)
	fmt.Fprintf(tw, "KL\t%.3g nats per token, at most %.3g\n", r.KL, r.KLMax)
	fmt.Fprintf(tw, "|ln ratio|\t%.3g nats per token\n", r.LogRatio)
	text := ""
	if r.Largest.Text != "" {
		text = fmt.Sprintf(" (%q)", r.Largest.Text)
	}
	fmt.Fprintf(tw, "largest ratio\t%.4g, token %d%s at %d of window %d\n", r.Largest.Ratio, r.Largest.ID, text, r.Largest.At, r.Largest.Window)
	fmt.Fprintf(tw, "most likely token\tthe same after %.2f %% of the tokens\n", 100*r.SameTop)
	for _, l := range r.Layers {
		fmt.Fprintf(tw, "%s\t%.2g relative difference of its output\n", l.Op, l.Error)
	}
	describe := func(op *parityOp) string {
		if op == nil {
			return "none"
		}
		return fmt.Sprintf("%s, %.2g", op.Op, math.Abs(float64(op.Error)))
	}
	fmt.Fprintf(tw, "first difference\t%s\nfirst above %.3g\t%s\n", describe(r.First), above, describe(r.FirstLarge))
	return tw.Flush()
}
