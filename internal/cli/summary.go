package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"time"
	"unicode"
	"unicode/utf8"

	"octet/data"
	"octet/infer"
	"octet/internal/run"
	"octet/internal/writers"
)

// printStopped says what a signal left and how to go on.
func printStopped(t *terminal, r *run.Run, last run.Progress) {
	text := fmt.Sprintf("octet: stopped after step %d of %d, saved in %s\n", last.Step, last.Steps, last.Checkpoint)
	fmt.Fprint(t.err, writers.Reflow(text, writers.Columns(t.err)))
	if last.Evaluated {
		fmt.Fprintf(t.err, "validation  %s\n", lossText(last.ValLoss, r))
	}
	if last.Step < last.Steps {
		fmt.Fprintf(t.err, "go on       %s train --resume --out %s\n", shellQuote(t.name), shellQuote(r.Folder.Dir))
	}
}

// printSummary ends a complete run: its loss, a sample, and what to do next.
func printSummary(ctx context.Context, t *terminal, d device, r *run.Run, last run.Progress, elapsed time.Duration) error {
	newest, err := r.NewestCheckpoint()
	if err != nil {
		return err
	}
	if last.Step == 0 {
		fmt.Fprintf(t.out, "nothing to do: the run has all its %d steps; more by --steps N\n", r.Config.Train.Steps)
	} else {
		tokens := r.Tokens()
		fmt.Fprintf(t.out, "trained     %s tokens in %s\n", writers.Count(tokens), writers.Clock(elapsed))
		if e, ok := r.Energy(); ok {
			fmt.Fprintf(t.out, "energy      %s\n", energyText(e, tokens))
		}
	}
	if last.Evaluated {
		fmt.Fprintf(t.out, "validation  %s\n", lossText(last.ValLoss, r))
		printBest(t.out, r, last)
	}
	next := fmt.Sprintf("eval %s", shellQuote(r.Folder.Dir))
	if r.Corpus.Info.Kind != data.KindShards {
		prompt, err := samplePrompt(r.Corpus)
		if err != nil {
			return err
		}
		if err := r.ReleaseDevices(); err != nil { // a device may not have room for both
			return err
		}
		if err := printSample(ctx, t, d, newest, prompt); err != nil {
			return err
		}
		next = fmt.Sprintf("generate %s --prompt %s", shellQuote(r.Folder.Dir), doubleQuote(prompt))
	}
	fmt.Fprintf(t.out, "checkpoint  %s\nnext        %s %s\n", newest, shellQuote(t.name), next)
	return nil
}

// overfit is how much of its best loss a run must have lost again for a hint: less than
// a hundredth is what the order of the text may do.
const overfit = 1.01

// printBest says when the run was better than at its end, and why that may be.
func printBest(w io.Writer, r *run.Run, last run.Progress) {
	best, err := r.BestSoFar()
	if err != nil { // the run is whole without
		fmt.Fprintf(w, "best        not known: %v\n", err)
		return
	}
	if best.Step == 0 || last.ValLoss <= best.Loss {
		return
	}
	kept := "is " + best.Checkpoint
	if best.Checkpoint == "" {
		kept = "is not kept: see checkpoint.every, keep_last"
	}
	fmt.Fprintf(w, "best        %.4f nats per token at step %d, whose checkpoint\n            %s\n", best.Loss, best.Step, kept)
	if passes := r.Passes(); passes >= 2 && last.Loss < best.Loss && !(last.ValLoss < overfit*best.Loss) {
		fmt.Fprintf(w, "hint        read %.0f times, the text is known by heart, with a loss of %.4f:\n            more text, or fewer --steps, would do better\n", passes, last.Loss)
	}
}

// energyText is what the devices used: all together, as a bill has it; per token,
// to compare; and how one knows.
func energyText(e run.Energy, tokens int64) string {
	source := "counted by the device"
	if e.Estimated {
		source = "estimated from its power, read every second"
	}
	return fmt.Sprintf("%s (%.3g kWh), %.3g J per token; %s, without the host",
		writers.Quantity(e.Joules, "J"), e.Joules/3.6e6, e.Joules/float64(tokens), source)
}

