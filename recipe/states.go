package recipe

import "octet/fp8"

// underBF16 returns a recipe with an optimizer state for all matrices and BF16 GEMMs, so that
// such recipes compare the state alone.
func underBF16(name, summary, origin string, state Optimizer) Recipe {
	state.Scope = AllMatrices
	return Recipe{Name: name, Summary: summary, Origin: origin, Compute: fp8.BF16, Optimizer: state, History: 16}
}

// states have the optimizer states of other systems, rounded to nearest even.
var states = []Recipe{
	underBF16("coat-adam", "COAT: E4M3 moments, expanded blocks of 128",
		"COAT (arXiv 2410.19313; NVlabs/COAT, fp8_adamw_expand). Its blocks are 128 elements of the "+
			"flattened tensor; Octet's end with the row.",
		Optimizer{Master: fp8.F32, M1: fp8.E4M3, M2: fp8.E4M3, Block: 128, Expand: true}),
	underBF16("te-adam", "Transformer Engine's FusedAdam: E4M3 moments, FP16 master",
		"Transformer Engine, pytorch/optimizers/fused_adam.py. Its FP16 master holds values up to 32752, "+
			"half of Octet's largest, so weights underflow a binade earlier. A moment of zeros keeps "+
			"its scale here.",
		Optimizer{Master: fp8.F16, M1: fp8.E4M3, M2: fp8.E4M3}),
	underBF16("torchao-adam", "torchao's AdamWFp8: E4M3 moments, flat blocks of 256",
		"torchao, optim/subclass_fp8.py. Its scale is at least 1e-12/448, which flushes blocks of v "+
			"far below that; Octet's scale has no minimum. torchao leaves tensors below 4,096 elements in FP32.",
		Optimizer{Master: fp8.F32, M1: fp8.E4M3, M2: fp8.E4M3, Block: 256, Flat: true}),
	underBF16("ms-amp-adam", "FP8-LM's (MS-AMP): m1 in E4M3, v and master in FP16",
		"FP8-LM (arXiv 2310.18313; Azure/MS-AMP, optim/adamw.py). The FP16 master is that of its level O3.",
		Optimizer{Master: fp8.F16, M1: fp8.E4M3, M2: fp8.F16, Pow2: true}),
	underBF16("fp8-lm-adam", "FP8-LM's six bytes: ms-amp-adam, gradients in E4M3",
		"FP8-LM (arXiv 2310.18313; Azure/MS-AMP, add_to_fp8). Its wgrad GEMM writes E4M3; Octet's adds "+
			"to the sum of the micro-batches in FP32, which is then cast. Embedding and head keep FP32 masters "+
			"and gradients here.",
		Optimizer{Master: fp8.F16, M1: fp8.E4M3, M2: fp8.F16, Grad: fp8.E4M3, Pow2: true}),
}

var msAMPControl = underBF16("ms-amp-v-e4m3", "ms-amp-adam with v in E4M3",
	"FP8-LM (arXiv 2310.18313), the row of its comparison of formats that diverges: both moments in FP8.",
	Optimizer{Master: fp8.F16, M1: fp8.E4M3, M2: fp8.E4M3, Pow2: true})
