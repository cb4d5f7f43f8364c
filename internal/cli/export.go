package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"octet/internal/export"
	"octet/internal/hostmem"
	"octet/internal/ptq"
	"octet/recipe"
	"octet/run"
)

type exportCmd struct {
	Model  string   `arg:"" name:"run or checkpoint" help:"A run folder or a checkpoint."`
	Out    string   `required:"" placeholder:"DIR" help:"The folder to write; it must not exist."`
	Format string   `default:"fp32" placeholder:"NAME" help:"Format of the weights: fp32, bf16, or fp8 with static per-tensor scales; default: ${default}."`
	Quant  string   `placeholder:"NAME" help:"Quantize the weights, instead of --format: w8a8-fp8, w4a16-g128 and others above."`
	Data   []string `placeholder:"PATH" sep:"none" help:"A file or folder on which --quant observes the model; may be repeated; default: the run's training data."`
	device
}

// Help returns the text that export --help adds.
func (exportCmd) Help() string {
	return `The folder holds config.json and model.safetensors with the names of Hugging Face's Llama, Qwen3 or Mixtral. fp8 is the layout of compressed-tensors, which transformers and vLLM read; so are those of --quant, with codes of the linear layers, other tensors in BF16, and per-token casts of inputs by the runtime. GPTQ (w4a16-g128) and SmoothQuant (-smooth) observe the model on 16 batches of the data. ` + schemesHelp() + `

Examples:
  octet export runs/mine --out mine-fp32
  octet export runs/mine --out mine-fp8 --format fp8
  octet export runs/mine --out mine-w4 --quant w4a16-g32`
}

func (c exportCmd) Run(ctx context.Context, t *terminal) (err error) {
	if !slices.Contains(export.Formats, c.Format) {
		return badInput(fmt.Errorf("--format %s is unknown: use one of %s", c.Format, strings.Join(export.Formats, ", ")))
	}
	scheme, err := c.scheme()
	if err != nil {
		return badInput(err)
	}
	w, err := run.OpenWeights(c.Model, "")
	if err != nil {
		return badInput(err)
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	t.reportSkipped(w.Skipped)
	dev, err := c.open()
	if err != nil {
		return badInput(err)
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	const what, instead = "the export", "use a machine with more memory"
	m, err := export.FromRun(ctx, w, memoryLimited{compileNotice{dev, t.err}, what, instead})
	folds := m.Smooth != nil
	if err == nil {
		err = hostmem.Check(what, m.Memory(), instead)
	}
	if err == nil && c.Quant != "" {
		m, err = c.quantized(ctx, t, w, m, scheme)
	}
	if err != nil {
		return modelError(err)
	}
	out := filepath.Clean(c.Out)
	signals := catchSignals(ctx, 0, func(int) {})
	defer signals.stop()
	format := cmp.Or(c.Quant, c.Format)
	p := t.startProgress(m.Size(format), "B")
	err = export.Write(signals.ctx, out, format, m, func(written int64) { p.set(written, nil) })
	p.close()
	if s := signals.received(); s != 0 && err != nil {
		fmt.Fprintf(t.err, "octet: stopped; %s was not written\n", out)
		return stopped{128 + s}
	}
	if err != nil {
		return badInput(err)
	}
	folded := "nothing to fold"
	if folds {
		folded = "smooth-swiglu folded into up_proj and down_proj"
	}
	fmt.Fprintf(t.out, "model    %s\nformat   %s, %s\nfolder   %s\n", w.Path, format, folded, out)
	return nil
}

// scheme returns the scheme of --quant; the zero value without.
func (c exportCmd) scheme() (s ptq.Scheme, err error) {
	switch {
	case c.Quant == "" && len(c.Data) > 0:
		return s, errors.New("--data is text on which --quant observes the model: name a quantization, too")
	case c.Quant == "":
		return s, nil
	case c.Format != "fp32":
		return s, fmt.Errorf("--format %s and --quant %s both name the format of the weights: give one", c.Format, c.Quant)
	}
	if s, err = ptq.Lookup(c.Quant); err != nil {
		err = fmt.Errorf("--quant: %w", err)
	}
	return s, err
}

// quantized returns the model quantized, computed in BF16 where the scheme observes it.
func (c exportCmd) quantized(ctx context.Context, t *terminal, w *run.Weights, m export.Model, s ptq.Scheme) (q export.Model, err error) {
	if err := export.CheckScheme(s, w.HF); err != nil {
		return q, err
	}
	plain, err := recipe.Lookup("bf16")
	if err != nil {
		return q, err
	}
	o := ptq.Options{Plain: plain}
	if s.Observes() {
		corpus, openErr := corpusOf(ctx, t, w, c.Data, "observed data")
		if openErr != nil {
			return q, openErr
		}
		defer func() { err = errors.Join(err, corpus.Close()) }()
		o.Tokens = corpus.Train
		if o.Windows, err = windowsOf(w, 0, corpus); err != nil {
			return q, err
		}
	}
	quantized, err := quantizer{device: c.device, t: t, w: w, options: o}.quantize(ctx, m, s)
	return m.Quantize(quantized), err
}
