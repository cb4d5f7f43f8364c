package cli

import (
	"context"
	"errors"
	"fmt"

	"octet/data"
	"octet/infer"
	"octet/internal/run"
)

type generateCmd struct {
	Model       string  `arg:"" name:"run or checkpoint" help:"A run folder, a checkpoint, or a Hugging Face folder."`
	Prompt      string  `required:"" placeholder:"TEXT" help:"Text to continue."`
	Tokens      int     `default:"256" help:"How many tokens to add (${default})."`
	Temperature float64 `default:"0.8" help:"0 takes the most likely token (${default})."`
	TopP        float64 `default:"0.95" help:"Draw from the smallest set of tokens with this probability (${default})."`
	Seed        uint64  `default:"1" help:"Seed of the draw (${default})."`
	Recipe      string  `placeholder:"NAME" help:"Generate in another precision, such as fp32."`
	device
}

func (c generateCmd) Run(ctx context.Context, t *terminal) (err error) {
	sampling := infer.Sampling{Temperature: c.Temperature, TopP: c.TopP, Seed: c.Seed}
	if err := sampling.Validate(); err != nil {
		return badInput(fmt.Errorf("--%w", err))
	}
	if c.Tokens < 1 || c.Tokens > 1<<20 {
		return badInput(fmt.Errorf("--tokens %d: expected a number from 1 to 2^20", c.Tokens))
	}
	if c.Prompt == "" {
		return badInput(errors.New("--prompt is empty: generation needs a first token"))
	}
	w, err := run.OpenWeights(c.Model, c.Recipe)
	if err != nil {
		return badInput(err)
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	if w.Model.Vocab != data.TextVocab {
		return badInput(fmt.Errorf("%s has a vocabulary of %d: octet generates text from models over bytes", w.Path, w.Model.Vocab))
	}
	t.passedOver(w.Skipped)
	dev, err := c.open()
	if err != nil {
		return badInput(err)
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	d := limited{telling{dev, t.err}, "generating", "use fewer --tokens, or a machine with more memory"}
	g, err := infer.NewGenerator(ctx, w.Model, w.Recipe, w, d, len(c.Prompt)+c.Tokens)
	if err != nil {
		return modelError(err)
	}
	return t.writeText(ctx, g, c.Prompt, c.Tokens, sampling)
}
