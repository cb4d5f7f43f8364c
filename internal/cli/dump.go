package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"octet/checkpoint"
	"octet/internal/arrays"
	"octet/internal/dump"
	"octet/internal/writers"
	"octet/run"
)

type dumpCmd struct {
	Path   string `arg:"" name:"run" help:"A run folder."`
	Step   int    `required:"" placeholder:"N" help:"The step, from 1."`
	Tensor string `required:"" placeholder:"GLOB" help:"Names of tensors, as octet plan --dump prints them, such as 'layers.1.mlp.*'."`
	Out    string `required:"" placeholder:"FILE|DIR" help:"The safetensors file to write, or a folder of .npy files, one for each tensor."`
	device
}

// Help returns the text that dump --help adds.
func (dumpCmd) Help() string {
	return `The command repeats the run from its newest intact checkpoint before the step, on the backend and device model that wrote it bit for bit. It does not change the run folder. A tensor has the value of the last op of the forward and backward passes that reads or writes it, in the last micro-batch of the first rank. Tensors that only the update reads or writes have their values after it.

A tensor with a scale has NAME (codes), NAME.scale_inv, NAME.outer (the scale_inv of the whole tensor, in NVFP4) and NAME.value (FP32). .npy files hold codes one in each byte, and BF16 as FP32; their names have "all" for the "*" of a block, as in 1xall.

Examples:
  octet dump runs/mine --step 100 --tensor 'layers.1.mlp.*' --out mlp
  octet dump runs/mine --step 1 --tensor '*.grad.e5m2' --out g.safetensors`
}

func (c dumpCmd) Run(ctx context.Context, t *terminal) (err error) {
	cfg, err := run.ConfigOf(c.Path)
	if err != nil {
		return badInput(err)
	}
	dev, err := c.open() // fail before the corpus is read if it does not open
	if err != nil {
		return badInput(err)
	}
	if err := dev.Close(); err != nil {
		return err
	}
	corpus, _, err := run.OpenCorpus(ctx, cfg, t.sources)
	if err != nil {
		return badInput(err)
	}
	defer func() { err = errors.Join(err, corpus.Close()) }()
	if err := run.CheckCorpus(c.Path, corpus.Info); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return badInput(err)
	}
	r, err := dump.Run(ctx, dump.Options{
		Config: cfg, Corpus: corpus, Checkpoints: filepath.Join(c.Path, checkpoint.Dir),
		Step: c.Step, Pattern: c.Tensor, Backend: c.Backend, Threads: c.Threads,
	})
	if err != nil {
		return badInput(err)
	}
	if r.Moved != "" {
		fmt.Fprintf(prose(t.err), "octet: the checkpoint was written by backend %s: name it with --backend, or the tensors are not bit for bit those of the run\n", r.Moved)
	}
	bytes := int64(0)
	for _, x := range r.Tensors {
		bytes += int64(len(x.Data))
	}
	if _, extErr := arrays.Ext(c.Out); extErr == nil {
		err = arrays.WriteSafetensors(c.Out, r.Tensors, map[string]string{"step": fmt.Sprint(c.Step)})
	} else {
		err = arrays.WriteNpy(c.Out, r.Tensors)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(prose(t.out), "step %d, loss %.6f, repeated from step %d: %d tensors, %s in %s\n", c.Step, r.Loss, r.From, len(r.Tensors), writers.Bytes(bytes), c.Out)
	return nil
}
