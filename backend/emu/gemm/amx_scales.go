package gemm

import "math"

// This file multiplies packed tiles by block scales, where they multiply elements (scaled.go).

// tileScales are the scales of a tile's 16 rows, or columns: of the first half of k, then of
// the second.
type tileScales [2][amxWidth]float32

// scale multiplies the elements of a tile by their block scales. The first is at row or column
// at of the operand and at l of k; n × depth of them are elements of the operand.
func (x *amxGEMM) scale(tile []uint16, stage *amxStage, along, right bool, at, l, n, depth int) {
	s := &x.scaled.a
	if right {
		s = &x.scaled.b
	}
	const half = amxDepth / 2
	run := alongK(*s, !along)
	if run%half != 0 || depth%half != 0 {
		for i := range n {
			for q := range depth {
				e := &tile[tileIndex(i, q, right)]
				*e = scaledBF16(*e, s.Block(scaleIndex(s, at+i, l+q, !along)))
			}
		}
		return
	}
	scales := &stage.scales
	*scales = tileScales{}
	expandScales(scales[0][:n], s, at, l, !along)
	if scales[1] = scales[0]; run%amxDepth != 0 && depth > half {
		expandScales(scales[1][:n], s, at, l+half, !along)
	}
	x.kernel.scale((*[amxTile]uint16)(tile), scales, right)
}

func amxScaleGo(tile *[amxTile]uint16, scales *tileScales, right bool) {
	for i := range amxWidth {
		for l := range amxDepth {
			e := &tile[tileIndex(i, l, right)]
			*e = scaledBF16(*e, scales[2*l/amxDepth][i])
		}
	}
}

// tileIndex returns the index of an element in a tile: that of row i and column l of the left
// operand, or of row l and column i of the right one.
func tileIndex(i, l int, right bool) int {
	if right {
		return l/2*amxDepth + 2*i + l%2
	}
	return i*amxDepth + l
}

// scaledBF16 returns a BF16 value times a scale. The product is BF16, or subnormal, which the
// multiplication flushes.
func scaledBF16(e uint16, scale float32) uint16 {
	return uint16(math.Float32bits(math.Float32frombits(uint32(e)<<16)*scale) >> 16)
}
