package train

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/nn"
	"octet/recipe"
)

// corrupting runs programs op by op and calls corrupt after each op, which may overwrite
// the op's results, also during the search for the first non-finite value.
type corrupting struct {
	backend.Backend
	corrupt backend.Observer
}

// wrap makes d the device of a team.
func (d *corrupting) wrap(b backend.Backend) backend.Backend {
	d.Backend = b
	return d
}

func (d *corrupting) Load(programs ...*backend.Program) ([]backend.Executable, error) {
	list, err := d.Backend.Load(programs...)
	for i, x := range list {
		list[i] = &corruptingProgram{x, d}
	}
	return list, err
}

type corruptingProgram struct {
	backend.Executable
	device *corrupting
}

func (x *corruptingProgram) Run(ctx context.Context) error {
	return x.RunObserved(ctx, func(*backend.Node, backend.Memory) error { return nil })
}

func (x *corruptingProgram) RunObserved(ctx context.Context, observe backend.Observer) error {
	return x.Executable.RunObserved(ctx, func(n *backend.Node, m backend.Memory) error {
		if x.device.corrupt != nil {
			if err := x.device.corrupt(n, m); err != nil {
				return err
			}
		}
		return observe(n, m)
	})
}

// harmless lists results that cannot make a step non-finite, by op, field and tensor, with the reason.
var harmless = map[string]string{
	"crossentropy Loss":                        "no gradient depends on it; the loss is reported as a spike",
	"sum Out loss":                             "as above",
	"stepgate GradNorm":                        "StepGate has decided before it writes it",
	"swigluamax Seen":                          "a maximum over micro-batches: a non-finite one leaves the scale unchanged",
	"fill Out swiglu.channel_max":              "as above",
	"pushhistory History":                      "as above",
	"adamw Amaxes":                             "as above",
	"amax Out":                                 "as above",
	"*nn.directionclip Distance":               "only learning rates depend on it, and where a sum is not finite, the clipping value is not either",
	"updatescale Scale layers.0.mlp.hidden":    "the micro-batch computes its own scale",
	"updatescale ScaleInv layers.0.mlp.hidden": "as above",
}

// A non-finite result of any op of a step skips the step. The search names that op or,
// if an earlier update wrote the result, the first op that reads it.
func TestFindNonFinite(t *testing.T) {
	all, located, reasons := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, c := range nonFiniteConfigs(t) {
		j, err := NewJob(c, specOf(t, "emu"))
		require.NoError(t, err)
		fresh := map[string]bool{} // kinds of ops that no earlier configuration has
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
					found := findCorrupted(t, c, program == j.Update, i, k, o.Tensor.Elems())
					switch {
					case found == nil:
						reason := reasonFor(what)
						require.NotEmpty(t, reason, "%s: %s: %s is not finite, but no step was skipped", c.Recipe, n.Path(), what)
						reasons[reason] = true
						continue
					case program != j.Update:
						require.Equal(t, n.Path(), found.Node.Path(), what)
						require.True(t, anyNaN(found, func(s backend.OperandStats) bool { return s.Field == o.Field && s.Tensor.Name == o.Tensor.Name }), "%s: %v", what, found)
					case found.Node.Path() != n.Path():
						require.True(t, anyNaN(found, func(s backend.OperandStats) bool { return s.Access != backend.Out }), "%s: %v", what, found)
					}
					located[kind] = true
				}
			}
		}
	}
	require.Len(t, reasons, len(harmless), "a reason that no op uses")
	for kind := range all {
		if !located[kind] {
			require.Contains(t, []string{"*backend.Sum", "*backend.PushHistory", "*backend.Amax"}, kind, "none of its results was located")
		}
	}
}

