package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"octet/fp8"
	"octet/infer"
	"octet/run"
	"octet/tokenizer"
)

type generateCmd struct {
	Model       string   `arg:"" name:"run or checkpoint" help:"A run folder, a checkpoint, or a Hugging Face folder with its tokenizer."`
	Prompt      string   `placeholder:"TEXT" help:"Text to continue."`
	Prompts     string   `placeholder:"FILE" help:"Continue the prompts of a file instead: a line for each, a JSON string or an object with the field prompt."`
	Batch       int      `placeholder:"N" help:"Sequences at a time: continuations of --prompt, default 1, or prompts of the file, default 8."`
	Tokens      int      `default:"256" placeholder:"N" help:"Maximum number of tokens to generate; default: ${default}."`
	Stop        []string `sep:"none" placeholder:"TEXT" help:"Text that ends a continuation and is not part of it; may be repeated."`
	Special     bool     `help:"Encode special tokens in prompts, such as <|im_start|>, as single tokens; otherwise they are plain text."`
	Temperature float64  `default:"0.8" placeholder:"T" help:"Sampling temperature; 0 takes the most likely token; default: ${default}."`
	TopP        float64  `default:"0.95" placeholder:"P" help:"Sample from the smallest set of tokens whose probabilities sum to P; default: ${default}."`
	Seed        uint64   `default:"1" placeholder:"N" help:"Seed of the sampling; default: ${default}."`
	KV          string   `name:"kv" placeholder:"FORMAT" help:"Format of cached keys and values: e4m3 or e5m2, with a scale for each head of each token; default: the recipe's compute format."`
	Recipe      string   `placeholder:"NAME|FILE" help:"Generate in another precision: a recipe such as fp32, or a recipe file; default: the run's recipe."`
	device
}

// Help returns the text that generate --help adds.
func (generateCmd) Help() string {
	return `A continuation ends with the end-of-text token, with a token of eos_token_id in generation_config.json, or before a --stop text. One continuation is printed as it is generated. Several are JSON lines with the fields prompt and text, in the order of the prompts.

Examples:
  octet generate runs/mine --prompt "func "
  octet generate runs/mine --prompt "func " --batch 4 --tokens 60
  octet generate runs/mine --prompts questions.jsonl --stop "Question:"`
}

const defaultBatch = 8

