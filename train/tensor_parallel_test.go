package train

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// layout is c on some ranks, of which tensor share each layer. The batch of a step is the same.
func layout(c Config, ranks, tensor, stage int) Config {
	c.Train.Ranks, c.Train.Tensor, c.Train.ZeroStage = ranks, tensor, stage
	c.Train.MicroBatch = c.Train.MicroBatch * tensor / ranks
	return c
}

// divisible is a small model whose layers four ranks can share.
func divisible(t *testing.T, recipe string) Config {
	t.Helper()
	c := small(t, recipe)
	c.Model.Dim, c.Model.Heads, c.Model.KVHeads, c.Model.FFN = 64, 4, 4, 128
	return c
}

// inFP32 is a recipe with the compute format FP32, in which partial sums travel without rounding, with
// scales that are not rounded to powers of two, which would hide small differences, and without random
// bits, which ranks that share layers draw for themselves.
func inFP32(t *testing.T, name string) string {
	t.Helper()
	r, err := recipe.Lookup(name)
	require.NoError(t, err)
	r.Name, r.Compute, r.Smooth.Exact = name+"-in-fp32", fp8.F32, r.Smooth.On()
	nearest := fp8.Nearest
	r.Rows = append([]recipe.Row{{Scale: recipe.Exact, Rounding: &nearest}}, r.Rows...)
	require.NoError(t, recipe.Register(r))
	return r.Name
}

// Ranks that share layers train as one rank does, up to the order of sums: no further from it than two
// ranks with batches of their own are, whose gradients alone have another order.
func TestTensorParallelTrains(t *testing.T) {
	for _, name := range []string{"fp8-delayed", "fp8-current", "fp8-smooth"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := divisible(t, name)
			const n = 50
			want := steps(t, newTrainer(t, c, 1, false), n)
			for _, l := range [][3]int{{2, 1, 0}, {2, 2, 0}, {4, 2, 0}, {4, 2, 3}, {4, 4, 0}} {
				got := steps(t, newTrainer(t, layout(c, l[0], l[1], l[2]), 1, false), n)
				for i := range want {
					require.InEpsilon(t, want[i].Loss, got[i].Loss, 5e-3, "layout %v, step %d", l, i+1)
				}
				require.Less(t, got[n-1].Loss, 0.5*got[0].Loss, "layout %v", l)
			}
		})
	}
}

// Every recipe trains on ranks that share layers, or is refused by name.
func TestTensorParallelRecipes(t *testing.T) {
	refused := map[string]string{
		"int8-unified": "scaling direction", "torchao-adam": "state_flat", "coat": "state_block", "coat-adam": "state_block",
	}
	for _, name := range recipe.Names() {
		c := divisible(t, name)
		if r, err := recipe.Lookup(name); err != nil || r.Kind == recipe.Own {
			continue
		}
		if cause := refused[name]; cause != "" {
			_, err := NewJob(layout(c, 2, 2, 0), specOf(t, "emu"))
			require.ErrorContains(t, err, cause, name)
			continue
		}
		want := steps(t, newTrainer(t, c, 1, false), 2)
		for _, l := range [][3]int{{2, 2, 1}, {4, 2, 3}} {
			for i, r := range steps(t, newTrainer(t, layout(c, l[0], l[1], l[2]), 1, false), 2) {
				require.InEpsilon(t, want[i].Loss, r.Loss, 4e-3, "recipe %s, layout %v, step %d", name, l, i+1)
			}
		}
	}
}

// observed runs the first step and returns, for each rank, what its ops chose: scales by name, and the
// smoothing scales of channels.
func observed(t *testing.T, tm *team) []map[string][]float32 {
	t.Helper()
	chosen := make([]map[string][]float32, len(tm.ranks))
	for rank, tr := range tm.ranks {
		list := map[string][]float32{}
		chosen[rank] = list
		tr.Execute = func(ctx context.Context, _ string, x backend.Executable) error {
			return x.RunObserved(ctx, func(n *backend.Node, m backend.Memory) error {
				var scales []*backend.Tensor
				switch o := n.Op.(type) {
				case *backend.UpdateScale:
					scales = append(scales, o.Scale)
				case *backend.SmoothScale:
					scales = append(scales, o.C, o.HScale, o.WScale)
				}
				for _, x := range scales {
					if x == nil {
						continue
					}
					raw, err := m.Read(x)
					if err != nil {
						return err
					}
					list[x.Name] = make([]float32, x.Elems())
					fp8.F32.Decode(list[x.Name], raw)
				}
				return nil
			})
		}
	}
	steps(t, tm, 1)
	return chosen
}

