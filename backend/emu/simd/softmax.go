package simd

import (
	"math"
	"unsafe"
)

// The softmax of rows of scores, one or more rows at a time. Row r begins ld·r elements
// into its slice; its first visible[r] scores count. Kernels read visible[r] rounded up
// to a multiple of 16, so a row must have memory for that.
//
// The exponentials have base two: the scale that multiplies the scores anyway includes
// log2 e, so that the exponential needs no range reduction by ln 2, and its shorter
// chain of operations takes half the time. It is a fifth of the work.

const (
	// Below exp2Lowest the result is 0, above exp2Highest +Inf.
	exp2Lowest, exp2Highest = -151, 129
	// Up to this magnitude of x, the result is a normal number.
	exp2Normal = 125

	// The polynomial 1 + c1·f + … + c6·f^6 is 2^f within 2e-9 for |f| ≤ 1/2, by
	// the method of Remez with the first coefficient held at 1.
	exp2C1 = 0.6931471824645996
	exp2C2 = 0.24022647738456726
	exp2C3 = 0.055503323674201965
	exp2C4 = 0.00961843691766262
	exp2C5 = 0.0013398873852565885
	exp2C6 = 0.00015353361959569156
)

// exp2Constants are the constants of Exp2, in the order in which the assembly reads them.
//
//lint:ignore U1000 used in assembly
var exp2Constants = [11]float32{
	exp2Lowest, exp2Highest, exp2Normal, expRound, exp2C6, exp2C5, 1, exp2C1, exp2C2, exp2C3, exp2C4,
}

// Exp2 returns 2^x within 1.5 ulp, subnormal results within one unit; it is exact for
// integers. NaN stays NaN.
func Exp2(x float32) float32 {
	if x < exp2Lowest {
		x = exp2Lowest
	}
	if x > exp2Highest {
		x = exp2Highest
	}
	shifted := x + expRound
	nf := shifted - expRound
	f := x - nf
	square := float32(f * f)
	p := float32(exp2C6*f) + exp2C5
	p = float32(p*square) + (float32(exp2C4*f) + exp2C3)
	p = float32(p*square) + (float32(exp2C2*f) + exp2C1)
	p = float32(p*f) + 1

	n := int32(math.Float32bits(shifted)) - int32(0x4b400000)
	half := n >> 1
	return p * powerOfTwo(half) * powerOfTwo(n-half)
}

// MaxRows sets top[r] to the Max of row r's visible scores.
func MaxRows(top, scores []float32, ld int, visible []int) {
	if haveVectors {
		maxRowsVectors(top[:len(visible)], scores, ld, visible)
	} else {
		maxRowsGo(top, scores, ld, visible)
	}
}

func maxRowsGo(top, scores []float32, ld int, visible []int) {
	for r, n := range visible {
		top[r] = maxGo(scores[r*ld:][:n])
	}
}

// WeighRows replaces visible scores by weights 2^(score·scale − largest[r]), and the
// remaining ones up to width, a multiple of 16, by 0. It adds the sum of row r's weights,
// in 16 lanes, to total[r].
func WeighRows(scores []float32, ld, width int, visible []int, scale float32, largest, total []float32) {
	rows := len(visible)
	if haveVectors {
		_ = scores[(rows-1)*ld+width-1]
		weighRowsVectors(scores, ld, width, visible, scale, largest[:rows], total[:rows])
	} else {
		weighRowsGo(scores, ld, width, visible, scale, largest, total)
	}
}

func weighRowsGo(scores []float32, ld, width int, visible []int, scale float32, largest, total []float32) {
	for r, n := range visible {
		row := scores[r*ld:][:width]
		var lanes [16]float32
		for i, x := range row[:n] {
			row[i] = Exp2(float32(x*scale) - largest[r])
			lanes[i%16] += row[i]
		}
		clear(row[n:])
		total[r] += fold(lanes[:])
	}
}

// ScoreGradientRows replaces visible scores by probabilities,
// p = 2^(p·scale2 − lse2[r]), and the gradient of these by that of the scores,
// ds = p·(ds − delta[r])·scale. It sets the rest of a row up to width, a multiple of 16,
// to 0. Rows of both are ld apart.
func ScoreGradientRows(p, ds []float32, ld, width int, visible []int, scale2, scale float32, lse2, delta []float32) {
	rows := len(visible)
	if haveVectors {
		last := (rows-1)*ld + width - 1
		_, _ = p[last], ds[last]
		scoreGradientRowsVectors(p, ds, ld, width, visible, scale2, scale, lse2[:rows], delta[:rows])
	} else {
		scoreGradientRowsGo(p, ds, ld, width, visible, scale2, scale, lse2, delta)
	}
}

func scoreGradientRowsGo(p, ds []float32, ld, width int, visible []int, scale2, scale float32, lse2, delta []float32) {
	for r, n := range visible {
		p, ds := p[r*ld:][:width], ds[r*ld:][:width]
		for i := range p[:n] {
			p[i] = Exp2(float32(p[i]*scale2) - lse2[r])
			ds[i] = p[i] * (ds[i] - delta[r]) * scale
		}
		clear(p[n:])
		clear(ds[n:])
	}
}

// WeighRowsBF16 is WeighRows, but rounds the weights to BF16, to nearest even, after they are
// summed. A row's BF16 codes follow one another from its beginning on; the rest of its first
// width elements is undefined.
func WeighRowsBF16(scores []float32, ld, width int, visible []int, scale float32, largest, total []float32) {
	rows := len(visible)
	_ = scores[(rows-1)*ld+width-1]
	if weighRowsBF16Vectors(scores, ld, width, visible, scale, largest[:rows], total[:rows]) {
		return
	}
	WeighRows(scores, ld, width, visible, scale, largest, total)
	roundRowsBF16(scores, ld, width, rows)
}

// ScoreGradientRowsBF16 is ScoreGradientRows, but rounds both results to BF16 as WeighRowsBF16
// does; ds is computed from unrounded probabilities.
func ScoreGradientRowsBF16(p, ds []float32, ld, width int, visible []int, scale2, scale float32, lse2, delta []float32) {
	rows := len(visible)
	last := (rows-1)*ld + width - 1
	_, _ = p[last], ds[last]
	if scoreGradientRowsBF16Vectors(p, ds, ld, width, visible, scale2, scale, lse2[:rows], delta[:rows]) {
		return
	}
	ScoreGradientRows(p, ds, ld, width, visible, scale2, scale, lse2, delta)
	roundRowsBF16(p, ld, width, rows)
	roundRowsBF16(ds, ld, width, rows)
}

// roundRowsBF16 rounds rows of width elements in place. A quiet NaN stays NaN.
func roundRowsBF16(x []float32, ld, width, rows int) {
	for r := range rows {
		row := x[r*ld:][:width]
		codes := unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(row))), width)
		for i, v := range row {
			bits := math.Float32bits(v)
			if v == v {
				bits += bits>>16&1 + 0x7fff
			}
			codes[i] = uint16(bits >> 16)
		}
	}
}
