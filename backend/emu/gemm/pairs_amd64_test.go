//go:build !noasm

package gemm

func init() {
	if hasBF16Pairs() {
		testedPairs[&AVX512] = &bf16Pairs
	}
}
