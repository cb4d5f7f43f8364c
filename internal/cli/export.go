package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"octet/internal/export"
	"octet/internal/hostmem"
	"octet/run"
)

type exportCmd struct {
	Model  string `arg:"" name:"run or checkpoint" help:"A run folder or a checkpoint."`
	Out    string `required:"" placeholder:"DIR" help:"The folder to write; it must not exist."`
	Format string `default:"fp32" placeholder:"NAME" help:"Format of the weights: fp32, bf16, or fp8 with static per-tensor scales; default: ${default}."`
	device
}

// Help returns the text that export --help adds.
func (exportCmd) Help() string {
	return `The folder holds config.json and model.safetensors with Hugging Face Llama names. fp8 is the layout of compressed-tensors, which transformers and vLLM read.

Examples:
  octet export runs/mine --out mine-fp32
  octet export runs/mine --out mine-fp8 --format fp8`
}

func (c exportCmd) Run(ctx context.Context, t *terminal) (err error) {
	if !slices.Contains(export.Formats, c.Format) {
		return badInput(fmt.Errorf("--format %s is unknown: use one of %s", c.Format, strings.Join(export.Formats, ", ")))
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
	if err == nil {
		err = hostmem.Check(what, m.Memory(), instead)
	}
	if err != nil {
		return modelError(err)
	}
	out := filepath.Clean(c.Out)
	signals := catchSignals(ctx, 0, func(int) {})
	defer signals.stop()
	p := t.startProgress(m.Size(c.Format), "B")
	err = export.Write(signals.ctx, out, c.Format, m, func(written int64) { p.set(written, nil) })
	p.close()
	if s := signals.received(); s != 0 && err != nil {
		fmt.Fprintf(t.err, "octet: stopped; %s was not written\n", out)
		return stopped{128 + s}
	}
	if err != nil {
		return badInput(err)
	}
	folded := "nothing to fold"
	if m.Smooth != nil {
		folded = "smooth-swiglu folded into up_proj and down_proj"
	}
	fmt.Fprintf(t.out, "model    %s\nformat   %s, %s\nfolder   %s\n", w.Path, c.Format, folded, out)
	return nil
}
