//go:build !noasm

package emu

import "golang.org/x/sys/cpu"

var haveAdamCodes = cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512VL

// In the first three functions n is a positive multiple of 32, and no code may be NaN.

// adamAmaxAVX512 sets lanes to bits whose maxima are the largest magnitudes of the
// new master and moments. largest is the largest code of the old first moments, without
// sign: if it is not finite, lanes are invalid.
//
//go:noescape
func adamAmaxAVX512(c *adamCodes, p *uint16, m, v *uint8, grad *float32, n int, lanes *[3][16]uint32) (largest uint8)

// adamNearestAVX512 replaces the codes by those of the new values, rounded to nearest.
//
//go:noescape
func adamNearestAVX512(c *adamCodes, p *uint16, m, v *uint8, grad *float32, n int)

// adamStochasticAVX512 does the same with stochastic rounding. word is the index of the
// first word of random bits.
//
//go:noescape
func adamStochasticAVX512(c *adamCodes, p *uint16, m, v *uint8, grad *float32, n int, word uint32)

// adamExtentsAVX512 sets the extents of blocks of codes. It reads codes of the moments
// as the upper bits of F16: the extents of E4M3 are 2^-8 of its values.
//
//go:noescape
func adamExtentsAVX512(p *uint16, m, v *uint8, blocks int, pMax, mMax, vMax, vMin *float32)
