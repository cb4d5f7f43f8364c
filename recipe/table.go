package recipe

import (
	"slices"

	"octet/fp8"
)

var (
	nearest    = new(fp8.Nearest)
	stochastic = new(fp8.Stochastic)
)

// e8m5 is BF16 with two bits fewer.
var e8m5, _ = fp8.ParseDType("e8m5") // the grammar of formats has it

var (
	plainState = Optimizer{Master: fp8.F32, M1: fp8.F32, M2: fp8.F32}
	// smallState has the paper's formats: E4M3 for the precision of the first moment,
	// E5M2 for the range of the second, which would underflow where the first does
	// not. Even E5M2's range is too small for a tensor whose gradients differ by 10^4,
	// hence the floor.
	smallState = Optimizer{Master: fp8.F16, M1: fp8.E4M3, M2: fp8.E5M2, Rounding: fp8.Stochastic, FloorV: true}
)

// hybrid returns rows with E4M3 for inputs and weights, E5M2 for gradients, and one
// scaling for all; the head keeps the compute format.
func hybrid(s Scaling, gradRounding *fp8.Rounding, exceptions ...Row) []Row {
	return slices.Concat(exceptions, []Row{
		{Scope: "lm_head", DType: fp8.BF16},
		{Operand: Grad, DType: fp8.E5M2, Scaling: s, Rounding: gradRounding},
		{DType: fp8.E4M3, Scaling: s, Rounding: nearest},
	})
}

// delayed returns a recipe with delayed scaling over 16 updates and stochastic gradients.
func delayed(name, summary string, state Optimizer, smooth Smooth, exceptions ...Row) Recipe {
	return Recipe{
		Name: name, Summary: summary, Compute: fp8.BF16, Optimizer: state, Smooth: smooth,
		Rows:    hybrid(Delayed, stochastic, exceptions...),
		History: 16, GradMargin: 4,
	}
}

// ofAllMatrices returns a state for head and embedding, too.
func ofAllMatrices(state Optimizer) Optimizer {
	state.Scope = AllMatrices
	return state
}

// from returns r with its origin.
func (r Recipe) from(origin string) Recipe {
	r.Origin = origin
	return r
}

const paper = "Scaling FP8 training to trillion-token LLMs (arXiv 2409.12517)"

