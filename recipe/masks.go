package recipe

import "octet/fp8"

// masked returns a recipe whose linear layers read BF16 with bits cleared; the head keeps all.
func masked(format, summary, differs string) Recipe {
	d, _ := fp8.ParseDType(format + "mask") // the grammar of formats has it
	return Recipe{
		Name: "bf16-" + format + "-mask", Summary: summary,
		Origin: "To FP8 and Back Again (arXiv 2405.18710), which clears bits of the BF16 operands of GEMMs " +
			"and has no scales. " + differs,
		Compute: fp8.BF16, Optimizer: plainState,
		Rows: uniform(Row{DType: d}), History: 16,
	}
}

var masks = []Recipe{
	masked("e8m3", "BF16 truncated to 3 mantissa bits", "The exponent keeps eight bits."),
	masked("e7m7", "BF16 clipped to 7 exponent bits", "A value below 2^-62 becomes 0. The paper's E7M7 fails to train; this one trains like bf16."),
}

// narrowMasks have a range that most gradients, or all of them, are below.
var narrowMasks = []Recipe{
	masked("e5m7", "BF16 clipped to 5 exponent bits: most gradients become 0", "A value below 2^-14 becomes 0, one above 65280 becomes 65280."),
	masked("e4m7", "BF16 clipped to 4 exponent bits: gradients become 0", "A value below 2^-6 becomes 0, one above 255 becomes 255."),
}