// result is what train --json prints. A resumed run that had nothing left to do
// has no losses, one without validation data no val_loss.
type result struct {
	Run         string         `json:"run"`
	Checkpoint  string         `json:"checkpoint"` // the newest
	Step        int            `json:"step"`
	Tokens      int64          `json:"tokens"`             // trained on, those before a resume included
	Loss        *writers.Float `json:"loss,omitempty"`     // of the last step, nats per token
	ValLoss     *writers.Float `json:"val_loss,omitempty"` // nats per token
	BitsPerByte *writers.Float `json:"bits_per_byte,omitempty"`
	Skipped     int            `json:"skipped,omitempty"` // steps of this process that made no update
	Seconds     writers.Float  `json:"seconds"`           // of this process

	// Of the devices, while this process trained; absent where they do not tell.
	Energy          *writers.Float `json:"energy_j,omitempty"`
	EnergyPerToken  *writers.Float `json:"joules_per_token,omitempty"`
	EnergyEstimated bool           `json:"energy_estimated,omitempty"` // from readings of the power
}

// printResult is printSummary for programs.
func printResult(w io.Writer, r *run.Run, last run.Progress, skipped int, elapsed time.Duration) error {
	newest, err := r.NewestCheckpoint()
	if err != nil {
		return err
	}
	float := func(x float64) *writers.Float { return (*writers.Float)(&x) }
	step := r.Trainer.StepsDone()
	out := result{
		Run: r.Folder.Dir, Checkpoint: newest, Step: step,
		Tokens: int64(step) * r.Trainer.TokensPerStep(), Skipped: skipped, Seconds: writers.Float(elapsed.Seconds()),
	}
	if last.Step > 0 {
		out.Loss = float(last.Loss)
	}
	if last.Evaluated {
		out.ValLoss = float(last.ValLoss)
		if r.Config.Model.Vocab == data.TextVocab {
			out.BitsPerByte = float(last.ValLoss / math.Ln2)
		}
	}
	if e, ok := r.Energy(); ok && last.Step > 0 {
		out.Energy, out.EnergyEstimated = float(e.Joules), e.Estimated
		out.EnergyPerToken = float(e.Joules / float64(r.Tokens()))
	}
	return json.NewEncoder(w).Encode(out)
}

const (
	sampleTokens = 320
	promptBytes  = 16
)

// samplePrompt is what the sample at the end continues: "func " for source in
// Go, else the beginning of a line of the validation text.
func samplePrompt(c *data.Corpus) (string, error) {
	if c.Info.Kind == data.KindGoSource || c.Info.Kind == data.KindEmbedded {
		return "func ", nil
	}
	stream := c.Train
	if c.Val.Len() > 0 {
		stream = c.Val
	}
	ids := make([]int32, min(stream.Len(), 1024))
	if err := stream.ReadTokens(ids, 0); err != nil {
		return "", err
	}
	text := make([]byte, len(ids))
	for i, id := range ids {
		text[i] = byte(id)
	}
	// The validation part may begin in the middle of a line.
	if _, rest, ok := bytes.Cut(text, []byte("\n")); ok {
		text = rest
	}
	text = bytes.TrimLeftFunc(text, unicode.IsSpace)
	n := 0
	for n < len(text) {
		r, size := utf8.DecodeRune(text[n:])
		if r == utf8.RuneError || !unicode.IsGraphic(r) || n+size > promptBytes {
			break
		}
		n += size
	}
	if n == 0 {
		return "The ", nil
	}
	return string(text[:n]), nil
}

func printSample(ctx context.Context, t *terminal, d device, path, prompt string) (err error) {
	w, err := run.OpenWeights(path, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	dev, err := d.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	g, err := infer.NewGenerator(ctx, w.Model, w.Recipe, w, telling{dev, t.err}, len(prompt)+sampleTokens)
	if err != nil {
		return err
	}
	fmt.Fprint(t.out, "\n")
	err = t.writeText(ctx, g, prompt, sampleTokens, infer.Sampling{Temperature: 0.8, TopP: 0.95, Seed: 1})
	fmt.Fprint(t.out, "\n")
	return err
}
