package recipe

import (
	"slices"

	"octet/fp8"
)

// uniform returns rows with one format for all operands; the head keeps the compute format.
func uniform(rest Row, exceptions ...Row) []Row {
	return slices.Concat(exceptions, []Row{{Scope: "lm_head", DType: fp8.BF16}, rest})
}

// withScale sets the scale format of rows and returns them.
func withScale(f ScaleFormat, rows []Row) []Row {
	for i := range rows {
		rows[i].Scale = f
	}
	return rows
}

// peers are recipes with the formats and scales of other systems. They do not
// reproduce how those systems split GEMMs, fuse casts and reduce gradients.
// Rounding is to nearest even.
var peers = []Recipe{
	{
		Name: "te-delayed", Summary: "Transformer Engine's DelayedScaling over 1,024 steps",
		Origin: "Transformer Engine, common/recipe DelayedScaling: HYBRID, margin 0, history 1,024, " +
			"maximum.",
		Compute: fp8.BF16, Optimizer: plainState,
		Rows: withScale(Exact, hybrid(Delayed, nearest)), History: 1024,
	},
	{
		Name: "te-current", Summary: "Transformer Engine's Float8CurrentScaling",
		Origin: "Transformer Engine, common/recipe Float8CurrentScaling. Its forward GEMMs use fast " +
			"accumulation.",
		Compute: fp8.BF16, Optimizer: plainState,
		Rows: withScale(Exact, hybrid(Current, nearest)), History: 16,
	},
	{
		Name: "te-block", Summary: "Transformer Engine's Float8BlockScaling, pow2 scales",
		Origin: "Transformer Engine, common/recipe Float8BlockScaling, which also stores a transposed " +
			"copy of each operand.",
		Compute: fp8.BF16, Optimizer: plainState,
		Rows: deepSeekRows(Pow2), History: 16,
	},
	{
		Name: "torchao-tensor", Summary: "torchao's tensorwise: per-tensor current scales",
		Origin:  "torchao, Float8LinearConfig.from_recipe_name tensorwise.",
		Compute: fp8.BF16, Optimizer: plainState,
		Rows: withScale(Exact, hybrid(Current, nearest)), History: 16,
	},
	{
		Name: "torchao-row", Summary: "torchao's rowwise: E4M3 for all, per-row scales",
		Origin:  "torchao, Float8LinearConfig.from_recipe_name rowwise.",
		Compute: fp8.BF16, Optimizer: plainState,
		Rows: uniform(Row{DType: fp8.E4M3, Scaling: Current, Granularity: PerRow, Scale: Pow2}), History: 16,
	},
	{
		Name: "torchao-row-gw-hp", Summary: "torchao's rowwise_with_gw_hp: weight gradients in BF16",
		Origin:  "torchao, Float8LinearConfig.from_recipe_name rowwise_with_gw_hp.",
		Compute: fp8.BF16, Optimizer: plainState,
		Rows: uniform(Row{DType: fp8.E4M3, Scaling: Current, Granularity: PerRow, Scale: Pow2},
			Row{GEMM: Wgrad, DType: fp8.BF16},
			Row{GEMM: Dgrad, Operand: Weight, Granularity: PerTensor}), History: 16,
	},
	{
		Name: "deepseek-v3", Summary: "DeepSeek-V3: E4M3, 1x128, weights 128x128, moments in BF16",
		Origin: "DeepSeek-V3's report (arXiv 2412.19437, section 3.3). It stores some activations in " +
			"E5M6, which Octet does not.",
		Compute: fp8.BF16, Optimizer: Optimizer{Master: fp8.F32, M1: fp8.BF16, M2: fp8.BF16},
		Rows: deepSeekRows(Exact), History: 16,
	},
	{
		Name: "mxfp8", Summary: "MXFP8: E4M3, blocks of 32, E8M0 scales, nothing saturates",
		Origin: "Recipes for pre-training with MXFP8 (arXiv 2506.08027); Transformer Engine, " +
			"common/recipe MXFP8BlockScaling.",
		Compute: fp8.BF16, Optimizer: plainState,
		Rows: uniform(Row{DType: fp8.E4M3, Scaling: Current, Granularity: By(1, 32), Scale: E8M0}), History: 16,
	},
	{
		Name: "mxfp6", Summary: "MXFP6: E2M3, gradients in E3M2, blocks of 32, E8M0 scales",
		Origin:  "OCP Microscaling Formats 1.0. The choice of formats for gradients is Octet's.",
		Compute: fp8.BF16, Optimizer: plainState,
		Rows: uniform(Row{DType: fp8.E2M3, Scaling: Current, Granularity: By(1, 32), Scale: E8M0},
			Row{Scope: "layers.*", Operand: Grad, DType: fp8.E3M2}), History: 16,
	},
	{
		Name: "mxfp4", Summary: "MXFP4: E2M1, blocks of 32, E8M0, stochastic gradients",
		Origin:  "OCP Microscaling Formats 1.0, scales rounded up as in mxfp8.",
		Compute: fp8.BF16, Optimizer: plainState,
		Rows: uniform(Row{DType: fp8.E2M1, Scaling: Current, Granularity: By(1, 32), Scale: E8M0},
			Row{Operand: Grad, Rounding: stochastic}), History: 16,
	},
	// The groups have 16 tokens, not a block's 32: every FP8 recipe accepts multiples of 16.
	{
		Name: "mxfp4-rht", Summary: "mxfp4 with a random Hadamard transform in weight gradients",
		Origin:  "mxfp4 and the transform of Transformer Engine's NVFP4 recipe, over 16 tokens.",
		Compute: fp8.BF16, Optimizer: plainState,
		Rows: uniform(Row{DType: fp8.E2M1, Scaling: Current, Granularity: By(1, 32), Scale: E8M0},
			Row{Operand: Grad, Rounding: stochastic},
			Row{GEMM: Wgrad, Hadamard: Hadamard{16, SeedSigns}}), History: 16,
	},
	{
		Name: "nvfp4", Summary: "NVFP4: Hadamard in wgrad, first and last layer in BF16",
		Origin: "NVIDIA (arXiv 2509.25149); Transformer Engine, common/recipe NVFP4BlockScaling. NVIDIA " +
			"keeps the first 2 and the last 8 of 62 layers in BF16; Octet's models have fewer: one " +
			"and one.",
		Compute: fp8.BF16, Optimizer: plainState,
		Rows: nvfp4Rows(Row{Scope: "layers[:1].*", DType: fp8.BF16}, Row{Scope: "layers[-1:].*", DType: fp8.BF16},
			Row{GEMM: Wgrad, Hadamard: Hadamard{16, TESigns}}), History: 16,
	},
	{
		Name: "nvfp4-wgrad-bf16", Summary: "nvfp4-plain with weight gradients in BF16",
		Origin:  "A variant of nvfp4 for comparison, by Octet.",
		Compute: fp8.BF16, Optimizer: plainState,
		Rows: nvfp4Rows(Row{GEMM: Wgrad, DType: fp8.BF16}), History: 16,
	},
	{
		Name: "nvfp4-plain", Summary: "NVFP4 in all linear layers, without its controls",
		Origin:  "A variant of nvfp4 for comparison, by Octet.",
		Compute: fp8.BF16, Optimizer: plainState,
		Rows: nvfp4Rows(), History: 16,
	},
	{
		Name: "int8-switchback", Summary: "SwitchBack: INT8 per row, weight gradients in BF16",
		Origin:  "SwitchBack (arXiv 2304.13013; bitsandbytes). Its optimizer is StableAdamW.",
		Compute: fp8.BF16, Optimizer: plainState,
		Rows: uniform(Row{DType: fp8.INT8, Scaling: Current, Granularity: PerRow, Scale: Exact},
			Row{GEMM: Wgrad, DType: fp8.BF16},
			Row{Operand: Weight, Granularity: PerTensor}), History: 16,
	},
	{
		Name: "coat", Summary: "COAT: FP8 activations and optimizer states, current scales",
		Origin: "COAT (arXiv 2410.19313; NVlabs/COAT, models/coat_llama.py). Norms and the MLP's activation " +
			"read E4M3 in blocks of 1x16, whose scales are in BF16 there and in FP32 here. COAT also stores " +
			"silu(gate); Octet computes it again. Evaluation there is in BF16.",
		Compute: fp8.BF16, Activations: Activations{DType: fp8.E4M3, Granularity: By(1, 16), Scale: Exact},
		Optimizer: Optimizer{Master: fp8.F32, M1: fp8.E4M3, M2: fp8.E4M3, Block: 128, Expand: true, Scope: AllMatrices},
		Rows:      withScale(Exact, hybrid(Current, nearest)), History: 16,
	},
	fp8LM("fp8-lm-o1", "FP8-LM's level O1: gradients in E4M3 between ranks", "level O1",
		Optimizer{Master: fp8.F16, M1: fp8.F32, M2: fp8.F32, Pow2: true}),
	fp8LM("fp8-lm", "FP8-LM's O2, O3: fp8-lm-o1, m1 in E4M3, v and master FP16", "levels O2 and O3, which differ "+
		"in the format of gathered weights: Octet gathers FP8 codes at every level",
		Optimizer{Master: fp8.F16, M1: fp8.E4M3, M2: fp8.F16, Pow2: true, Scope: AllMatrices}),
	unifiedInt8,
	{
		Name: "mu-s", Summary: "muS: hybrid FP8 with constant scales",
		Origin: "µnit Scaling (arXiv 2502.05967). Its weights have unit variance and each GEMM a multiplier of " +
			"1/√fan_in: the codes of weights of std 1/√fan_in times √fan_in. Gradients are times the tokens of a step, Octet's choice. " +
			"Its norms and initial weights are keys of [model], such as norm = post and init_rule = fan-in: docs/systems.md.",
		Compute: fp8.BF16, Optimizer: plainState,
		Rows: withScale(Exact, hybrid(Constant, nearest)), History: 16,
	},
}

