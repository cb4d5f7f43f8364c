package train

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/nn"
	"octet/recipe"
)

// poisoned runs programs op by op and lets poison spoil what an op wrote, also where
// somebody hunts for it.
type poisoned struct {
	backend.Backend
	poison backend.Observer
}

func (d *poisoned) Load(programs ...*backend.Program) ([]backend.Executable, error) {
	list, err := d.Backend.Load(programs...)
	for i, x := range list {
		list[i] = &poisonedProgram{x, d}
	}
	return list, err
}

type poisonedProgram struct {
	backend.Executable
	device *poisoned
}

func (x *poisonedProgram) Run(ctx context.Context) error {
	return x.RunObserved(ctx, func(*backend.Node, backend.Memory) error { return nil })
}

func (x *poisonedProgram) RunObserved(ctx context.Context, observe backend.Observer) error {
	return x.Executable.RunObserved(ctx, func(n *backend.Node, m backend.Memory) error {
		if x.device.poison != nil {
			if err := x.device.poison(n, m); err != nil {
				return err
			}
		}
		return observe(n, m)
	})
}

// spares are what cannot spoil a gradient, by op, field and tensor, and why.
var spares = map[string]string{
	"crossentropy Loss":                        "the gradient does not depend on it: it is reported, and a spike",
	"sum Out loss":                             "likewise",
	"stepgate GradNorm":                        "it is reported when the decision has been made",
	"swigluamax Seen":                          "a maximum over micro-batches: one that is not finite keeps the scale",
	"fill Out swiglu.channel_max":              "likewise",
	"pushhistory History":                      "likewise",
	"adamw Amaxes":                             "likewise",
	"amax Out":                                 "likewise",
	"updatescale Scale layers.0.mlp.hidden":    "the micro-batch has its own scale",
	"updatescale ScaleInv layers.0.mlp.hidden": "likewise",
}

// Whatever an op of a step writes: if it is not finite the step is skipped, and the
// hunt names that op, or, where an update left it behind, the first one to read it.
func TestHunt(t *testing.T) {
	all, hunted, spared := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, c := range huntingGrounds(t) {
		j, err := NewJob(c, specOf(t, "emu"))
		require.NoError(t, err)
		fresh := map[string]bool{} // kinds of ops that no configuration before had
		for _, program := range []*backend.Program{j.Micro[Variant{true, true}], j.Update} {
			for i, n := range program.Nodes() {
				kind := fmt.Sprintf("%T", n.Op)
				if fresh[kind] = fresh[kind] || !all[kind]; !fresh[kind] {
					continue
				}
				all[kind] = true
				for k, o := range n.Operands() {
					if o.Access == backend.In || !o.Tensor.DType.IsFloat() {
						continue
					}
					what := strings.ToLower(strings.TrimPrefix(kind, "*backend.")) + " " + o.Field + " " + o.Tensor.Name
					found := hunt(t, c, program == j.Update, i, k)
					switch {
					case found == nil:
						reason := reasonFor(what)
						require.NotEmpty(t, reason, "%s: %s: %s is not finite, and nothing came of it", c.Recipe, n.Path(), what)
						spared[reason] = true
						continue
					case program != j.Update:
						require.Equal(t, n.Path(), found.Node.Path(), what)
						require.True(t, spoiled(found, func(s backend.OperandStats) bool { return s.Field == o.Field && s.Tensor.Name == o.Tensor.Name }), "%s: %v", what, found)
					case found.Node.Path() != n.Path():
						require.True(t, spoiled(found, func(s backend.OperandStats) bool { return s.Access != backend.Out }), "%s: %v", what, found)
					}
					hunted[kind] = true
				}
			}
		}
	}
	require.Len(t, spared, len(spares), "a reason that nothing has")
	for kind := range all {
		if !hunted[kind] {
			require.Contains(t, []string{"*backend.Sum", "*backend.PushHistory", "*backend.Amax"}, kind, "none of its results was found")
		}
	}
}

// huntingGrounds have every op that a step of any recipe has.
func huntingGrounds(t *testing.T) (list []Config) {
	for _, name := range append([]string{"fp8-smooth"}, recipe.Names()...) {
		for _, activation := range []nn.Activation{"", nn.GELU} {
			c := small(t, name)
			c.Model.Layers, c.Train.OnNonfinite, c.Train.OnSpike = 1, 1, "off"
			if activation != "" {
				c.Model.Activation, c.Precision.Smooth = string(activation), recipe.NoSmooth.String()
			}
			list = append(list, c)
		}
	}
	return list
}

// hunt trains, spoils what the i-th op of a micro-batch or of the update writes as its
// k-th operand, each time that it does, and returns what was found; nil if three steps
// went on as if nothing had been.
func hunt(t *testing.T, c Config, update bool, i, k int) *backend.NonFinite {
	j, err := NewJob(c, specOf(t, "emu"))
	require.NoError(t, err)
	devices, err := backend.Open("emu", backend.Options{Threads: 1})
	require.NoError(t, err)
	defer devices[0].Close()
	d := &poisoned{Backend: devices[0]}
	tr, err := NewTrainer(j, testCorpus(), []backend.Backend{d})
	require.NoError(t, err)
	require.NoError(t, tr.Init(t.Context()))
	steps(t, tr, 1)

	program := j.Micro[Variant{true, true}]
	if update {
		program = j.Update
	}
	target := program.Nodes()[i]
	x := target.Operands()[k].Tensor
	nan := bytes.Repeat([]byte{0xff}, int(x.Bytes())) // in every format
	d.poison = func(n *backend.Node, m backend.Memory) error {
		if n != target {
			return nil
		}
		return m.Write(x, nan)
	}
	for range 3 {
		res, err := tr.Next(t.Context())
		if err == nil {
			require.False(t, res.Skipped)
			continue
		}
		require.ErrorIs(t, err, ErrNonFinite)
		require.True(t, res.Skipped)
		found, ok := errors.AsType[*backend.NonFinite](err)
		require.True(t, ok, "%s: %v", target.Path(), err)
		return found
	}
	return nil
}

// spoiled reports whether one of certain operands has NaNs.
func spoiled(f *backend.NonFinite, which func(backend.OperandStats) bool) bool {
	return slices.ContainsFunc(f.Operands, func(s backend.OperandStats) bool { return s.NaN > 0 && which(s) })
}

func reasonFor(what string) string {
	for prefix := range spares {
		if strings.HasPrefix(what, prefix) {
			return prefix
		}
	}
	return ""
}
