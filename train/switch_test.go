package train

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// copyToHost and loadHostState preserve all parameters and state between trainers of the
// same recipe: FP32 tensors bit for bit, except for records that a calibration fills.
func TestHostStateIsComplete(t *testing.T) {
	for _, name := range []string{"fp32", "fp8-delayed", "fp8-smooth"} {
		c := small(t, name)
		old := newTrainer(t, c, 2, false)
		steps(t, old, 3)
		state, err := old.copyToHost()
		require.NoError(t, err)
		next := newTrainer(t, c, 2, false)
		require.NoError(t, next.loadHostState(t.Context(), state))
		require.False(t, next.calibrated)
		require.Equal(t, old.ranks[0].device.loader.Position(), next.ranks[0].device.loader.Position())

		was, is := unpacked(t, old), unpacked(t, next)
		require.Equal(t, len(was), len(is))
		for x, want := range was {
			got := is[x]
			switch {
			case strings.HasPrefix(x, "layers.") && (strings.Contains(x, ".mlp.hidden.") || strings.Contains(x, ".mlp.down_proj.")):
				start := 0.0 // initial value of a history
				if strings.Contains(x, "scale") {
					start = 1
				}
				require.Equal(t, slices.Repeat([]float64{start}, len(want)), got, x)
			case name == "fp8-smooth" && strings.Contains(x, "layers."):
				// Codes and scales are computed again from the same values.
				require.Less(t, distance(got, want), 1e-6, "%s %s", name, x)
			default:
				require.Equal(t, want, got, "%s %s", name, x)
			}
		}
	}
}

// unpacked returns the values of all parameters and state by name, scales not applied.
func unpacked(t *testing.T, tr *team) map[string][]float64 {
	t.Helper()
	all := map[string][]float64{}
	packed := map[*backend.Tensor]bool{}
	for _, s := range tr.Model.Packed() {
		packed[s] = true
		x, err := tr.localFloats(s)
		require.NoError(t, err)
		tr.Model.Unpack(s, x, func(name string, _ []int, part []float32) {
			for _, v := range part {
				all[name] = append(all[name], float64(v))
			}
		})
	}
	for x := range tr.Vars.All() {
		if (x.Class == backend.Param || x.Class == backend.State) && !packed[x] && x.DType.IsFloat() {
			all[x.Name] = values(t, tr.ranks[0], x)
		}
	}
	raw, err := tr.read(tr.Step)
	require.NoError(t, err)
	all[tr.Step.Name] = []float64{float64(raw[0])}
	return all
}

// encodeMoment is exact to the format's precision, with per-tensor and block scales.
// With floor, positive values stay positive.
func TestEncodeMoment(t *testing.T) {
	x := make([]float32, 3*40)
	for i := range x {
		x[i] = float32(math.Exp(-float64(i) / 10))
	}
	for _, d := range []fp8.DType{fp8.F32, fp8.F16, fp8.BF16, fp8.E4M3, fp8.E5M2} {
		for _, block := range []int{0, 16} {
			m := &backend.Tensor{Name: "m", DType: d, Shape: []int{3, 40}, LD: 40, Class: backend.State}
			if d != fp8.F32 && d != fp8.BF16 {
				m.Scale = &backend.Tensor{Name: "s"}
				m.Block = backend.ScaleBlock{Cols: block}
				if block > 0 {
					m.Block.Rows = 1
				}
			}
			codes, scaleInv := encodeMoment(m, x, fp8.Amax(x), false, true)
			require.Len(t, codes, int(m.Bytes()))
			if m.Scale != nil {
				rows, cols := m.Block.ScaleShape(3, 40)
				require.Len(t, scaleInv, rows*cols)
			}
			got := decodeAll(d, codes)
			if m.Scale != nil {
				for i := range got {
					s := 0
					if block > 0 {
						s = i/40*3 + i%40/block
					}
					got[i] *= float64(scaleInv[s])
				}
			}
			zeros, worst := 0, 0.0
			for i := range got {
				require.Positive(t, got[i], "%s %d", d, block)
				if got[i] < 1e-9 {
					zeros++
				}
				if i < 40 {
					worst = max(worst, math.Abs(got[i]/float64(x[i])-1))
				}
			}
			limit := map[fp8.DType]float64{fp8.F32: 1e-7, fp8.F16: 5e-4, fp8.BF16: 4e-3, fp8.E4M3: 0.0626, fp8.E5M2: 0.126}[d]
			require.LessOrEqual(t, worst, limit, "%s %d", d, block)
		}
	}
	// Without an expansion, E4M3 has 2^-10 of the largest value with full precision.
	wide := []float32{1, 1e-5, 0, -1e-9, 1e-3}
	m := &backend.Tensor{Name: "m", DType: fp8.E4M3, Shape: []int{1, 5}, LD: 5, Block: backend.ScaleBlock{Rows: 1, Cols: 5}, Scale: &backend.Tensor{}, Expand: true}
	codes, expansion := encodeMoment(m, wide, 0, false, false)
	got := make([]float32, len(wide))
	fp8.E4M3.Decode(got, codes)
	dequantizeMoment(m, got, expansion)
	for i := range wide {
		require.InDelta(t, wide[i], got[i], 0.13*math.Abs(float64(wide[i])), "%v: %v", wide, got)
	}
	m = &backend.Tensor{Name: "v", DType: fp8.E4M3, Shape: []int{1, 4}, LD: 4, Scale: &backend.Tensor{}}
	small := []float32{1, 1e-9, 0, -1e-9}
	with, _ := encodeMoment(m, small, fp8.Amax(small), false, true)
	without, _ := encodeMoment(m, small, fp8.Amax(small), false, false)
	require.Equal(t, []byte{0x7e, 1, 0, 0x80}, with)
	require.Equal(t, []byte{0x7e, 0, 0, 0x80}, without)
}

