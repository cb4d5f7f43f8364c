package emu

import "math"

// The softmax of rows of scores, some rows at a time. Row r sees the first
// visible[r] of its scores. Widths are multiples of sixteen, and rows at least
// one. The functions named …Go are the specification of the kernels for
// vectors.
//
// Powers are of two, not of e: with log2 e in the factor that the scores are
// multiplied with anyway, the exponential needs no reduction, and its shorter
// chain of operations takes half the time. It is a fifth of the work.

const (
	// Beyond these the result is 0 and +Inf whatever the argument.
	pow2Lowest, pow2Highest = -151, 129

	// The polynomial 1 + c1·f + … + c6·f^6 is 2^f within 2e-9 for |f| ≤ 1/2, by
	// the method of Remez with the first coefficient held at 1.
	pow2C1 = 0.6931471824645996
	pow2C2 = 0.24022647738456726
	pow2C3 = 0.055503323674201965
	pow2C4 = 0.00961843691766262
	pow2C5 = 0.0013398873852565885
	pow2C6 = 0.00015353361959569156
)

// pow2 is 2^x within 1.5 ulp, subnormal results within one unit, and exact for
// integers; NaN stays NaN.
func pow2(x float32) float32 {
	if x < pow2Lowest {
		x = pow2Lowest
	}
	if x > pow2Highest {
		x = pow2Highest
	}
	shifted := x + expRound
	nf := shifted - expRound
	f := x - nf
	square := float32(f * f)
	p := float32(pow2C6*f) + pow2C5
	p = float32(p*square) + (float32(pow2C4*f) + pow2C3)
	p = float32(p*square) + (float32(pow2C2*f) + pow2C1)
	p = float32(p*f) + 1

	n := int32(math.Float32bits(shifted)) - int32(0x4b400000)
	half := n >> 1
	return p * powerOfTwo(half) * powerOfTwo(n-half)
}

// maxRowsGo finds the largest score of each row that is visible; NaN is passed
// over, and -Inf is the largest of none.
func maxRowsGo(s sheet, rows int, visible []int, top []float32) {
	for r := range rows {
		top[r] = maximumGo(s.row(r, visible[r]))
	}
}

// weighRowsGo replaces visible scores by weights 2^(score·scale − largest[r]),
// and the others up to width by 0, and adds the weights of row r to total[r].
// Element i of the sum goes to lane i mod 16, and the lanes are added up as in
// expSum.
func weighRowsGo(s sheet, rows, width int, visible []int, scale float32, largest, total []float32) {
	for r := range rows {
		row := s.row(r, width)
		var lanes [16]float32
		for i, x := range row[:visible[r]] {
			row[i] = pow2(float32(x*scale) - largest[r])
			lanes[i%16] += row[i]
		}
		clear(row[visible[r]:])
		total[r] += foldLanes(&lanes)
	}
}

// gradientRowsGo turns visible scores into probabilities
// p = 2^(p·scale2 − lse2[r]) and the gradient of these into that of the scores,
// ds = p·(ds − delta[r])·scale. Both are 0 from there to width. p.ld is ds.ld.
func gradientRowsGo(p, ds sheet, rows, width int, visible []int, scale2, scale float32, lse2, delta []float32) {
	for r := range rows {
		p, ds := p.row(r, width), ds.row(r, width)
		for i := range p[:visible[r]] {
			p[i] = pow2(float32(p[i]*scale2) - lse2[r])
			ds[i] = p[i] * (ds[i] - delta[r]) * scale
		}
		clear(p[visible[r]:])
		clear(ds[visible[r]:])
	}
}
