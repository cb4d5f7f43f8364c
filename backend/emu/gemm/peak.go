package gemm

// Peak is the work of a micro-kernel on packed operands in the first-level cache: the rate that a
// GEMM approaches.
type Peak struct {
	Words int // of memory that Run needs
	FLOPs int // of one Run
	Run   func(words []float32)
}

// peakDepth is k: operands fit the first-level cache, and the time to load and store
// accumulators is small.
const peakDepth = 128

// NewPeak returns the peak of the fastest kernel for FP32 operands or, with pairs, for FP8
// operands where it is faster.
func NewPeak(pairs bool) Peak {
	k := Kernels()[0]
	multiply, each := k.Multiply, 1 // multiplications per word
	if pairs && k.Pairs != nil {
		multiply, each = k.Pairs.Multiply, 2
	}
	a, b, c := peakDepth*k.MR, peakDepth*k.NR, k.MR*k.NR
	return Peak{
		Words: a + b + c, FLOPs: 2 * each * c * peakDepth,
		Run: func(x []float32) {
			multiply(peakDepth, k.MR, x[:a], peakDepth, 1, x[a:a+b], x[a+b:], false)
		},
	}
}

// amxPeakSteps is the tiles of a panel: two panels of each operand and the accumulators are 36 KB.
const amxPeakSteps = 8

// NewAMXPeak is NewPeak for AMX's arithmetic.
func NewAMXPeak() Peak {
	k := amxKernels()[0]
	const operand = 2 * amxPeakSteps * amxTile / 2 // words
	return Peak{
		Words: 2*operand + amxAcc, FLOPs: 2 * amxAcc * amxPeakSteps * amxDepth,
		Run: func(x []float32) {
			const panel = amxPeakSteps * amxTile
			a, b := AMXTiles{Elems: view[uint16](x[:operand]), Panel: panel}, AMXTiles{Elems: view[uint16](x[operand : 2*operand]), Panel: panel}
			k.multiply(amxPeakSteps, 1, a, b, amxSums{x[2*operand:], amxOut, amxAcc}, false, true)
		},
	}
}
