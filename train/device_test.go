package train

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// specOf returns a device's Spec. Programs that are recorded for one of emu's device
// models also run on plain emu, and faster.
func specOf(t *testing.T, name string) backend.Spec {
	t.Helper()
	s, err := backend.SpecOf(name)
	require.NoError(t, err)
	return s
}

// gaudi2 multiplies equal formats only, and the maximum of its E4M3 is 240. Programs for
// h100 use cuBLASLt's pairs, without E5M2 by E5M2.
const gaudi2, h100 = "emu:gaudi2", "emu:h100"

// Programs contain only GEMMs that the device supports, and only its own E4M3.
func TestProgramsFitTheDevice(t *testing.T) {
	for _, name := range recipe.Names() {
		for _, device := range []string{"emu", gaudi2, "emu:gaudi3", h100, "emu:ada", "emu:b200"} {
			s := specOf(t, device)
			c := small(t, name)
			c.Precision.Rows = []PrecisionRow{{Scope: "layers.0.self_attn.q_proj", GEMM: "dgrad", Operand: "grad", Format: "e4m3"}}
			r, err := recipe.Lookup(name)
			require.NoError(t, err)
			wide := !slices.ContainsFunc(r.Rows, func(row recipe.Row) bool { return row.DType.IsQuantized() })
			if wide || strings.HasPrefix(name, "nvfp4") || strings.HasPrefix(name, "int8") { // NVFP4 has no GEMM of E4M3 by E2M1
				c.Precision.Rows = nil
			}
			c.Train.Accumulate, c.Train.HealthEvery = 2, 10
			j, err := NewJob(c, s)
			if strings.Contains(device, ":") && (device != "emu:b200" || strings.HasPrefix(name, "int8-")) && hasOtherFormats(t, name) {
				require.ErrorIs(t, err, backend.ErrUnsupported, "%s on %s", name, device)
				continue
			}
			require.NoError(t, err, name)
			gemms, outside := 0, false
			for _, p := range j.Programs() {
				for _, n := range p.Nodes() {
					if op, ok := n.Op.(*backend.MatMul); ok && op.A.DType.IsQuantized() && op.B.DType.IsQuantized() {
						gemms++
						a, b := op.Encodings()
						require.True(t, s.Multiplies(a, b), "%s: %s", name, n.Path())
						outside = outside || s.Library != nil && !fp8.Multiplies(s.Library, a, b)
					}
					for _, o := range n.Operands() {
						if d := o.Tensor.DType; d == fp8.E4M3 || d == fp8.E4M3IEEE {
							require.Equal(t, s.E4M3, d, "%s: %s: %s", name, n.Path(), o.Tensor)
						}
					}
				}
			}
			require.Equal(t, !wide, gemms > 0, name)
			resolved, err := c.ResolvedRecipe()
			require.NoError(t, err)
			if s.E4M3 == fp8.E4M3 {
				// Device models compute more than the device's library, and say so.
				if require.Equal(t, outside, len(j.Notes) == 1, "%s on %s: %v", name, device, j.Notes); outside {
					require.Contains(t, j.Notes[0], "which the GEMM library of the modelled device does not support: only "+device+" computes this recipe")
				}
				require.Equal(t, resolved.Rows, j.Recipe.Rows)
			}
		}
	}
}

// hasOtherFormats reports whether a recipe's rows have formats of up to eight bits besides
// E4M3 and E5M2.
func hasOtherFormats(t *testing.T, name string) bool {
	t.Helper()
	r, err := recipe.Lookup(name)
	require.NoError(t, err)
	return slices.ContainsFunc(r.Rows, func(row recipe.Row) bool {
		return row.DType.IsQuantized() && row.DType != fp8.E4M3 && row.DType != fp8.E5M2
	})
}

// NewJob returns an error for a GEMM that the device does not support, also in later
// recipes of the schedule.
func TestUnsupportedGEMMs(t *testing.T) {
	c := small(t, "fp8-delayed")
	c.Precision.Rows = []PrecisionRow{{Scope: "layers.1.mlp.up_proj", Operand: "input", Format: "e5m2"}}
	const want = `layers.1.mlp.up_proj: wgrad multiplies grad in e5m2 by input in e5m2, which the device's GEMM library does not support; to change the format of input, add this row before all others in [[precision.rows]]: scope = "layers.1.mlp.up_proj", gemm = "wgrad", operand = "input", format = "e4m3"`
	_, err := NewJob(c, specOf(t, h100))
	require.ErrorContains(t, err, want)
	c = small(t, "te-block") // whose gradients are E4M3
	c.Precision.Rows = []PrecisionRow{{Scope: "layers.1.mlp.up_proj", Operand: "input", Format: "e5m2"}}
	_, err = NewJob(scheduled(c, RecipeChange{3, "fp8-delayed"}), specOf(t, h100))
	require.ErrorContains(t, err, want)
	c = small(t, "fp8-delayed")
	c.Precision.Rows = []PrecisionRow{
		{Scope: "layers.1.mlp.up_proj", GEMM: "wgrad", Operand: "input", Format: "e4m3"},
		{Scope: "layers.1.mlp.up_proj", Operand: "input", Format: "e5m2"},
	}
	_, err = NewJob(c, specOf(t, h100))
	require.NoError(t, err)
}

