package train

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// quantizedCopies names the FP8 copies of a slot in the micro-batch.
func quantizedCopies(j *Job, slot string) (names []string) {
	for _, t := range j.Micro[Variant{true, true}].Temps() {
		if len(t.Name) > len(slot) && t.Name[:len(slot)+1] == slot+"." && t.DType.IsQuantized() {
			names = append(names, t.Name)
		}
	}
	return names
}

// An exception for one layer is one row, for any field.
func TestExceptionsAreOneRow(t *testing.T) {
	for name, c := range map[string]struct {
		recipe string
		row    PrecisionRow
		slot   string
		copies []string
	}{
		"scaling of one reader": {
			"fp8-delayed",
			PrecisionRow{Scope: "layers.0.self_attn.q_proj", Operand: "input", Scaling: "current"},
			"layers.0.self_attn.input",
			[]string{"layers.0.self_attn.input.e4m3", "layers.0.self_attn.input.e4m3.delayed.nearest"},
		},
		"rounding of one product": {
			"fp8-delayed",
			PrecisionRow{Scope: "*.k_proj", GEMM: "wgrad", Operand: "grad", Rounding: "nearest"},
			"layers.1.self_attn.k_proj.grad",
			[]string{"layers.1.self_attn.k_proj.grad.e5m2", "layers.1.self_attn.k_proj.grad.e5m2.delayed.nearest"},
		},
		"format of one product": {
			"fp8-smooth",
			PrecisionRow{Scope: "layers.1.*.q_proj", GEMM: "wgrad", Operand: "input", Format: "e5m2"},
			"layers.1.self_attn.input",
			[]string{"layers.1.self_attn.input.e4m3", "layers.1.self_attn.input.e5m2"},
		},
		"weight of one product": {
			"fp8-delayed",
			PrecisionRow{Scope: "layers.0.self_attn.o_proj", GEMM: "dgrad", Operand: "weight", Scaling: "current"},
			"layers.0.self_attn.output",
			[]string{"layers.0.self_attn.output.e4m3"},
		},
		"history and margin of one product": {
			"fp8-delayed",
			PrecisionRow{Scope: "layers.1.*.q_proj", GEMM: "wgrad", Operand: "input", History: new(64), Margin: new(2)},
			"layers.1.self_attn.input",
			[]string{"layers.1.self_attn.input.e4m3", "layers.1.self_attn.input.e4m3.delayed.nearest"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			config := small(t, c.recipe)
			config.Precision.Rows = []PrecisionRow{c.row}
			tr := newTrainer(t, config, 2, false)
			require.Equal(t, c.copies, quantizedCopies(tr.Job, c.slot))
			for _, r := range steps(t, tr, 2) {
				require.False(t, r.Skipped)
			}
			require.NoError(t, newTrainer(t, config, 1, false).Restore(t.Context(), snapshot(t, tr)))
		})
	}
}

// The activation, given or from the recipe, decides whether Smooth-SwiGLU is used.
// Its casts are current, and Job.Recipe contains its settings.
func TestActivationDecidesOnSmoothing(t *testing.T) {
	for _, c := range []struct {
		recipe, activation string
		want               int
	}{
		{"fp8-smooth", "", 2},
		{"fp8-smooth", "swiglu", 0},
		{"fp8-delayed", "", 0},
		{"fp8-delayed", "smooth-swiglu", 2},
		{"fp8-unit", "smooth-swiglu", 2},
	} {
		config := small(t, c.recipe)
		config.Model.Activation = c.activation
		j, err := NewJob(config, specOf(t, "emu"))
		require.NoError(t, err)
		count := 0
		for _, n := range j.Micro[Variant{true, true}].Nodes() {
			if _, ok := n.Op.(*backend.SmoothScale); ok {
				count++
			}
		}
		require.Equal(t, c.want, count, c)
		w3 := j.Recipe.Cast(recipe.Layer{Scope: "layers.0.mlp.down_proj", Hidden: true}, recipe.Fprop, recipe.Input)
		require.Equal(t, c.want > 0, j.Recipe.Smooth.On(), c)
		if c.want > 0 {
			require.Equal(t, recipe.Cast{DType: fp8.E4M3, Scaling: recipe.Current, Granularity: recipe.PerTensor, Scale: recipe.Pow2}, w3, c)
		}
	}
}