// fp8LM returns FP8-LM's recipe of a level with its optimizer state. The scales of weights
// are current, those of activations and gradients look back 16 updates.
func fp8LM(name, summary, level string, state Optimizer) Recipe {
	return Recipe{
		Name: name, Summary: summary,
		Origin: "FP8-LM (arXiv 2310.18313; Azure/MS-AMP), " + level + ". MS-AMP's wgrad gives E4M3; Octet " +
			"casts the FP32 gradient once, for the exchange (train.zero_stage = 1). MS-AMP's code has a constant " +
			"μ: precision.reduce_scale = rms. Gradients of embedding, head and norms stay FP32.",
		Compute: fp8.BF16, Optimizer: state, History: 16,
		Rows:   hybrid(Delayed, nearest, Row{Operand: Weight, Scaling: Current}),
		Reduce: Reduce{DType: fp8.E4M3, Granularity: PerTensor, Scale: AutoMu, Sum: SumEach},
	}
}

func nvfp4Rows(exceptions ...Row) []Row {
	return uniform(Row{DType: fp8.E2M1, Scaling: Current, Granularity: By(1, 16), Scale: NVFP4}, slices.Concat(exceptions, []Row{
		{Operand: Weight, Granularity: By(16, 16)},
		{Operand: Grad, Rounding: stochastic},
	})...)
}

func deepSeekRows(f ScaleFormat) []Row {
	return uniform(Row{DType: fp8.E4M3, Scaling: Current, Granularity: By(1, 128), Scale: f},
		Row{Operand: Weight, Granularity: By(128, 128)})
}
