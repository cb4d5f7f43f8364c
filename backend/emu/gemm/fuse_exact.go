package gemm

import (
	"fmt"
	"math"

	"octet/backend/arith"
	"octet/fp8"
)

// This file computes fused sums whose terms are exact sums of products times two block
// scales (arith.Sum.Exact). The FP32 kernels compute the exact sums: their products are small
// integers times one power of two. Only the terms, one for 16 products, are aligned and
// truncated, in plain Go: float64 holds a scaled term exactly, and its conversion to int64
// truncates.

// exactTerms is the maximum number of terms of a fused sum, without the addend.
const exactTerms = 4

// checkExact returns an error if FP32 kernels do not compute the exact sums of s.
func checkExact(s *arith.Sum, a, b fp8.DType) error {
	sum := float64(s.Exact) * float64(a.Max()) * float64(b.Max()) / float64(unit(a)) / float64(unit(b))
	if sum > 1<<24 || s.Group > exactTerms*s.Exact {
		return fmt.Errorf("gemm: fused sums of %d products of %s and %s: FP32 kernels sum up to %d terms, each an exact sum of products of at most 24 bits",
			s.Group, a, b, exactTerms)
	}
	return nil
}

// exactTile has what the elements of a tile share in one fused sum: block scales in float64
// and the exponents with which they are aligned, and the exact sums. Scales beyond K are 0.
type exactTile struct {
	scaleA [exactTerms][fuseRows]float64
	powerA [exactTerms][fuseRows]int32
	scaleB [exactTerms][maxNR]float64
	powerB [exactTerms][maxNR]int32
	sums   [exactTerms][]float32 // row i and column j at i·nr + j

	bits int32  // arith.Sum.Bits
	drop uint64 // mask of the bits of a float64 that a result does not keep
}

func newExactTile(s *arith.Sum, size int) *exactTile {
	t := &exactTile{bits: int32(s.Bits), drop: 1<<(52-s.Kept) - 1}
	for i := range t.sums {
		t.sums[i] = make([]float32, size)
	}
	return t
}

// noPower is the exponent of a scale of 0: its sum with that of any other scale, NaN
// excepted, is below the minimum exponent of an addend.
const noPower = -512

// maxExactPower is the maximum exponent of terms and addends that align computes: no
// sum overflows. Those of NaN and infinity are larger.
const maxExactPower = 100

// alignedPower returns the exponent with which a scale is aligned: 1024 for NaN. The minimum
// exponent of E4M3's subnormal scales is omitted, because it changes no sum: terms of E2M1 are
// multiples of 2^-20, and these scales align with at most 2^(8-6-35).
func alignedPower(scale float64) int32 {
	if scale == 0 {
		return noPower
	}
	return int32(math.Float64bits(scale)>>52&0x7ff) - 1023
}

// multiplyExact is multiply for sums with Exact.
func (f *fused) multiplyExact(w *fusedWorker, depth, rows int, a []float32, step, stepK int, b, c []float32) {
	t, x, nr := &w.tile, w.exact, f.base.NR
	for l := 0; l < depth; l += t.group {
		end := min(depth, l+t.group)
		for term := range exactTerms {
			from := l + term*f.sum.Exact
			x.setTerm(t, term, from, from < end, rows, nr)
			if from >= end {
				continue
			}
			n := min(f.sum.Exact, end-from)
			for i := 0; i < rows; i += f.base.tall {
				f.base.Multiply(n, min(f.base.tall, rows-i), a[i*step+from*stepK:], step, stepK, b[from*nr:], x.sums[term][i*nr:], false)
			}
		}
		for i := range rows {
			row := c[i*nr:][:nr]
			for j := x.align(row, i, 0); j < nr; j = x.align(row, i, j+1) {
				row[j] = f.fuseExact(t, end-l, a[i*step+l*stepK:], stepK, b[l*nr+j:], i, j, l, row[j])
			}
		}
	}
}

// setTerm sets the scales of a term whose products begin at element l of the tile.
func (x *exactTile) setTerm(t *fuseTile, term, l int, used bool, rows, nr int) {
	for i := range rows {
		x.scaleA[term][i], x.powerA[term][i] = 0, noPower
		if used {
			s := float64(*at(t.scaleA, l/t.run*t.nextA+4*i))
			x.scaleA[term][i], x.powerA[term][i] = s, alignedPower(s)
		}
	}
	for j := range nr {
		x.scaleB[term][j], x.powerB[term][j] = 0, noPower
		if used {
			s := float64(*at(t.scaleB, l/t.run*t.nextB+4*j))
			x.scaleB[term][j], x.powerB[term][j] = s, alignedPower(s)
		}
	}
}

// align adds the terms of the tile's row i to its elements, from column j on. It stops at an
// element that only the definition computes, and returns its column, or len(row).
func (x *exactTile) align(row []float32, i, j int) int {
	n := len(row)
	sum0, sum1, sum2, sum3 := x.sums[0][i*n:][:n], x.sums[1][i*n:][:n], x.sums[2][i*n:][:n], x.sums[3][i*n:][:n]
	b0, b1, b2, b3 := x.scaleB[0][:n], x.scaleB[1][:n], x.scaleB[2][:n], x.scaleB[3][:n]
	p0, p1, p2, p3 := x.powerB[0][:n], x.powerB[1][:n], x.powerB[2][:n], x.powerB[3][:n]
	a0, a1, a2, a3 := x.scaleA[0][i], x.scaleA[1][i], x.scaleA[2][i], x.scaleA[3][i]
	q0, q1, q2, q3 := x.powerA[0][i], x.powerA[1][i], x.powerA[2][i], x.powerA[3][i]
	bits, drop := x.bits, x.drop
	for ; j < n; j++ {
		c := row[j]
		power := max(int32(math.Float32bits(c)>>23&0xff)-127, -126, q0+p0[j], q1+p1[j], q2+p2[j], q3+p3[j])
		if power > maxExactPower {
			return j
		}
		scale := math.Float64frombits(uint64(1023+bits-power) << 52) // its inverse is a unit
		total := int64(float64(c)*scale) +
			int64(float64(sum0[j])*a0*b0[j]*scale) + int64(float64(sum1[j])*a1*b1[j]*scale) +
			int64(float64(sum2[j])*a2*b2[j]*scale) + int64(float64(sum3[j])*a3*b3[j]*scale)
		sum := float64(total) * math.Float64frombits(uint64(1023-bits+power)<<52)
		if sum < smallestNormal && sum > -smallestNormal && total != 0 {
			return j // more bits of a subnormal are dropped
		}
		row[j] = float32(math.Float64frombits(math.Float64bits(sum) &^ drop))
	}
	return n
}

// fuseExact returns the definition of a fused sum of n products, from element l on of the
// tile's row i and column j, with the addend c.
func (f *fused) fuseExact(t *fuseTile, n int, a []float32, stepK int, b []float32, i, j, l int, c float32) float32 {
	var x, y [maxGroup]float32
	var scaleA, scaleB [exactTerms]float32
	for r := range n {
		x[r], y[r] = a[r*stepK], b[r*f.base.NR]
	}
	for r := 0; r < n; r += f.sum.Exact {
		run := (l + r) / t.run
		scaleA[r/f.sum.Exact], scaleB[r/f.sum.Exact] = *at(t.scaleA, run*t.nextA+4*i), *at(t.scaleB, run*t.nextB+4*j)
	}
	return f.sum.FuseExact(x[:n], y[:n], scaleA[:], scaleB[:], t.minScale, c)
}
