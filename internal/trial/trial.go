// Package trial trains a small model for a few steps on a device and on emu's model of
// that device and compares the losses. octet doctor uses it to test whether a device
// learns.
package trial

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"octet/backend"
	"octet/data"
	"octet/infer"
	"octet/recipe"
	"octet/train"
)

// recipes are the trained recipes: BF16, and the method with FP8 GEMMs and moments.
var recipes = []string{"bf16", "fp8-smooth"}

// count is the number of steps.
const count = 50

// config returns a configuration whose step takes milliseconds on any device.
func config(recipe string) train.Config {
	c := train.Default()
	c.Recipe = recipe
	c.Model.Layers, c.Model.Dim, c.Model.Heads, c.Model.KVHeads, c.Model.FFN = 2, 64, 4, 2, 96
	c.Data.Seq, c.Train.MicroBatch, c.Train.Accumulate, c.Train.HealthEvery = 32, 4, 2, 0
	c.Train.Steps = count
	return c
}

// text is the training text, which is easy to learn.
var text = strings.Repeat("to be or not to be, that is the question: whether 'tis nobler in the mind to suffer. ", 200)

// Programs returns lowered programs that together contain every op that a device may have
// to run: those of training with every recipe that it supports and every activation, and
// those of generation.
func Programs(s backend.Spec) (list []*backend.Program, err error) {
	configs := make([]train.Config, 0, len(recipe.Names()))
	for _, name := range recipe.Names() {
		configs = append(configs, config(name))
	}
	for _, activation := range []string{"gelu", "relu"} {
		c := config("bf16")
		c.Model.Activation = activation
		configs = append(configs, c)
	}
	for _, c := range configs {
		c.Train.HealthEvery = count
		j, err := train.NewJob(c, s)
		if errors.Is(err, backend.ErrUnsupported) {
			continue
		}
		if err != nil {
			return nil, err
		}
		programs, err := backend.Lower(s, j.Programs()...)
		if err != nil {
			return nil, err
		}
		list = append(list, programs...)
	}
	for _, name := range recipes {
		j, err := train.NewJob(config(name), s)
		if err != nil {
			return nil, err
		}
		programs, err := infer.Programs(j.Config.ModelConfig(), j.Recipe, s, 1)
		if err != nil {
			return nil, err
		}
		if programs, err = backend.Lower(s, programs...); err != nil {
			return nil, err
		}
		list = append(list, programs...)
	}
	return list, nil
}

// tolerance bounds the difference of the losses of two runs, in nats. Other orders of sums
// and other random bits add up to about 0.01 by the last steps.
const tolerance = 0.05

// Compare prints the losses on a backend beside those on its model in emu and reports
// whether they agree.
func Compare(ctx context.Context, out io.Writer, name string) bool {
	agree := true
	for _, recipe := range recipes {
		if err := compare(ctx, out, name, recipe); err != nil {
			fmt.Fprintf(out, "✗ %d steps of %s: %v\n", count, recipe, err)
			agree = false
		}
	}
	return agree
}

func compare(ctx context.Context, out io.Writer, name, recipe string) error {
	got, spec, err := losses(ctx, name, recipe)
	if err != nil {
		return err
	}
	model := modelOf(spec)
	want, _, err := losses(ctx, model, recipe)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%d steps of %s: loss on %s, on %s\n", count, recipe, name, model)
	worst := 0.0
	for i := range got {
		apart := math.Abs(got[i] - want[i])
		worst = max(worst, apart)
		if n := i + 1; n == 1 || n == 2 || n == 5 || n%10 == 0 {
			fmt.Fprintf(out, "  %4d  %.6f  %.6f\n", n, got[i], want[i])
		}
		if !(apart <= tolerance) {
			return fmt.Errorf("step %d: the loss is %.6f, but on %s it is %.6f", i+1, got[i], model, want[i])
		}
	}
	if last := got[count-1]; last > 0.9*got[0] {
		return fmt.Errorf("the model does not learn: the first loss is %.6f, the last %.6f", got[0], last)
	}
	fmt.Fprintf(out, "✓ losses differ by at most %.2g nats\n", worst)
	return nil
}

// modelOf returns the name of emu's model of a device, "emu" if it has none. It is the
// first word of the device's arithmetic.
func modelOf(s backend.Spec) string {
	word, _, _ := strings.Cut(s.Arithmetic, "+")
	if _, err := backend.SpecOf("emu:" + word); err != nil {
		return "emu"
	}
	return "emu:" + word
}

func losses(ctx context.Context, name, recipe string) (list []float64, s backend.Spec, err error) {
	d, err := backend.Open(name, backend.Options{})
	if err != nil {
		return nil, s, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	s = d.Spec()
	j, err := train.NewJob(config(recipe), s)
	if err != nil {
		return nil, s, err
	}
	t, err := train.NewTrainer(j, &data.Corpus{Train: data.Text(text)}, d, nil)
	if err != nil {
		return nil, s, err
	}
	if err := t.Init(ctx); err != nil {
		return nil, s, err
	}
	for range count {
		r, err := t.Next(ctx)
		if err != nil {
			return nil, s, err
		}
		list = append(list, r.Loss)
	}
	return list, s, nil
}
