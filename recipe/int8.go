package recipe

import "octet/fp8"

// unifiedInt8 has the formats of Unified INT8 in all three GEMMs.
var unifiedInt8 = Recipe{
	Name: "int8-unified", Summary: "Unified INT8: all GEMMs, gradients clipped by direction",
	Origin: "Unified INT8 training (arXiv 1912.12607). It searches the clipping value once in some hundred " +
		"steps, Octet in every micro-batch, on a grid. Its input has one scale, Octet's one per row. Its " +
		"learning rates by layer are optimizer.direction_lr.",
	Compute: fp8.BF16, Optimizer: plainState,
	Rows: uniform(Row{DType: fp8.INT8, Scaling: Current, Granularity: PerRow, Scale: Exact},
		Row{Scope: "layers.*", Operand: Grad, Scaling: Direction, Granularity: PerTensor, Rounding: stochastic},
		Row{GEMM: Wgrad, Granularity: PerTensor},
		Row{Operand: Weight, Granularity: PerTensor}), History: 16,
}

// int8Wgrad fails at an outlier feature: a scale for all features flushes the others.
var int8Wgrad = Recipe{
	Name: "int8-wgrad", Summary: "int8-switchback with wgrad in INT8, scales per tensor",
	Origin: "A variant of int8-switchback by Octet, the control of SwitchBack (arXiv 2304.13013): INT8 in " +
		"all three GEMMs, wgrad with one scale for all features.",
	Compute: fp8.BF16, Optimizer: plainState,
	Rows: uniform(Row{DType: fp8.INT8, Scaling: Current, Granularity: PerRow, Scale: Exact},
		Row{GEMM: Wgrad, Granularity: PerTensor},
		Row{Operand: Weight, Granularity: PerTensor}), History: 16,
}