// After the change the programs are those of the new recipe, the weights are equal up to
// the master's rounding, and the loss is within 1 % of that without the change.
func TestScheduleChangesTheRecipe(t *testing.T) {
	const before, more = 30, 6
	for _, way := range [][2]string{{"bf16", "fp8-smooth"}, {"fp8-smooth", "bf16"}, {"fp8-delayed", "fp8-smooth"}} {
		c := small(t, way[0])
		c.Train.Steps = 100
		uninterrupted := newTrainer(t, c, 2, false)
		want := steps(t, uninterrupted, before+more)

		tr := newTrainer(t, scheduled(c, RecipeChange{before, way[1]}), 2, false)
		require.Equal(t, want[:before], steps(t, tr, before))
		require.Equal(t, way[0], tr.Recipe.Name)
		updates, err := tr.read(tr.Step)
		require.NoError(t, err)
		position := tr.ranks[0].device.loader.Position()
		weights := map[string][]float32{}
		for _, p := range tr.Model.Params {
			weights[p.Name], err = tr.readMaster(p)
			require.NoError(t, err)
		}

		require.NoError(t, tr.followSchedule(t.Context()))
		require.Equal(t, way[1], tr.Recipe.Name)
		alone := c
		alone.Recipe = way[1]
		j, err := NewJob(alone, specOf(t, "emu"))
		require.NoError(t, err)
		for i, p := range tr.Programs() {
			require.Equal(t, j.Programs()[i].Hash(), p.Hash(), p.Name())
		}
		got, err := tr.read(tr.Step)
		require.NoError(t, err)
		require.Equal(t, updates, got)
		require.Equal(t, position, tr.ranks[0].device.loader.Position())
		for _, p := range tr.Model.Params {
			x, err := tr.readMaster(p)
			require.NoError(t, err)
			require.InDeltaSlice(t, weights[p.Name], x, 2e-4, p.Name)
			if p.Master.DType == fp8.F32 {
				require.Equal(t, weights[p.Name], x, p.Name)
			}
		}
		for i, r := range steps(t, tr, more) {
			require.False(t, r.Skipped)
			require.InEpsilon(t, want[before+i].Loss, r.Loss, 0.01, "%v, step %d", way, r.Step)
			require.Equal(t, want[before+i].LR, r.LR)
		}
	}
}

// Histories that both recipes have are kept, and the calibration pushes a row to all.
func TestHistoriesAreKept(t *testing.T) {
	c := small(t, "fp8-delayed")
	tr := newTrainer(t, scheduled(c, RecipeChange{3, "fp8-smooth"}), 2, false)
	steps(t, tr, 3)
	const shared, anew = "layers.0.mlp.input.e4m3.amax_history", "layers.0.mlp.hidden.channel_max_history"
	old := unpacked(t, tr)[shared]
	require.Equal(t, 4, filled(old, 1), "one row of the calibration and one of each step")
	steps(t, tr, 1)
	now := unpacked(t, tr)
	require.Equal(t, old[:4], now[shared][2:6])
	require.Equal(t, 2, filled(now[anew], c.Model.FFN))
}