// A device that multiplies equal formats only: each copy has its own scale, so the error
// of every GEMM is that of its two casts, and a run learns as well as with mixed formats.
func TestEqualFormatsTrain(t *testing.T) {
	for _, name := range []string{"fp8-current", "fp8-delayed", "fp8-smooth", "fp8-smooth-token", "fp8-paper", "smooth-late-weight"} {
		t.Run(name, func(t *testing.T) {
			c := small(t, name)
			mixed := steps(t, newTrainer(t, c, 2, false), 60)
			tr := newTrainerFor(t, c, specOf(t, gaudi2), 2, false)
			equal := steps(t, tr, 60)
			require.NotEqual(t, mixed, equal)
			require.InEpsilon(t, mixed[59].Loss, equal[59].Loss, 0.02)
			require.Less(t, equal[59].Loss, equal[0].Loss-1)
			require.Equal(t, 7*3*c.Model.Layers, requireCastErrors(t, tr))
		})
	}
}

// A checkpoint can be restored on another device and back: formats that the other device
// lacks are converted, all else is unchanged.
func TestResumeOnAnotherDevice(t *testing.T) {
	for _, name := range []string{"fp8-delayed", "fp8-smooth", "smooth-late-weight"} {
		c := small(t, name)
		here := newTrainer(t, c, 2, false)
		steps(t, here, 30)
		written := snapshot(t, here)
		was := unpacked(t, here)
		want := steps(t, here, 5)

		there := newTrainerFor(t, c, specOf(t, gaudi2), 2, false)
		require.NoError(t, there.Restore(t.Context(), written))
		moments := name != "fp8-delayed"
		require.Equal(t, moments, there.Converted)
		for x, values := range unpacked(t, there) {
			tensor, of, history := strings.Cut(x, ".amax_history")
			require.Empty(t, of)
			switch {
			case history:
				// All copies of a tensor have the same maxima.
				tensor = tensor[:strings.LastIndex(tensor, ".")]
				require.Equal(t, sameTensor(was, tensor, ".amax_history"), values, x)
			case strings.HasSuffix(x, ".m1") && moments && strings.Contains(x, "layers.") && !strings.Contains(x, "norm"):
				scaled := func(all map[string][]float64) []float64 {
					list := slices.Clone(all[x])
					for i := range list {
						list[i] *= all[x+".scale_inv"][0]
					}
					return list
				}
				require.Less(t, distance(scaled(unpacked(t, there)), scaled(was)), 0.04, x)
			case was[x] != nil && !strings.Contains(x, ".m1."):
				require.Equal(t, was[x], values, x)
			}
		}
		scalesFollow(t, there)
		for i, r := range steps(t, there, 5) {
			require.False(t, r.Skipped)
			require.InEpsilon(t, want[i].Loss, r.Loss, 0.02, "%s, step %d", name, r.Step)
		}
		scalesFollow(t, there)

		require.NoError(t, there.Restore(t.Context(), snapshot(t, there)))
		require.False(t, there.Converted, "its own checkpoint")
		back := newTrainer(t, c, 2, false)
		require.NoError(t, back.Restore(t.Context(), snapshot(t, there)))
		require.Equal(t, moments, back.Converted)
		require.Equal(t, there.StepsDone(), back.StepsDone())
		require.False(t, steps(t, back, 1)[0].Skipped)
	}
}

// scalesFollow requires of a tensor with two copies that the scale of each follows from
// the history and the limit of its format.
func scalesFollow(t *testing.T, tr *team) {
	t.Helper()
	all := unpacked(t, tr)
	for format, limit := range map[string]float64{"e4m3ieee": 240, "e5m2": 57344} {
		x := "layers.1.mlp.input." + format
		amax := slices.Max(all[x+".amax_history"][:16])
		require.Equal(t, []float64{math.Exp2(math.Floor(math.Log2(limit / amax)))}, all[x+".scale"], x)
		require.Equal(t, 1/all[x+".scale"][0], all[x+".scale_inv"][0], x)
	}
}

// sameTensor returns a tensor's scale or history in the format that all has.
func sameTensor(all map[string][]float64, tensor, kind string) []float64 {
	for _, format := range []string{".e4m3", ".e4m3ieee", ".e5m2"} {
		if x := all[tensor+format+kind]; x != nil {
			return x
		}
	}
	return nil
}

// A change of recipe adapts the new recipe to the device.
func TestScheduleOnADevice(t *testing.T) {
	c := scheduled(small(t, "bf16"), RecipeChange{3, "fp8-smooth"})
	tr := newTrainerFor(t, c, specOf(t, gaudi2), 2, false)
	require.Empty(t, tr.Notes)
	steps(t, tr, 6)
	require.Len(t, tr.Notes, 3)
	require.Equal(t, fp8.E4M3IEEE, tr.Recipe.Optimizer.M1)
}
