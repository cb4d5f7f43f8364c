//go:build !noasm

package emu

import "golang.org/x/sys/cpu"

var haveAdamCodes = cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512VL

// In the first three n is a positive multiple of 32. No code is that of a NaN.

// adamAmaxAVX512 sets lanes to bits whose maxima are the largest magnitudes of the
// new master and moments. largest is the largest code among the old first moments,
// without its sign: if that is no number, the rest is void.
//
//go:noescape
func adamAmaxAVX512(c *adamCodes, p *uint16, m, v *uint8, grad *float32, n int, lanes *[3][16]uint32) (largest uint8)

// adamNearestAVX512 replaces the codes by those of the new values.
//
//go:noescape
func adamNearestAVX512(c *adamCodes, p *uint16, m, v *uint8, grad *float32, n int)

// adamRandomAVX512 does, too, and rounds at random. number is that of the first
// word of random bits.
//
//go:noescape
func adamRandomAVX512(c *adamCodes, p *uint16, m, v *uint8, grad *float32, n int, number uint32)

// adamExtentsAVX512 sets the extents of blocks of codes, those of the moments as if
// they were bits of F16: E4M3's are 2^-8 of its values.
//
//go:noescape
func adamExtentsAVX512(p *uint16, m, v *uint8, blocks int, pMost, mMost, vMost, vLeast *float32)