// A rotation divides the tokens of a micro-batch, under every recipe of the run.
func TestRotationsDivideTheTokens(t *testing.T) {
	c := small(t, "mxfp4-rht")
	c.Data.Seq, c.Train.MicroBatch = 16, 3
	_, err := NewJob(c, specOf(t, "emu"))
	require.NoError(t, err)
	c.Precision.Rows = []PrecisionRow{{Scope: "layers.*", GEMM: "wgrad", Hadamard: 32}}
	const want = "recipe mxfp4-rht rotates groups of 32 tokens (hadamard), but train.micro_batch = 3 sequences of data.seq = 16 are 48 tokens; use data.seq = 32"
	_, err = NewJob(c, specOf(t, "emu"))
	require.ErrorContains(t, err, want)
	c.Recipe = "bf16"
	_, err = NewJob(scheduled(c, RecipeChange{3, "mxfp4-rht"}), specOf(t, "emu"))
	require.ErrorContains(t, err, want)
}

func TestScopesMustMatch(t *testing.T) {
	c := small(t, "fp8-delayed")
	c.Precision.Rows = []PrecisionRow{{Scope: "layers.7.mlp.*", Format: "bf16"}}
	_, err := NewJob(c, specOf(t, "emu"))
	require.ErrorContains(t, err, `scope "layers.7.mlp.*" matches none of the linear layers up to layers.1.mlp.down_proj; use one of the paths layers.*.self_attn.q_proj, `)
	c.Precision.Rows[0].Scope = "layers[2:].mlp.*"
	_, err = NewJob(c, specOf(t, "emu"))
	require.ErrorContains(t, err, `scope "layers[2:].mlp.*" matches none of the linear layers up to layers.1.mlp.down_proj; `)
}

// A slice counts the layers of the run's model.
func TestSlicesCountTheLayers(t *testing.T) {
	c := small(t, "fp8-delayed")
	c.Precision.Rows = []PrecisionRow{{Scope: "layers[-1:].mlp.*", Format: "bf16"}}
	for layers := 1; layers < 4; layers++ {
		c.Model.Layers = layers
		job, err := NewJob(c, specOf(t, "emu"))
		require.NoError(t, err)
		for _, l := range job.Model.Linears() {
			want := fp8.E4M3
			if strings.HasPrefix(l.Scope, fmt.Sprintf("layers.%d.mlp.", layers-1)) || l.Head {
				want = fp8.BF16
			}
			require.Equal(t, want, job.Model.Recipe.Cast(l, recipe.Fprop, recipe.Weight).DType, l.Scope)
		}
	}
}

// nvfp4 keeps its first and its last layer in BF16, which can be all.
func TestModelTooSmallForItsRecipe(t *testing.T) {
	c := small(t, "nvfp4")
	for layers, want := range map[int][]string{
		2: {"no GEMM of this model reads a format with scales: other rows of recipe nvfp4 take all 15 linear layers"},
		3: nil,
	} {
		c.Model.Layers = layers
		job, err := NewJob(c, specOf(t, "emu"))
		require.NoError(t, err)
		require.Equal(t, want, job.Notes)
	}
}