// nonFiniteConfigs returns configurations that together have every op of a step of any recipe.
func nonFiniteConfigs(t *testing.T) (list []Config) {
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

// One NaN that is cast to a format without NaN skips the step, and makes the loss of an
// evaluation NaN: the scale carries it.
func TestNaNReachesTheStepThroughEveryFormat(t *testing.T) {
	rows := map[string][]PrecisionRow{
		"e2m1 per tensor": {
			{Scope: "layers.*", GEMM: "fprop", Operand: "input", Granularity: "row"},
			{Scope: "layers.*", Format: "e2m1", Scaling: "current", Rounding: "nearest"},
		},
		"int8 per row": {{Scope: "layers.*", Format: "int8", Scaling: "current", Granularity: "row", Scale: "fp32", Rounding: "nearest"}},
		"mxfp4":        {{Scope: "layers.*", Format: "e2m1", Scaling: "current", Granularity: "1x32", Scale: "e8m0", Rounding: "nearest"}},
		"nvfp4":        {{Scope: "layers.*", Format: "e2m1", Scaling: "current", Granularity: "1x16", Scale: "e4m3+fp32", Rounding: "nearest"}},
		"e3m2 per row": {{Scope: "layers.*", Format: "e3m2", Scaling: "current", Granularity: "row", Scale: "pow2", Rounding: "nearest"}},
	}
	for name, list := range rows {
		c := small(t, "fp8-current")
		c.Precision.Rows, c.Model.Layers, c.Train.OnNonfinite = list, 1, 1
		j, err := NewJob(c, specOf(t, "emu"))
		require.NoError(t, err)
		tried := 0
		for i, k := range castInputs(j.Micro[Variant{true, true}]) {
			tried++
			require.NotNil(t, findCorrupted(t, c, false, i, k, 1), "%s: a NaN in operand %d of op %d vanished", name, k, i)
		}
		require.GreaterOrEqual(t, tried, 10, name)

		tr, d := corruptible(t, c)
		inputs := castInputs(tr.Eval)
		require.Len(t, inputs, 4, "%s: inputs of attention, o_proj, MLP and down_proj", name)
		for i, k := range inputs {
			d.corrupt = overwrite(tr.Eval, i, k, 1)
			loss, err := tr.Evaluate(t.Context())
			require.NoError(t, err)
			require.True(t, math.IsNaN(loss), "%s: a NaN in operand %d of op %d of the evaluation vanished", name, k, i)
		}
	}
}

// castInputs returns where the X of every Quantize to a format of up to eight bits is
// computed: by index of the op, the operand's index.
func castInputs(p *backend.Program) map[int]int {
	at, nodes := map[int]int{}, p.Nodes()
	for i, n := range nodes {
		q, ok := n.Op.(*backend.Quantize)
		if !ok || !slices.ContainsFunc(q.Out, func(c backend.Cast) bool { return c.Out.DType.IsQuantized() }) {
			continue
		}
		for from := i - 1; from >= 0; from-- {
			if k := slices.IndexFunc(nodes[from].Operands(), func(o backend.Operand) bool { return o.Access != backend.In && o.Tensor == q.X }); k >= 0 {
				at[from] = k
				break
			}
		}
	}
	return at
}

// findCorrupted trains while every run of the i-th op of the micro-batch or the update has
// the first elements of its k-th operand overwritten with NaN, and returns the error that
// locates it; nil if three steps succeed.
func findCorrupted(t *testing.T, c Config, update bool, i, k, elems int) *backend.NonFinite {
	tr, d := corruptible(t, c)
	program := tr.Micro[Variant{true, true}]
	if update {
		program = tr.Update
	}
	d.corrupt = overwrite(program, i, k, elems)
	for range 3 {
		res, err := tr.Next(t.Context())
		if err == nil {
			require.False(t, res.Skipped)
			continue
		}
		require.ErrorIs(t, err, ErrNonFinite)
		require.True(t, res.Skipped)
		found, ok := errors.AsType[*backend.NonFinite](err)
		require.True(t, ok, "%s: %v", program.Nodes()[i].Path(), err)
		return found
	}
	return nil
}

// corruptible returns a trainer after one step, and its device.
func corruptible(t *testing.T, c Config) (*team, *corrupting) {
	j, err := NewJob(c, specOf(t, "emu"))
	require.NoError(t, err)
	d := &corrupting{}
	tr := newTeam(t, func() (*Job, error) { return j, nil }, 1, d.wrap)
	require.NoError(t, tr.Init(t.Context()))
	steps(t, tr, 1)
	return tr, d
}

// overwrite writes NaN into the first elements of operand k after each run of op i.
func overwrite(p *backend.Program, i, k, elems int) backend.Observer {
	target := p.Nodes()[i]
	x := target.Operands()[k].Tensor
	nan := bytes.Repeat([]byte{0xff}, x.DType.Bytes(elems)) // NaN in every format that has it
	return func(n *backend.Node, m backend.Memory) error {
		if n != target {
			return nil
		}
		data, err := m.Read(x)
		copy(data, nan)
		return errors.Join(err, m.Write(x, data))
	}
}

// anyNaN reports whether any of the operands that which selects has NaNs.
func anyNaN(f *backend.NonFinite, which func(backend.OperandStats) bool) bool {
	return slices.ContainsFunc(f.Operands, func(s backend.OperandStats) bool { return s.NaN > 0 && which(s) })
}

func reasonFor(what string) string {
	for prefix := range harmless {
		if strings.HasPrefix(what, prefix) {
			return prefix
		}
	}
	return ""
}