// methodRecipes are the recipes of the method, its controls first.
var methodRecipes = []Recipe{
	{
		Name: "fp32", Summary: "everything in FP32: the reference",
		Compute: fp8.F32, Optimizer: plainState, History: 16,
	},
	{
		Name: "bf16", Summary: "BF16 GEMMs, FP32 optimizer: the baseline of FP8 recipes",
		Compute: fp8.BF16, Optimizer: plainState, History: 16,
	},
	{
		Name: "bf16-e8m5", Summary: "BF16 with 5 mantissa bits in the linear layers",
		Compute: fp8.BF16, Optimizer: plainState,
		Rows: uniform(Row{DType: e8m5}), History: 16,
	},
	{
		Name: "fp16", Summary: "FP16 GEMMs and activations, dynamic loss scaling",
		Compute: fp8.F16, Optimizer: plainState, History: 16,
	},
	{
		Name: "fp8-current", Summary: "E4M3/E5M2, current scales from each tensor's own amax",
		Compute: fp8.BF16, Optimizer: plainState,
		Rows: hybrid(Current, nearest), History: 16,
	},
	{
		// The gradient of the logits exists in chunks of tokens, so its scale is delayed. Its
		// largest values are those of a probability of 1, which hardly change.
		Name: "fp8-head", Summary: "fp8-current with an FP8 head",
		Compute: fp8.BF16, Optimizer: plainState, History: 16, GradMargin: 4,
		Rows: []Row{
			{Scope: "lm_head", Operand: Grad, DType: fp8.E5M2, Scaling: Delayed},
			{Operand: Grad, DType: fp8.E5M2, Scaling: Current},
			{DType: fp8.E4M3, Scaling: Current},
		},
	},
	delayed("fp8-delayed", "E4M3/E5M2, delayed scales, stochastic gradients", plainState, Smooth{}).from(paper + ", its FP8 baseline. Octet adds a window of 16 steps and a margin for gradients."),
	delayed("fp8-w3-bf16", "fp8-delayed with down_proj in BF16: safe without smoothing", plainState, Smooth{},
		Row{Scope: "*.mlp.down_proj", DType: fp8.BF16}).from(paper + ", which keeps the output of SwiGLU in BF16 where FP8 diverges."),
	delayed("fp8-smooth", "Smooth-SwiGLU and FP8 Adam moments: the method", smallState, Smooth{Form: Balanced}).from(paper + ", with the balanced form of the smoothing scales, stochastic moments and a calibration before the first step: docs/method.md gives the reasons."),
	delayed("fp8-smooth-all", "fp8-smooth with FP8 moments of head and embedding, too", ofAllMatrices(smallState), Smooth{Form: Balanced}).from(paper + ", as fp8-smooth. docs/evidence.md has what the moments of head and embedding do in other formats."),
	// A spike in a token's r moves into r ⊙ dY, the gradient that w3's GEMMs read.
	// No earlier step predicts its amax, so its scale is current.
	delayed("fp8-smooth-token", "fp8-smooth with per-token smoothing scales", smallState, Smooth{Form: Token},
		Row{Scope: "*.mlp.down_proj", Operand: Grad, Scaling: Current}).from(paper + ": its released code takes a smoothing scale per token, of the linear branch; the paper takes one per channel."),
	{
		Name:    "fp8-paper",
		Summary: "as published: linear form, scales from the previous step",
		Origin:  paper + ", its text and released code.",
		Compute: fp8.BF16, Rows: hybrid(Delayed, stochastic),
		Smooth:    Smooth{Form: Linear, Hidden: Delayed, Weight: Delayed},
		Optimizer: Optimizer{Master: fp8.F16, M1: fp8.E4M3, M2: fp8.E5M2},
		History:   1, ColdStart: true,
	},
	{
		Name: "fp8-unit", Summary: "E4M3/E5M2 with all scales 1: the control that must fail",
		Compute: fp8.BF16, Optimizer: plainState, Rows: hybrid(Unit, nearest), History: 16,
	},
}

// failing are variants of Smooth-SwiGLU that fail at the first spike, and of other recipes, for
// studies that show it.
var failing = []Recipe{
	delayed("smooth-product", "product form: the whole outlier moves into w3", smallState, Smooth{Form: Product}),
	delayed("smooth-late-factors", "balanced form, c and scale of h from earlier steps", smallState, Smooth{Form: Balanced, Smoothing: Delayed, Hidden: Delayed}),
	delayed("smooth-late-hidden", "linear form, scale of h from earlier steps", smallState, Smooth{Form: Linear, Hidden: Delayed}),
	delayed("smooth-late-weight", "product form, scale of W3' from earlier steps", smallState, Smooth{Form: Product, Weight: Delayed}),
	// With r = max|a|, |h| = |a|/r is at most 1, so a delayed scale of h would not fail.
	delayed("smooth-late-token", "token-linear form, scale of h from earlier steps", smallState, Smooth{Form: TokenLinear, Hidden: Delayed},
		Row{Scope: "*.mlp.down_proj", Operand: Grad, Scaling: Current}),
	int8Wgrad,
}

// Kind groups recipes in listings.
type Kind uint8

const (
	Method    Kind = iota // the method and its controls
	Peer                  // formats of other systems
	PeerState             // optimizer states of other systems
	Failing               // known to fail
	Own                   // registered by this program or read from a file
)

func (k Kind) String() string {
	return [...]string{"the method and its controls", "formats of other systems", "optimizer states of other systems, under BF16 GEMMs", "variants known to fail", "your own"}[k]
}

var builtIn = func() []Recipe {
	peers := append(peers, masks...)
	for i := range peers {
		peers[i].Kind = Peer
	}
	for i := range states {
		states[i].Kind = PeerState
	}
	failing := append(failing, msAMPControl)
	failing = append(failing, narrowMasks...)
	for i := range failing {
		failing[i].Kind = Failing
	}
	return slices.Concat(methodRecipes, peers, states, failing)
}()