// filled counts the non-zero rows of a history.
func filled(x []float64, cols int) (rows int) {
	for i := 0; i < len(x); i += cols {
		if slices.Max(x[i:i+cols]) > 0 {
			rows++
		}
	}
	return rows
}

// A run that is stopped before, at or after a change of recipe resumes bit-identically,
// also if Restore goes back across the change.
func TestRestoreAroundAChange(t *testing.T) {
	const change, n = 4, 9
	c := small(t, "bf16")
	c.Train.Steps, c.Train.Accumulate, c.Train.Ranks = n, 2, 2
	c = scheduled(c, RecipeChange{change, "fp8-smooth"}, RecipeChange{change + 2, "fp8-delayed"})
	uninterrupted := newTrainer(t, c, 2, false)
	want := steps(t, uninterrupted, n)
	final := persistent(t, uninterrupted)
	for at := change - 1; at <= change+3; at++ {
		stopped := newTrainer(t, c, 2, false)
		steps(t, stopped, at)
		state := snapshot(t, stopped)
		s, err := ReadState(state)
		require.NoError(t, err)
		require.Equal(t, stopped.Recipe.Name, s.Recipe)
		for _, tr := range []*team{newTrainer(t, c, 2, false), uninterrupted} {
			require.NoError(t, tr.Restore(t.Context(), state))
			require.Equal(t, s.Recipe, tr.Recipe.Name)
			require.Equal(t, want[at:], steps(t, tr, n-at), at)
			require.Equal(t, final, persistent(t, tr), at)
			requireRanksAgree(t, tr)
		}
	}
}

// Restore rejects a checkpoint of another recipe.
func TestRestoreRefusesAnotherRecipe(t *testing.T) {
	tr := newTrainer(t, small(t, "fp8-delayed"), 2, false)
	steps(t, tr, 1)
	err := newTrainer(t, small(t, "fp8-smooth"), 2, false).Restore(t.Context(), snapshot(t, tr))
	require.ErrorContains(t, err, "written under recipe fp8-delayed, but the configuration has fp8-smooth at that step")
}

// After a change of recipe failed at any point, the next call completes it.
func TestFailedChangesAreRetried(t *testing.T) {
	c := small(t, "fp8-delayed")
	c.Train.HealthEvery = 4
	c = scheduled(c, RecipeChange{2, "fp8-smooth"})
	uninterrupted := newTrainer(t, c, 2, false)
	want := steps(t, uninterrupted, 4)
	// The programs: the casts of the weights, a calibration and its casts, the
	// micro-batch and the update.
	for cut := range 5 {
		tr := newTrainer(t, c, 2, false)
		steps(t, tr, 2)
		_, err := tr.Next(expireAfter(cut))
		require.ErrorIs(t, err, context.Canceled, cut)
		require.Equal(t, want[2:], steps(t, tr, 2), cut)
		require.Equal(t, persistent(t, uninterrupted), persistent(t, tr), cut)
	}

	gone := errors.New("the device is gone")
	for _, writes := range []int{0, 1, 20, 60} {
		tr := newTrainer(t, c, 2, false)
		steps(t, tr, 2)
		reopen := tr.Reopen
		tr.Reopen = func() (backend.Backend, error) {
			d, err := reopen()
			return &failing{d, writes, gone}, err
		}
		_, err := tr.Next(t.Context())
		require.ErrorIs(t, err, gone, writes)
		_, err = tr.Contents("test", "emu")
		require.ErrorIs(t, err, errChangeFailed, writes)
		_, err = tr.Health(t.Context())
		require.ErrorIs(t, err, errChangeFailed, writes)
		tr.Reopen = reopen
		require.Equal(t, want[2:], steps(t, tr, 2), writes)
		require.Equal(t, persistent(t, uninterrupted), persistent(t, tr), writes)
	}

	tr := newTrainer(t, c, 2, false)
	steps(t, tr, 2)
	reopen := tr.Reopen
	tr.Reopen = func() (backend.Backend, error) { return nil, gone }
	_, err := tr.Next(t.Context())
	require.ErrorIs(t, err, gone)
	_, err = tr.Evaluate(t.Context())
	require.ErrorIs(t, err, errChangeFailed)
	_, err = tr.Contents("test", "emu")
	require.ErrorIs(t, err, errChangeFailed)
	tr.Reopen = reopen
	require.Equal(t, want[2:], steps(t, tr, 2))

	// A failed Restore or Init can be retried too.
	early := newTrainer(t, c, 2, false)
	steps(t, early, 1)
	state := snapshot(t, early)
	tr.Reopen = func() (backend.Backend, error) { return nil, gone }
	require.ErrorIs(t, tr.Restore(t.Context(), state), gone)
	_, err = tr.Next(t.Context())
	require.ErrorIs(t, err, errChangeFailed)
	require.ErrorIs(t, tr.Rewind(t.Context(), state), errChangeFailed)
	require.ErrorIs(t, tr.Init(t.Context()), gone)
	tr.Reopen = reopen
	require.NoError(t, tr.Init(t.Context()))
	require.Equal(t, want, steps(t, tr, 4), "restarted from step 0 under the first recipe")

	tr = newTrainer(t, c, 2, false)
	tr.Reopen = nil
	steps(t, tr, 2)
	_, err = tr.Next(t.Context())
	require.ErrorContains(t, err, "the change to recipe fp8-smooth after step 2 needs a newly opened device: set Trainer.Reopen")
}

