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
	// smallState has the paper's formats: the first moment wants precision, the
	// second range, since v underflows where m survives. Even E5M2's range is too
	// small for a tensor whose gradients spread over 10^4, hence the floor.
	smallState = Optimizer{Master: fp8.F16, M1: fp8.E4M3, M2: fp8.E5M2, Rounding: fp8.Stochastic, FloorV: true}
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

// delayed is what most recipes share.
func delayed(name, summary string, state Optimizer, smooth Smooth, exceptions ...Row) Recipe {
	return Recipe{
		Name: name, Summary: summary, Compute: fp8.BF16, Optimizer: state, Smooth: smooth,
		Rows:    hybrid(Delayed, stochastic, exceptions...),
		History: 16, GradMargin: 4,
	}
}

// octets are the recipes of the method, its controls first.
var octets = []Recipe{
	{
		Name: "fp32", Summary: "everything in FP32: the yardstick",
		Compute: fp8.F32, Optimizer: plainState, History: 16,
	},
	{
		Name: "bf16", Summary: "BF16 products, FP32 optimizer: the control of FP8 recipes",
		Compute: fp8.BF16, Optimizer: plainState, History: 16,
	},
	{
		Name: "fp8-current", Summary: "E4M3/E5M2, each tensor scaled by its own amax",
		Compute: fp8.BF16, Optimizer: plainState,
		Rows: hybrid(Current, nearest), History: 16,
	},
	delayed("fp8-delayed", "E4M3/E5M2, scales from earlier steps, stochastic gradients", plainState, Smooth{}),
	delayed("fp8-w3-bf16", "fp8-delayed, but down_proj in BF16: the safe way", plainState, Smooth{},
		Row{Scope: "*.mlp.down_proj", DType: fp8.BF16}),
	delayed("fp8-smooth", "Smooth-SwiGLU and FP8 Adam moments: the method", smallState, Smooth{Form: Balanced}),
	// What spikes by token goes into the gradient of w3's products, r ⊙ dY, which
	// no earlier step foretells.
	delayed("fp8-smooth-token", "fp8-smooth with a factor for each token", smallState, Smooth{Form: Token},
		Row{Scope: "*.mlp.down_proj", Operand: Grad, Scaling: Current}),
	{
		Name:    "fp8-paper",
		Summary: "as published: linear factors, scales of the step before",
		Compute: fp8.BF16, Rows: hybrid(Delayed, stochastic),
		Smooth:    Smooth{Form: Linear, Hidden: Delayed, Weight: Delayed},
		Optimizer: Optimizer{Master: fp8.F16, M1: fp8.E4M3, M2: fp8.E5M2},
		History:   1, ColdStart: true,
	},
	{
		Name: "fp8-unit", Summary: "E4M3/E5M2 without scales: the control that must fail",
		Compute: fp8.BF16, Optimizer: plainState, Rows: hybrid(Unit, nearest), History: 16,
	},
}

// failing are variants of Smooth-SwiGLU that fail at the first spike, by name
// so that a study can show it.
var failing = []Recipe{
	delayed("smooth-product", "all of an outlier moves into w3, which it ruins instead", smallState, Smooth{Form: Product}),
	delayed("smooth-late-factors", "channel factors, scale of h from earlier steps", smallState, Smooth{Form: Balanced, Factors: Delayed, Hidden: Delayed}),
	delayed("smooth-late-hidden", "linear factors; the scale of h from earlier steps", smallState, Smooth{Form: Linear, Hidden: Delayed}),
	delayed("smooth-late-weight", "product factors; the scale of W3' from earlier steps", smallState, Smooth{Form: Product, Weight: Delayed}),
	// By max|a|, h/r is at most 1 whatever comes, and no scale of it is late.
	delayed("smooth-late-token", "token factors of max|u|; scale of h from earlier steps", smallState, Smooth{Form: TokenLinear, Hidden: Delayed},
		Row{Scope: "*.mlp.down_proj", Operand: Grad, Scaling: Current}),
}

// Kind sorts recipes for those who read a list of them.
type Kind uint8

const (
	Method  Kind = iota // the method and its controls
	Peer                // of other systems
	Failing             // known to fail
)

func (k Kind) String() string {
	return [...]string{"the method and its controls", "recipes of other systems", "variants that are known to fail"}[k]
}

var recipes = func() []Recipe {
	for i := range peers {
		peers[i].Kind = Peer
	}
	for i := range failing {
		failing[i].Kind = Failing
	}
	return slices.Concat(octets, peers, failing)
}()

// Lookup returns a recipe by name.
func Lookup(name string) (Recipe, error) {
	for _, r := range recipes {
		if r.Name == name {
			r.Rows = slices.Clone(r.Rows)
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