// sameScales returns an error unless ranks choose the scales of the rank that has all layers and the same
// batch, of channels those of their own. Sums have another order, by which a code may round the other way.
func sameScales(want, got []map[string][]float32) error {
	for rank, chosen := range got {
		for name, one := range want[rank/(len(got)/len(want))] {
			x, ok := chosen[name]
			if !ok {
				return fmt.Errorf("rank %d has no %s", rank, name)
			}
			own := one
			if len(x) < len(one) { // channels
				at := rank % (len(one) / len(x))
				own = one[at*len(x):][:len(x)]
			}
			for i := range own {
				if math.Abs(float64(x[i]/own[i])-1) > 1e-2 {
					return fmt.Errorf("%s: element %d is %v on rank %d, %v on one rank", name, i, x[i], rank, own[i])
				}
			}
		}
	}
	return nil
}

// without is a job whose programs lack the reductions that drop selects.
func without(c Config, drop func(*backend.AllReduce) bool) (*Job, error) {
	spec, err := backend.SpecOf("emu")
	if err != nil {
		return nil, err
	}
	j, err := NewJob(c, spec)
	if err != nil {
		return nil, err
	}
	cut := func(p *backend.Program) *backend.Program {
		q, failure := backend.Rewrite(p, func(r *backend.Rewriter, n *backend.Node) {
			if o, ok := n.Op.(*backend.AllReduce); !ok || !drop(o) {
				r.Add(n, n.Op)
			}
		})
		if failure != nil {
			err = failure
		}
		return q
	}
	for v, p := range j.Micro {
		j.Micro[v] = cut(p)
	}
	j.Update, j.Calibrate, j.Prepare = cut(j.Update), cut(j.Calibrate), cut(j.Prepare)
	return j, err
}

// Ranks that share layers choose the scales of one rank. Without the reduction of a maximum, or with that
// of Smooth-SwiGLU's channels over ranks that have other channels, they do not.
func TestTensorParallelChoosesTheScalesOfOneRank(t *testing.T) {
	ofGroup := func(o *backend.AllReduce) bool { return o.Reduce == backend.ReduceMax && o.Group.Stride == 1 }
	ofAll := func(o *backend.AllReduce) bool { return o.Reduce == backend.ReduceMax && o.Group.All() }
	ofSmooth := func(o *backend.AllReduce) bool { return ofGroup(o) && strings.HasSuffix(o.X.Name, "smooth.amax") }
	for _, r := range []struct {
		name    string
		control map[string]func(*backend.AllReduce) bool
	}{
		{"fp8-delayed", map[string]func(*backend.AllReduce) bool{"amaxes of a step": ofAll}},
		{"fp8-current", map[string]func(*backend.AllReduce) bool{"amaxes of a group": ofGroup, "amaxes of a step": ofAll}},
		{"fp8-smooth", map[string]func(*backend.AllReduce) bool{"amaxes of a group": ofGroup, "smoothed amaxes": ofSmooth, "amaxes of a step": ofAll}},
	} {
		t.Run(r.name, func(t *testing.T) {
			c := divisible(t, inFP32(t, r.name))
			for _, l := range [][3]int{{2, 2, 0}, {4, 2, 1}, {4, 4, 0}} {
				want := observed(t, newTrainer(t, layout(c, l[0]/l[1], 1, l[2]), 1, false))
				require.NotEmpty(t, want[0])
				c := layout(c, l[0], l[1], l[2])
				require.NoError(t, sameScales(want, observed(t, newTrainer(t, c, 1, false))), "layout %v", l)
				for name, drop := range r.control {
					tm := newTeam(t, func() (*Job, error) { return without(c, drop) }, 1, nil)
					require.NoError(t, tm.Init(t.Context()))
					require.Error(t, sameScales(want, observed(t, tm)), "layout %v without the %s", l, name)
				}
			}
		})
	}
}

// A checkpoint of any layout has the same tensors, and resumes in any other.
func TestLayoutsResumeInEachOther(t *testing.T) {
	list := [][3]int{{1, 1, 0}, {2, 1, 1}, {2, 2, 0}, {4, 2, 3}, {4, 4, 0}}
	for name, vocab := range map[string]int{"fp8-smooth": 256, "fp8-lm": 256, "te-delayed": 257} { // 257 is padded to 272, 288 and 320
		t.Run(name, func(t *testing.T) {
			c := divisible(t, name)
			c.Model.Vocab, c.Model.QKVBias, c.Model.QKNorm = vocab, true, "learned"
			for _, from := range list {
				first := newTrainer(t, layout(c, from[0], from[1], from[2]), 1, false)
				steps(t, first, 2)
				state := snapshot(t, first)
				want, next := saved(t, first), steps(t, first, 1)
				for _, to := range list {
					tm := newTrainer(t, layout(c, to[0], to[1], to[2]), 1, false)
					require.NoError(t, tm.Restore(t.Context(), state))
					if got := saved(t, tm); vocab == 256 || from[1] == to[1] {
						for tensor, sum := range want {
							if tensor != "optimizer reduce.mu" { // only shards have it
								require.Equal(t, sum, got[tensor], "%s from %v to %v", tensor, from, to)
							}
						}
					}
					require.InEpsilon(t, next[0].Loss, steps(t, tm, 1)[0].Loss, 3e-3, "from %v to %v", from, to)
				}
			}
		})
	}
}