func TestSmoothingRefuses(t *testing.T) {
	c := small(t, "bf16")
	c.Model.Activation = "smooth-swiglu"
	_, err := NewJob(c, specOf(t, "emu"))
	require.ErrorContains(t, err, "no layer reads the MLPs' hidden activation in FP8")
	c = small(t, "fp8-smooth")
	c.Precision.Rows = []PrecisionRow{{Scope: "*.down_proj", GEMM: "wgrad", Format: "bf16"}}
	_, err = NewJob(c, specOf(t, "emu"))
	require.ErrorContains(t, err, "layers.0.mlp.down_proj: wgrad reads bf16")
	c = small(t, "fp8-smooth")
	c.Precision.Rows = []PrecisionRow{{Scope: "*.down_pro?", Operand: "input", Scaling: "delayed"}}
	_, err = NewJob(c, specOf(t, "emu"))
	require.ErrorContains(t, err, "precision.rows[0] has no effect")
	c.Precision.Rows[0].Scope = "*.mlp.*" // it applies to up_proj and gate_proj
	_, err = NewJob(c, specOf(t, "emu"))
	require.NoError(t, err)
	c.Precision.Rows = []PrecisionRow{{Scope: "layers.*", Format: "e4m3"}, {Scope: "layers.1.mlp.*", Format: "bf16"}}
	_, err = NewJob(c, specOf(t, "emu"))
	require.ErrorContains(t, err, "precision.rows[1] has no effect")
	c.Precision.Rows = []PrecisionRow{{Scope: "*", Format: "e4m3"}}
	_, err = NewJob(c, specOf(t, "emu"))
	require.NoError(t, err, "the head too")
	c.Recipe = "bf16"
	c.Precision.Rows = []PrecisionRow{{Scope: "*", Operand: "input", Scaling: "delayed"}}
	_, err = NewJob(c, specOf(t, "emu"))
	require.ErrorContains(t, err, "precision.rows[0] has no effect")
	_, err = NewJob(scheduled(c, RecipeChange{3, "fp8-delayed"}), specOf(t, "emu"))
	require.NoError(t, err)
	c = small(t, "fp8-delayed")
	c.Precision.Rows = []PrecisionRow{{Scope: "*", Operand: "weight", Rounding: "stochastic"}}
	_, err = NewJob(c, specOf(t, "emu"))
	require.ErrorContains(t, err, "rounding of weights must be nearest")
}

// Casts with unit scales record amaxes too, so that an infinity before the cast
// is detected.
func TestUnitScalesRecordAmaxes(t *testing.T) {
	j, err := NewJob(small(t, "fp8-unit"), specOf(t, "emu"))
	require.NoError(t, err)
	require.NotNil(t, j.Model.Scales.Amax)
	for _, n := range append(j.Micro[Variant{true, true}].Nodes(), j.Update.Nodes()...) {
		_, updates := n.Op.(*backend.UpdateScale)
		require.False(t, updates, n.Path())
	}
}

// Rows also give wide formats: FP32 under BF16, BF16 under FP32, BF16 with fewer bits. The
// GEMMs read them, and a step still has nearly the recipe's loss.
func TestRowsOfWideFormats(t *testing.T) {
	for _, name := range []string{"bf16", "fp32", "fp8-smooth"} {
		loss := map[string]float64{}
		for _, format := range []string{"", "fp32", "bf16", "e8m5"} {
			c := small(t, name)
			c.Train.Steps = 3
			if format != "" {
				c.Precision.Rows = []PrecisionRow{{Scope: "layers.0.*", Format: format}}
			}
			if format == recipeCompute(t, name) && name != "fp8-smooth" {
				c.Precision.Rows = nil // it has no effect
			}
			tr := newTrainer(t, c, 1, false)
			stored := map[string]fp8.DType{"fp32": fp8.F32, "bf16": fp8.BF16, "e8m5": fp8.BF16}[format]
			for _, n := range tr.Micro[Variant{true, true}].Nodes() {
				if op, ok := n.Op.(*backend.MatMul); ok && strings.HasPrefix(n.Scope, "layers.0.") && format != "" {
					require.Equal(t, [2]fp8.DType{stored, stored}, [2]fp8.DType{op.A.DType, op.B.DType}, n.Path())
				}
			}
			for range c.Train.Steps {
				s, err := tr.Next(t.Context())
				require.NoError(t, err)
				loss[format] = s.Loss
			}
			require.InEpsilon(t, loss[""], loss[format], 0.01, "%s %s", name, format)
		}
		require.NotEqual(t, loss["bf16"], loss["e8m5"], name)
		require.NotEqual(t, loss["bf16"], loss["fp32"], name)
	}
}
