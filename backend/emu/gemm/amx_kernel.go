package gemm

import (
	"math"

	"octet/backend/emu/memory"
	"octet/fp8"
)

var amxGoKernel = amxKernel{
	name:     "amx in go",
	multiply: amxMultiplyGo,
	pack:     amxPackGo,
	scale:    amxScaleGo,
	finish:   func(acc []float32, t *tileOut) { finishRows(acc, amxOut, t) },
}

func amxPackGo(dst []uint16, step int, src memory.Matrix, along, right bool, count int) {
	for block := range count {
		tile := (*[amxTile]uint16)(dst[block*step:])
		for i := range amxWidth {
			for l := range amxDepth {
				at := l*src.LD + block*amxWidth + i
				if along {
					at = i*src.LD + block*amxDepth + l
				}
				to := tileIndex(i, l, right)
				if src.DType == fp8.BF16 {
					tile[to] = src.U16[at]
				} else {
					tile[to] = bf16TableOf(src.DType).bf16(src.U8[at])
				}
			}
		}
	}
}

func amxMultiplyGo(steps, blocks int, a, b AMXTiles, c amxSums, load, plain bool) {
	var x, y [amxTile]float32
	row, tile := a.steps()
	for p := range 2 {
		for q := range 2 * blocks {
			corner := c.x[q/2*c.blockStep+p*amxWidth*c.ld+q%2*amxWidth:]
			if !load {
				for i := range amxWidth {
					clear(corner[i*c.ld:][:amxWidth])
				}
			}
			for s := range steps {
				for i := range amxWidth {
					fp8.DecodeBF16(x[i*amxDepth:][:amxDepth], a.Elems[p*a.Panel+i*row+s*tile:][:amxDepth])
				}
				fp8.DecodeBF16(y[:], b.Elems[q*b.Panel+s*amxTile:][:amxTile])
				if plain {
					amxRunPlain(corner, c.ld, &x, &y)
				} else {
					amxRun(corner, c.ld, &x, &y)
				}
			}
		}
	}
}

// amxRun adds the matrix product of two tiles to 16×16 accumulators, whose rows are ld apart:
// one run of 32 of the definition in amx.go.
func amxRun(c []float32, ld int, a, b *[amxTile]float32) {
	for i := range b {
		a[i], b[i] = flush(a[i]), flush(b[i])
	}
	for i := range amxWidth {
		var sum [2 * amxWidth]float32 // even, odd of each column
		for l := range amxDepth {
			v := float64(a[i*amxDepth+l])
			row := b[l/2*2*amxWidth:][:2*amxWidth]
			for j := l % 2; j < len(sum); j += 2 {
				// The product is exact, and the float64 sum so precise that it rounds to
				// the same float32 as the exact sum.
				sum[j] = round(v*float64(row[j]) + float64(sum[j]))
			}
		}
		for j := range amxWidth {
			acc := &c[i*ld+j]
			*acc = flush(flush(*acc) + flush(sum[2*j]+sum[2*j+1]))
		}
	}
}

// amxRunPlain is amxRun for exact products without subnormals.
func amxRunPlain(c []float32, ld int, a, b *[amxTile]float32) {
	for i := range amxWidth {
		var sum [2 * amxWidth]float32
		for l := 0; l < amxDepth; l += 2 {
			even, odd := a[i*amxDepth+l], a[i*amxDepth+l+1]
			row := (*[2 * amxWidth]float32)(b[l*amxWidth:])
			for j := 0; j < len(sum); j += 2 {
				sum[j] += even * row[j]
				sum[j+1] += odd * row[j+1]
			}
		}
		for j := range amxWidth {
			c[i*ld+j] += sum[2*j] + sum[2*j+1]
		}
	}
}

// smallestNormal is the smallest normal FP32 value.
const smallestNormal = 0x1p-126

// flush flushes a subnormal to a zero of its sign. A subnormal sum of two FP32 numbers is
// exact, so that it can be flushed before or after rounding.
func flush(x float32) float32 {
	if x < smallestNormal && x > -smallestNormal {
		return float32(math.Copysign(0, float64(x)))
	}
	return x
}

// round rounds v to FP32 and flushes subnormals. Values that round to the smallest normal
// number in 24 bits are not flushed.
func round(v float64) float32 {
	const below = smallestNormal * (1 - 0x1p-25) // halfway to it from the next smaller 24-bit number
	if v < below && v > -below {
		return float32(math.Copysign(0, v))
	}
	return float32(v)
}