// The casts that ranks gather have half the bytes of BF16; partial sums have its.
func TestTensorParallelTraffic(t *testing.T) {
	of := func(recipe string) (gathered, scattered int64) {
		c := layout(divisible(t, recipe), 4, 2, 0)
		j, err := NewJob(c, specOf(t, "emu"))
		require.NoError(t, err)
		for _, n := range j.Micro[Variant{true, true}].Nodes() {
			switch op, whole, g := backend.Exchanged(n.Op); {
			case g.Stride != 1 || !strings.HasPrefix(whole.Name, "layers."): // embedding and head are BF16
			case op == "all-gather":
				gathered += whole.Bytes()
			case op == "all-to-all":
				scattered += whole.Bytes()
			}
		}
		return gathered, scattered
	}
	wide, sums := of("bf16")
	require.Equal(t, int64(2*4*64*64*2), wide) // two layers, four tensors of 64 tokens
	require.Equal(t, wide, sums)
	narrow, sums := of("fp8-delayed")
	require.Equal(t, wide, 2*narrow)
	require.Equal(t, wide, sums)
}

func TestTensorParallelIsRefused(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"train.tensor_parallel = 4 does not divide train.ranks = 6":                func(c *Config) { c.Train.Ranks = 6 },
		"model.heads = 6 is not a multiple of 4":                                   func(c *Config) { c.Model.Heads, c.Model.KVHeads, c.Model.Dim = 6, 6, 96 },
		"model.kv_heads = 2 is not a multiple of 4":                                func(c *Config) { c.Model.KVHeads = 2 },
		"model.ffn = 112 is not a multiple of 64":                                  func(c *Config) { c.Model.FFN = 112 },
		"ranks do not share experts":                                               func(c *Config) { c.Model.Experts, c.Model.ExpertsPerToken, c.Model.Activation = 4, 2, "swiglu" },
		"optimizer.kind = \"muon\" needs whole matrices":                           func(c *Config) { c.Optimizer.Kind = "muon" },
		"a micro-batch has 126 tokens, which the 4 ranks of a group cannot divide": func(c *Config) { c.Data.Seq, c.Train.MicroBatch = 126, 1 },
	} {
		c := layout(divisible(t, "bf16"), 4, 4, 0)
		change(&c)
		err := c.Validate(recipe.Names())
		if err == nil {
			_, err = NewJob(c, specOf(t, "emu"))
		}
		require.ErrorContains(t, err, want)
	}
}

// Telemetry measures the first rank's parts of all casts, and its channels.
func TestTensorParallelHealth(t *testing.T) {
	c := divisible(t, "fp8-smooth")
	c.Train.HealthEvery = 1
	one := newTrainer(t, c, 1, false)
	steps(t, one, 1)
	want, err := one.Health(t.Context())
	require.NoError(t, err)
	tm := newTrainer(t, layout(c, 4, 2, 3), 1, false)
	steps(t, tm, 1)
	got, err := tm.Health(t.Context())
	require.NoError(t, err)
	require.Len(t, got.Casts, len(want.Casts))
	for i, x := range got.Casts {
		require.Equal(t, want.Casts[i].Name, x.Name)
		require.InDelta(t, want.Casts[i].SQNR, x.SQNR, 3, x.Name)
	}
	require.Len(t, got.SwiGLU, len(want.SwiGLU))
}

// Recomputation repeats the gathers of a forward, and changes no bit.
func TestTensorParallelRecomputes(t *testing.T) {
	for _, name := range []string{"bf16", "fp8-current", "fp8-smooth", "fp8-smooth-token"} {
		c := layout(divisible(t, name), 4, 2, 3)
		want := steps(t, newTrainer(t, c, 1, false), 2)
		for _, recompute := range []string{"attention", "block"} {
			c.Train.Recompute = recompute
			require.Equal(t, want, steps(t, newTrainer(t, c, 1, false), 2), "%s of %s", recompute, name)
		}
	}
}
