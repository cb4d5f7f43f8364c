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
			layouts := [][3]int{{2, 2, 0}, {4, 2, 0}, {4, 4, 0}}
			if name == "fp8-smooth" {
				layouts = append(layouts, [3]int{2, 1, 0}, [3]int{4, 2, 3})
			}
			for _, l := range layouts {
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
		for i, r := range steps(t, newTrainer(t, layout(c, 4, 2, 3), 1, false), 2) {
			require.InEpsilon(t, want[i].Loss, r.Loss, 4e-3, "recipe %s, step %d", name, i+1)
			require.InEpsilon(t, want[i].GradNorm, r.GradNorm, 0.1, "recipe %s, step %d", name, i+1)
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

// without is a job whose programs lack the reductions that drop selects, or changes.
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
			o, ok := n.Op.(*backend.AllReduce)
			if !ok {
				r.Add(n, n.Op)
				return
			}
			if changed := *o; !drop(&changed) {
				r.Add(n, &changed)
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

// The channel maxima of a step are those of ranks with all channels and the same batches. Reduced over all ranks, of which
// others have other channels, they are not.
func TestTensorParallelChannels(t *testing.T) {
	c := divisible(t, inFP32(t, "fp8-smooth"))
	maxima := func(tm *team) (list [][]float32) {
		steps(t, tm, 1)
		for _, tr := range tm.ranks {
			x, err := tr.localFloats(tr.Model.ChannelHistory)
			require.NoError(t, err)
			list = append(list, x[:tr.Model.ChannelHistory.Cols()])
		}
		return list
	}
	same := func(one []float32, tm *team) bool {
		for rank, own := range maxima(tm) {
			n, at := c.Model.FFN/tm.Config.Train.Tensor, rank%tm.Config.Train.Tensor
			for i, x := range own {
				if y := one[i/n*c.Model.FFN+at*n+i%n]; math.Abs(float64(x/y)-1) > 1e-2 {
					return false
				}
			}
		}
		return true
	}
	for _, l := range [][3]int{{2, 2, 0}, {4, 2, 1}} {
		one := maxima(newTrainer(t, layout(c, l[0]/l[1], 1, l[2]), 1, false))[0]
		c := layout(c, l[0], l[1], l[2])
		require.True(t, same(one, newTrainer(t, c, 1, false)), "layout %v", l)
		if l[0] == l[1] {
			continue
		}
		tm := newTeam(t, func() (*Job, error) {
			return without(c, func(o *backend.AllReduce) bool {
				if o.X.Name == "swiglu.channel_max" {
					o.Group = backend.Group{}
				}
				return false
			})
		}, 1, nil)
		require.NoError(t, tm.Init(t.Context()))
		require.False(t, same(one, tm), "layout %v over all ranks", l)
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

// Ranks that exchange gradients as codes move the weights as ranks that share no layers do: Adam's first
// step has the sign of the gradient.
func TestTensorParallelExchangesCodes(t *testing.T) {
	c := divisible(t, "fp8-lm")
	moved := func(c Config) (down []bool) {
		tm := newTrainer(t, c, 1, false)
		steps(t, tm, 1)
		for _, p := range tm.Model.Params {
			begun := p.Init(uint64(c.Seed))
			after, err := tm.Weights(p)
			require.NoError(t, err)
			for i, x := range after {
				down = append(down, x < begun[i])
			}
		}
		return down
	}
	want := moved(layout(c, 2, 1, 1))
	for _, l := range [][3]int{{4, 2, 1}, {4, 2, 3}} {
		same := 0
		for i, sign := range moved(layout(c, l[0], l[1], l[2])) {
			if sign == want[i] {
				same++
			}
		}
		require.Greater(t, float64(same), 0.9*float64(len(want)), "layout %v", l)
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
	for _, name := range recipe.Names() {
		c := layout(divisible(t, name), 4, 2, 3)
		if _, err := NewJob(c, specOf(t, "emu")); err != nil { // see TestTensorParallelRecipes
			continue
		}
		want := steps(t, newTrainer(t, c, 1, false), 1)
		c.Train.Recompute = "block"
		require.Equal(t, want, steps(t, newTrainer(t, c, 1, false), 1), "%s", name)
	}
}

// Copies of state stay equal: what ranks do not divide on all of them, and a part of a layer on those that
// have it.
func TestTensorParallelCopiesAgree(t *testing.T) {
	for _, name := range []string{"fp8-smooth", "fp8-lm", "te-delayed"} {
		c := divisible(t, name)
		c.Model.QKVBias, c.Model.QKNorm, c.Model.Norm, c.Model.Tied = true, "learned", "both", name == "te-delayed"
		c.Optimizer.ClipRMS, c.Train.Accumulate = 1, 2
		for _, l := range [][3]int{{4, 2, 0}, {4, 2, 1}, {4, 2, 3}, {4, 4, 0}} {
			if name == "fp8-lm" && l[2] == 0 { // codes of gradients travel only to shards
				continue
			}
			tm := newTrainer(t, layout(c, l[0], l[1], l[2]), 1, false)
			steps(t, tm, 3)
			for x := range tm.Vars.All() {
				if x.Class != backend.State && x.Class != backend.Param {
					continue
				}
				first := map[region]string{}
				for rank, tr := range tm.ranks {
					own := tr.Vars.Lookup(x.Name)
					raw, err := tr.readLocal(own)
					require.NoError(t, err)
					r := tr.regionOf(own, rank)
					if own == tr.Model.ChannelHistory {
						r.columns[0] = tr.Config.placeOf(rank).tensor
					}
					if first[r] == "" {
						first[r] = string(raw)
					}
					require.True(t, first[r] == string(raw), "%s of rank %d, layout %v, %s", x.Name, rank, l, name)
				}
			}
		}
	}
}

// In FP32 all layouts give one rank's losses and norms, in training, evaluation and with pairs.
func TestTensorParallelInFP32(t *testing.T) {
	for _, change := range []func(*Config){
		func(*Config) {},
		func(c *Config) {
			c.Model.QKVBias, c.Model.QKNorm, c.Model.Norm, c.Optimizer.ClipRMS = true, "learned", "both", 1
		},
		func(c *Config) { c.Model.Tied, c.Train.Accumulate = true, 2 },
	} {
		c := divisible(t, "fp32")
		change(&c)
		one := newTrainer(t, c, 1, false)
		want := steps(t, one, 3)
		eval, err := one.Evaluate(t.Context())
		require.NoError(t, err)
		for _, l := range [][3]int{{2, 2, 0}, {4, 2, 0}, {4, 2, 1}, {4, 2, 2}, {4, 2, 3}, {4, 4, 0}} {
			tm := newTrainer(t, layout(c, l[0], l[1], l[2]), 1, false)
			for i, r := range steps(t, tm, 3) {
				require.InEpsilon(t, want[i].Loss, r.Loss, 1e-5, "layout %v, step %d", l, i+1)
				require.InEpsilon(t, want[i].GradNorm, r.GradNorm, 1e-4, "layout %v, step %d", l, i+1)
				require.InDelta(t, want[i].Update.RMS, r.Update.RMS, 1e-3*want[i].Update.RMS, "layout %v, step %d", l, i+1)
			}
			got, err := tm.Evaluate(t.Context())
			require.NoError(t, err)
			require.InEpsilon(t, eval, got, 1e-5, "layout %v", l)
			require.InEpsilon(t, one.FLOPsPerToken(), tm.FLOPsPerToken(), 1e-3, "layout %v", l)
		}
	}
}
