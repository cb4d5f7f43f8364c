//go:build !noasm

package emu

func init() {
	if hasBF16Pairs() {
		testedPairs[&avx512Kernel] = &bf16Pairs
	}
}