func (c generateCmd) Run(ctx context.Context, t *terminal) (err error) {
	sampling := infer.Sampling{Temperature: c.Temperature, TopP: c.TopP, Seed: c.Seed}
	if err := sampling.Validate(); err != nil {
		return badInput(fmt.Errorf("--%w", err))
	}
	prompts, batch, err := c.prompts()
	if err != nil {
		return badInput(err)
	}
	format, err := cacheFormat(c.KV)
	if err != nil {
		return badInput(err)
	}
	w, err := run.OpenWeights(c.Model, c.Recipe)
	if err != nil {
		return badInput(err)
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	tok, err := w.Tokenizer()
	if err != nil {
		return badInput(err)
	}
	ids, longest := make([][]int32, len(prompts)), 0
	for i, p := range prompts {
		ids[i] = promptIDs(tok, p, c.Special)
		longest = max(longest, len(ids[i]))
	}
	t.reportSkipped(w.Skipped)
	dev, err := c.open()
	if err != nil {
		return badInput(err)
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	d := memoryLimited{compileNotice{dev, t.err}, "the generation", "use fewer --tokens, a smaller --batch, or a machine with more memory"}
	g, err := infer.NewGenerator(ctx, w.Model, w.Recipe, w, d, infer.Cache{Batch: batch, Context: longest + c.Tokens, Format: format})
	if err != nil {
		return modelError(err)
	}
	if len(prompts) == 1 {
		return t.writeText(ctx, g, tok, prompts[0], ids[0], c.Tokens, sampling, c.Stop)
	}
	out := json.NewEncoder(t.out)
	out.SetEscapeHTML(false)
	for from := 0; from < len(prompts); from += batch {
		to := min(from+batch, len(prompts))
		texts, err := continuations(ctx, g, tok, ids[from:to], c.Tokens, sampling, c.Stop)
		if err != nil {
			return err
		}
		for i, text := range texts {
			if err := out.Encode(continuation{prompts[from+i], text}); err != nil {
				return err
			}
		}
	}
	return nil
}

// promptIDs returns the ids of a prompt: after the tokens that the tokenizer's template puts before a
// text, such as BOS, and without those after it, since the text goes on.
func promptIDs(tok *tokenizer.Bundle, prompt string, special bool) []int32 {
	before, _ := tok.Template()
	return tok.Encode(slices.Clone(before), []byte(prompt), tokenizer.Options{Special: special})
}

// cacheFormat returns the format of --kv.
func cacheFormat(name string) (format fp8.DType, err error) {
	switch name {
	case "":
		return 0, nil
	case "e4m3", "e5m2":
		return fp8.ParseDType(name)
	}
	return 0, fmt.Errorf("--kv %s: expected e4m3 or e5m2", name)
}

// continuation is a line of the output for several prompts.
type continuation struct {
	Prompt string `json:"prompt"`
	Text   string `json:"text"`
}

// prompts returns the prompts and the number of them in a batch.
func (c generateCmd) prompts() (list []string, batch int, err error) {
	switch {
	case c.Tokens < 1 || c.Tokens > 1<<20:
		return nil, 0, fmt.Errorf("--tokens %d: expected a number from 1 to 2^20", c.Tokens)
	case c.Batch < 0 || c.Batch > 1<<12:
		return nil, 0, fmt.Errorf("--batch %d: expected a number from 1 to 4096", c.Batch)
	case c.Prompt != "" && c.Prompts != "":
		return nil, 0, errors.New("--prompt and --prompts both name text to continue: give one")
	case slices.Contains(c.Stop, ""):
		return nil, 0, errors.New("--stop is empty: it would end each text at its start")
	case c.Prompts == "" && c.Prompt == "":
		return nil, 0, errors.New("there is no text to continue, or --prompt is empty: generation needs a first token")
	case c.Prompts == "":
		batch = max(c.Batch, 1)
		for range batch {
			list = append(list, c.Prompt)
		}
		return list, batch, nil
	}
	f, err := os.Open(c.Prompts)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = f.Close() }() // it was only read
	err = eachLine(f, c.Prompts, func(line []byte) error {
		p, err := parsePrompt(line)
		if err == nil && p == "" {
			err = errors.New("the prompt is empty: generation needs a first token")
		}
		list = append(list, p)
		return err
	})
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("%s has no prompts", c.Prompts)
	}
	if batch = c.Batch; batch == 0 {
		batch = defaultBatch
	}
	return list, min(batch, max(len(list), 1)), err
}

func parsePrompt(line []byte) (text string, err error) {
	if line[0] == '"' {
		return text, json.Unmarshal(line, &text)
	}
	var object struct{ Prompt *string }
	if err := json.Unmarshal(line, &object); err != nil {
		return "", fmt.Errorf("%w: expected a JSON string, or an object with the field prompt", err)
	}
	if object.Prompt == nil {
		return "", errors.New("the object has no field prompt")
	}
	return *object.Prompt, nil
}

// continuations returns the texts that a batch of prompts continues with.
func continuations(ctx context.Context, g *infer.Generator, tok *tokenizer.Bundle, ids [][]int32, n int, s infer.Sampling, stops []string) ([]string, error) {
	texts, ends := make([]string, len(ids)), make([]*stopper, len(ids))
	for i := range ids {
		ends[i] = &stopper{stops: stops, to: func(part []byte) { texts[i] += string(part) }}
	}
	err := g.GenerateBatch(ctx, ids, n, s, func(i int, id int32) bool {
		return !tok.Ends(id) && ends[i].write(tok.Text(id))
	})
	for _, e := range ends {
		e.flush()
	}
	return texts, err
}
