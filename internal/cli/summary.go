package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode"
	"unicode/utf8"

	"octet/data"
	"octet/infer"
	"octet/internal/writers"
	"octet/run"
)

// printStopped prints where a signal stopped the run, and the command that resumes it.
func printStopped(t *terminal, r *run.Run, last run.Progress) {
	fmt.Fprintf(prose(t.err), "octet: stopped after step %d of %d, saved in %s\n", last.Step, last.Steps, last.Checkpoint)
	if last.Evaluated {
		fmt.Fprintf(t.err, "validation  %s\n", lossText(last, r))
	}
	if last.Step < last.Steps {
		fmt.Fprintf(t.err, "resume      %s train --resume --out %s\n", shellQuote(t.name), shellQuote(r.Dir))
	}
}

// printSummary prints the result of a complete run: its loss, a sample, and the next command.
func printSummary(ctx context.Context, t *terminal, d device, r *run.Run, last run.Progress, elapsed time.Duration) error {
	newest, err := r.NewestCheckpoint()
	if err != nil {
		return err
	}
	if last.Step == 0 {
		fmt.Fprintf(prose(t.out), "nothing to do: all %d steps are done; train longer with --steps N\n", r.Config.Train.Steps)
	} else {
		tokens := r.Tokens()
		since := ""
		if r.Resumed > 0 {
			since = " since the resume"
		}
		fmt.Fprintf(t.out, "trained     %s tokens in %s%s\n", writers.Count(tokens), writers.Clock(elapsed), since)
		if e, ok := r.Energy(); ok {
			fmt.Fprintf(prose(t.out), "energy      %s\n", energyText(e, tokens))
		}
	}
	if last.Evaluated {
		fmt.Fprintf(t.out, "validation  %s\n", lossText(last, r))
		printBest(t.out, r, last)
	}
	if err := printPicture(t.out, r.Dir); err != nil {
		return err
	}
	next := fmt.Sprintf("eval %s", shellQuote(r.Dir))
	if r.Corpus.Tokenizer != nil {
		prompt, err := samplePrompt(r.Corpus)
		if err != nil {
			return err
		}
		if err := r.ReleaseDevice(); err != nil { // the trainer and the generator may not fit together
			return err
		}
		if err := printSample(ctx, t, d, newest, prompt); err != nil {
			return err
		}
		next = fmt.Sprintf("generate %s --prompt %s", shellQuote(r.Dir), doubleQuote(prompt))
	}
	fmt.Fprintf(t.out, "checkpoint  %s\nnext        %s %s\n", newest, shellQuote(t.name), next)
	return nil
}

// overfit is the ratio of last to best validation loss from which a hint is printed. The
// order of the text alone may change the loss by less than a hundredth.
const overfit = 1.01

// printBest prints the step with the lowest validation loss if that is not the last one,
// and a hint if the run overfits.
func printBest(w io.Writer, r *run.Run, last run.Progress) {
	best, err := r.BestSoFar()
	if err != nil { // the run is complete all the same
		fmt.Fprintf(w, "best        unknown: %v\n", err)
		return
	}
	if best.Step == 0 || last.ValLoss <= best.Loss {
		return
	}
	kept := best.Checkpoint
	if best.Checkpoint == "" {
		kept = "its checkpoint is not kept: see checkpoint.every, keep_last"
	}
	fmt.Fprintf(w, "best        %.4f %s at step %d\n            %s\n", best.Loss, lossUnit(r), best.Step, kept)
	if passes := r.Passes(); passes >= 2 && last.Loss < best.Loss && !(last.ValLoss < overfit*best.Loss) {
		fmt.Fprintf(w, "hint        overfitting: the text was read %.0f times, the training loss is %.4f;\n            use more text or fewer --steps\n", passes, last.Loss)
	}
}

// energyText writes the energy of all devices, in total and per token, and its source.
func energyText(e run.Energy, tokens int64) string {
	source := "counted by the device"
	if e.Estimated {
		source = "estimated from its power, read every second"
	}
	return fmt.Sprintf("%s (%.3g kWh), %.3g J per token; %s, host excluded",
		writers.Quantity(e.Joules, "J"), e.Joules/3.6e6, e.Joules/float64(tokens), source)
}

// result is the output of train --json. A resumed run with no steps left has no losses; a
// run without validation data has no val_loss.
type result struct {
	Run         string         `json:"run"`
	Checkpoint  string         `json:"checkpoint"` // the newest
	Step        int            `json:"step"`
	Tokens      int64          `json:"tokens"`                 // trained on, including those before a resume
	Loss        *writers.Float `json:"loss,omitempty"`         // of the last step, nats per token
	ValLoss     *writers.Float `json:"val_loss,omitempty"`     // nats per token
	ValAccuracy *writers.Float `json:"val_accuracy,omitempty"` // of the validation pairs, with train.objective = "dpo"
	BitsPerByte *writers.Float `json:"bits_per_byte,omitempty"`
	Skipped     int            `json:"skipped,omitempty"` // steps of this process without an update
	Seconds     writers.Float  `json:"seconds"`           // of this process

	// Energy of the devices while this process trained; absent if a device does not report it.
	Energy          *writers.Float `json:"energy_j,omitempty"`
	EnergyPerToken  *writers.Float `json:"joules_per_token,omitempty"`
	EnergyEstimated bool           `json:"energy_estimated,omitempty"` // from power readings
}

// printResult prints the result of a complete run as JSON.
func printResult(w io.Writer, r *run.Run, last run.Progress, skipped int, elapsed time.Duration) error {
	newest, err := r.NewestCheckpoint()
	if err != nil {
		return err
	}
	float := func(x float64) *writers.Float { return (*writers.Float)(&x) }
	step := r.Trainer.StepsDone()
	out := result{
		Run: r.Dir, Checkpoint: newest, Step: step,
		Tokens: int64(step) * r.Trainer.TokensPerStep(), Skipped: skipped, Seconds: writers.Float(elapsed.Seconds()),
	}
	if last.Step > 0 {
		out.Loss = float(last.Loss)
	}
	if last.Evaluated {
		out.ValLoss = float(last.ValLoss)
		if n := last.ValPairs; n.Pairs > 0 {
			out.ValAccuracy = float(n.Accuracy)
		}
		if bits, ok := validationBits(last.ValLoss, r); ok {
			out.BitsPerByte = float(bits)
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

// samplePrompt returns the prompt of the final sample: "func " for Go source, otherwise
// the beginning of a line of the validation text.
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
	var text []byte
	for _, id := range ids {
		text = append(text, c.Tokenizer.Text(id)...)
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

// printSample generates text from the checkpoint at path and prints it.
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
	tok, err := w.Tokenizer()
	if err != nil {
		return err
	}
	ids := promptIDs(tok, prompt, false)
	g, err := infer.NewGenerator(ctx, w.Model, w.Recipe, w, compileNotice{dev, t.err}, infer.Cache{Batch: 1, Context: len(ids) + sampleTokens})
	if err != nil {
		return err
	}
	fmt.Fprint(t.out, "\n")
	err = t.writeText(ctx, g, tok, prompt, ids, sampleTokens, infer.Sampling{Temperature: 0.8, TopP: 0.95, Seed: 1}, nil)
	fmt.Fprint(t.out, "\n")
	return err
}
