//go:build !noasm

package emu

func init() {
	if haveExpAVX2 { // which the wider one hides
		expTwins["avx2"] = expSumAVX2
	}
}
