package cli

import (
	"context"
	"errors"
	"fmt"

	"octet/data"
	"octet/infer"
	"octet/run"
)

type generateCmd struct {
	Model       string  `arg:"" name:"run or checkpoint" help:"A run folder, a checkpoint, or a Hugging Face folder."`
	Prompt      string  `required:"" placeholder:"TEXT" help:"Text to continue."`
	Tokens      int     `default:"256" placeholder:"N" help:"Number of tokens to generate; default: ${default}."`
	Temperature float64 `default:"0.8" placeholder:"T" help:"Sampling temperature; 0 takes the most likely token; default: ${default}."`
	TopP        float64 `default:"0.95" placeholder:"P" help:"Sample from the smallest set of tokens whose probabilities sum to P; default: ${default}."`
	Seed        uint64  `default:"1" placeholder:"N" help:"Seed of the sampling; default: ${default}."`
	Recipe      string  `placeholder:"NAME|FILE" help:"Generate in another precision: a recipe such as fp32, or a recipe file; default: the run's recipe."`
	device
}

// Help returns the text that generate --help adds.
func (generateCmd) Help() string {
	return `The model must be one whose tokens are bytes.

Examples:
  octet generate runs/mine --prompt "func "
  octet generate runs/mine --prompt "func " --tokens 500 --temperature 0`
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
		return badInput(fmt.Errorf("%s has a vocabulary of %d: octet generates text only from models whose tokens are bytes", w.Path, w.Model.Vocab))
	}
	t.reportSkipped(w.Skipped)
	dev, err := c.open()
	if err != nil {
		return badInput(err)
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	d := memoryLimited{compileNotice{dev, t.err}, "the generation", "use fewer --tokens, or a machine with more memory"}
	g, err := infer.NewGenerator(ctx, w.Model, w.Recipe, w, d, len(c.Prompt)+c.Tokens)
	if err != nil {
		return modelError(err)
	}
	return t.writeText(ctx, g, c.Prompt, c.Tokens, sampling)
}