// failing is a device whose writes fail after left of them.
type failing struct {
	backend.Backend
	left int
	err  error
}

func (f *failing) Write(t *backend.Tensor, raw []byte) error {
	if f.left == 0 {
		return f.err
	}
	f.left--
	return f.Backend.Write(t, raw)
}

// With floor_v, positive second moments of the previous recipe stay positive.
func TestChangeKeepsTheFloor(t *testing.T) {
	c := scheduled(small(t, "bf16"), RecipeChange{2, "fp8-paper"})
	zeros := func() (n int) {
		tr := newTrainer(t, c, 2, false)
		steps(t, tr, 2)
		state, err := tr.copyToHost()
		require.NoError(t, err)
		for _, v := range state.moments {
			v[0] = 1e-30
		}
		tr.hostState = state
		require.NoError(t, tr.followSchedule(t.Context()))
		for _, p := range tr.Model.Params {
			m2 := tr.optimizer.m2[p]
			for i, x := range values(t, tr.ranks[0], m2) {
				if x == 0 && state.moments[m2.Name][i] > 0 {
					n++
				}
			}
		}
		return n
	}
	c.Precision.M2 = "e4m3"
	require.NotZero(t, zeros())
	c.Precision.FloorV = new(true)
	require.Zero(t, zeros())
}

// A cold start uses scales of 1 in the first step; the first update replaces them.
func TestColdStart(t *testing.T) {
	c := small(t, "fp8-delayed")
	cold := true
	scale := func() []float64 {
		tr := newTrainer(t, c, 2, false)
		var used []float64
		record := func(n *backend.Node, m backend.Memory) error {
			for _, o := range n.Operands() {
				if o.Tensor.Name == "layers.1.mlp.input.e4m3.scale" {
					raw, err := m.Read(o.Tensor)
					used = append(used, decodeAll(fp8.F32, raw)...)
					return err
				}
			}
			return nil
		}
		if !tr.Recipe.ColdStart {
			require.NoError(t, tr.calibrate(t.Context()))
			tr.calibrated = true
		}
		require.NoError(t, tr.microBatches(t.Context(), 0, tr.TokensPerStep(), func(x program) error { return x.RunObserved(t.Context(), record) }))
		require.NotEmpty(t, used)
		return used
	}
	require.NotContains(t, scale(), 1.0)
	c.Precision.ColdStart = &cold
	for _, s := range scale() {
		require.Equal(t, 1.0, s)
	}
	tr := newTrainer(t, c, 2, false)
	const history = "layers.1.mlp.input.e4m3.amax_history"
	steps(t, tr, 1)
	require.Equal(t, 1, filled(unpacked(t, tr)[history], 1), "only the row of the first step")
	require.NotEqual(t, []float64{1}, unpacked(t, tr)["layers.1.mlp.input.e4m3.scale"])
}
