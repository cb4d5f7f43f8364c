package train

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	_ "octet/backend/ref"
	"octet/fp8"
	"octet/recipe"
)

func TestDirectionRate(t *testing.T) {
	distances := []float32{0, 0.02, 0.115, 0.1152, 0.5}
	for _, device := range []string{"emu", "ref"} {
		d, err := backend.Open(device, backend.Options{})
		require.NoError(t, err)
		vars := backend.NewVars()
		x, out := vars.Tensor(backend.Input, "x", fp8.F32, len(distances)), vars.Tensor(backend.Output, "out", fp8.F32, len(distances))
		op := &directionRate{Out: out}
		for i := range distances {
			op.X = append(op.X, x.Slice("d"+string(rune('0'+i)), i, 1))
		}
		p := vars.Program("rate")
		p.Add(op)
		loaded, err := backend.Load(d, p)
		require.NoError(t, err)
		require.NoError(t, d.Write(x, fp8.AppendFloats(nil, distances...)))
		require.NoError(t, loaded[0].Run(t.Context()))
		raw, got := make([]byte, out.Bytes()), make([]float32, len(distances))
		require.NoError(t, d.Read(out, raw))
		fp8.F32.Decode(got, raw)
		for i, want := range []float64{1, math.Exp(-0.4), math.Exp(-2.3), 0.1, 0.1} {
			require.InEpsilon(t, want, 1/math.Sqrt(float64(got[i])), 1e-5, "%s: distance %v", device, distances[i])
		}
		require.NoError(t, d.Close())
	}
}

// With direction_lr the first update of each layer's weight is smaller by the factor of its
// distance; others keep theirs.
func TestDirectionLR(t *testing.T) {
	run := func(on bool) (*team, map[string][]float32) {
		c := small(t, "int8-unified")
		c.Optimizer.DirectionLR = on
		tr := newTrainer(t, c, 2, false)
		steps(t, tr, 1)
		weights := map[string][]float32{}
		for _, p := range tr.Model.Params {
			weights[p.Name] = readMaster(t, tr, p)
		}
		return tr, weights
	}
	_, plain := run(false)
	tr, slower := run(true)
	distances := tr.Model.Distances()
	require.Len(t, distances, 7*tr.Config.Model.Layers)
	largest := float32(0)
	for _, p := range tr.Model.Params {
		want := 1.
		if x := distances[p]; x != nil {
			raw, d := make([]byte, 4), make([]float32, 1)
			require.NoError(t, tr.ranks[0].device.Read(x, raw))
			fp8.F32.Decode(d, raw)
			require.Greater(t, d[0], float32(1e-5), p.Name)
			largest = max(largest, d[0])
			want = math.Exp(-20 * float64(d[0]))
		}
		var moved, moves float64
		for i, w := range p.Init(uint64(tr.Config.Seed)) {
			moved += math.Abs(float64(slower[p.Name][i] - w))
			moves += math.Abs(float64(plain[p.Name][i] - w))
		}
		require.InDelta(t, want, moved/moves, 2e-4, p.Name)
	}
	require.Greater(t, largest, float32(5e-4), "a factor that differs from 1 by far more than the tolerance")
	c := small(t, "int8-unified")
	c.Optimizer.DirectionLR, c.Train.Ranks, c.Train.MicroBatch = true, 2, 2
	steps(t, newTrainer(t, c, 1, false), 3) // whose ranks must agree
}

// The scale of every gradient follows from the value at which it clips, that of the other operands
// from the amax; the records keep the amax, which also carries infinities.
func TestDirectionPrograms(t *testing.T) {
	j, err := NewJob(small(t, "int8-unified"), specOf(t, "emu"))
	require.NoError(t, err)
	clipped, amaxes := map[*backend.Tensor]bool{}, 0
	for _, n := range j.Micro[Variant{true, true}].Nodes() {
		switch op := n.Op.(type) {
		case *backend.UpdateScale:
			grad := strings.Contains(op.ScaleInv.Name, ".grad.")
			require.Equal(t, grad, strings.HasSuffix(op.History.Name, ".clip"), op.ScaleInv.Name)
			clipped[op.Scale] = grad
		case *backend.Quantize:
			for _, c := range op.Out {
				if clipped[c.Scale] {
					require.Equal(t, fp8.Stochastic, c.Rounding)
					require.NotNil(t, c.Amax)
					amaxes++
				}
			}
		}
	}
	require.Equal(t, 7*j.Config.Model.Layers, amaxes)
}

func TestDirectionIsRefused(t *testing.T) {
	c := small(t, "int8-switchback")
	c.Optimizer.DirectionLR = true
	_, err := NewJob(c, specOf(t, "emu"))
	require.ErrorContains(t, err, "and recipe int8-switchback has none; use recipe = \"int8-unified\"")
	c.Optimizer.ClipRMS = 1
	require.ErrorContains(t, c.Validate(recipe.Names()), "optimizer.direction_lr and optimizer.clip_rms = 1 both lower")
	for _, refused := range []struct {
		row  PrecisionRow
		want string
	}{
		{PrecisionRow{Operand: "grad", Granularity: "row"}, "scaling direction is for integer formats, stochastic, with one scale"},
		{PrecisionRow{Operand: "grad", Rounding: "nearest"}, "scaling direction is for integer formats"},
		{PrecisionRow{Operand: "input", GEMM: "wgrad", Scaling: "direction", Rounding: "stochastic"}, "input of wgrad has scaling direction, which is for gradients (give its row operand grad)"},
	} {
		c := small(t, "int8-unified")
		refused.row.Scope = "layers.*"
		c.Precision.Rows = []PrecisionRow{refused.row}
		_, err := NewJob(c, specOf(t, "emu"))
		require.ErrorContains(t, err, refused.want)
	}
	c = small(t, "int8-unified")
	c.Precision.Rows = []PrecisionRow{{Scope: "layers.*", Operand: "grad", Format: "e5m2"}}
	r, err := c.ResolvedRecipe()
	require.NoError(t, err)
	require.Equal(t, recipe.Current, r.Cast(recipe.Layer{Scope: "layers.0.mlp.up_proj"}, recipe.Wgrad, recipe.Grad).Scaling)
	c.Precision.Rows = []PrecisionRow{{Scope: "lm_head", Operand: "grad", Format: "int8", Scaling: "direction", Granularity: "tensor", Rounding: "stochastic"}}
	_, err = NewJob(c, specOf(t, "emu"))
	require.ErrorContains(t, err, "this gradient exists in chunks of tokens only")
}
