package recipe

import (
	"fmt"
	"slices"
	"strings"

	"octet/fp8"
)

var (
	nearest    = new(fp8.Nearest)
	stochastic = new(fp8.Stochastic)
)

var (
	plainState = Optimizer{Master: fp8.F32, M1: fp8.F32, M2: fp8.F32}
	// smallState is the paper's: the first moment wants precision, the second
	// range, since E4M3 lets v underflow where m survives.
	smallState = Optimizer{Master: fp8.F16, M1: fp8.E4M3, M2: fp8.E5M2, Rounding: fp8.Stochastic}
)

// hybrid is E4M3 forward and E5M2 backward with one scaling for all; the head
// keeps the compute format.
func hybrid(s Scaling, gradRounding *fp8.Rounding, exceptions ...Row) []Row {
	return slices.Concat(exceptions, []Row{
		{Scope: "lm_head", DType: fp8.BF16},
		{Operand: Grad, DType: fp8.E5M2, Scaling: s, Rounding: gradRounding},
		{DType: fp8.E4M3, Scaling: s, Rounding: nearest},
	})
}

var recipes = []Recipe{
	{
		Name: "fp32", Summary: "everything in FP32: the yardstick",
		Compute: fp8.F32, Optimizer: plainState,
	},
	{
		Name: "bf16", Summary: "BF16 products, FP32 optimizer: the control of every FP8 recipe",
		Compute: fp8.BF16, Optimizer: plainState,
	},
	{
		Name: "fp8-current", Summary: "E4M3/E5M2, each tensor scaled by its own amax",
		Compute: fp8.BF16, Optimizer: plainState,
		Rows: hybrid(Current, nearest),
	},
	{
		Name: "fp8-delayed", Summary: "E4M3/E5M2, scales from earlier steps, stochastic gradients",
		Compute: fp8.BF16, Optimizer: plainState,
		Rows: hybrid(Delayed, stochastic),
	},
	{
		Name: "fp8-w3-bf16", Summary: "fp8-delayed, but down_proj in BF16: the safe way",
		Compute: fp8.BF16, Optimizer: plainState,
		Rows: hybrid(Delayed, stochastic, Row{Scope: "*.mlp.down_proj", DType: fp8.BF16}),
	},
	{
		Name: "fp8-smooth", Summary: "Smooth-SwiGLU and FP8 Adam moments: the method",
		Compute: fp8.BF16, Optimizer: smallState, Smooth: true,
		Rows: hybrid(Delayed, stochastic),
	},
	{
		Name: "fp8-unit", Summary: "E4M3/E5M2 without scales: the control that must fail",
		Compute: fp8.BF16, Optimizer: plainState,
		Rows: hybrid(Unit, nearest),
	},
}

// Lookup returns a recipe by name, with the default history and margins.
func Lookup(name string) (Recipe, error) {
	for _, r := range recipes {
		if r.Name == name {
			r.Rows = slices.Clone(r.Rows)
			r.History, r.GradMargin = 16, 4
			return r, nil
		}
	}
	return Recipe{}, fmt.Errorf("unknown recipe %q (known: %s)", name, strings.Join(Names(), ", "))
}

// Names lists the recipes in the order of the documentation.
func Names() []string {
	names := make([]string, len(recipes))
	for i, r := range recipes {
		names[i] = r.Name
	}
	return names
}
