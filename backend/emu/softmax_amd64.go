//go:build !noasm

package emu

// pow2Vectors are the constants of pow2 as wide as the narrower kernels want
// them.
//
//lint:ignore U1000 used in assembly
var pow2Vectors = func() (v [10][8]float32) {
	for i, c := range [10]float32{pow2Lowest, pow2Highest, expRound, pow2C1, pow2C2, pow2C3, pow2C4, pow2C5, pow2C6, 1} {
		for lane := range v[i] {
			v[i][lane] = c
		}
	}
	return v
}()

// firstLanes has a window of sixteen lanes of which the first n are set: it
// begins at 16−n.
//
//lint:ignore U1000 used in assembly
var firstLanes = func() (mask [32]int32) {
	for i := range 16 {
		mask[i] = -1
	}
	return mask
}()

// maxRows has the values of maxRowsGo; of zeros, either may be the largest.
func maxRows(s sheet, rows int, visible []int, top []float32) {
	switch {
	case haveAVX512:
		maxRowsAVX512(&s.x[0], s.ld, rows, &visible[0], &top[0])
	case haveAVX2:
		maxRowsAVX2(&s.x[0], s.ld, rows, &visible[0], &top[0])
	default:
		maxRowsGo(s, rows, visible, top)
	}
}

// weighRows has the bits of weighRowsGo.
func weighRows(s sheet, rows, width int, visible []int, scale float32, largest, total []float32) {
	switch {
	case haveAVX512:
		weighRowsAVX512(&s.x[0], s.ld, rows, width, &visible[0], scale, &largest[0], &total[0])
	case haveAVX2:
		weighRowsAVX2(&s.x[0], s.ld, rows, width, &visible[0], scale, &largest[0], &total[0])
	default:
		weighRowsGo(s, rows, width, visible, scale, largest, total)
	}
}

// gradientRows has the bits of gradientRowsGo.
func gradientRows(p, ds sheet, rows, width int, visible []int, scale2, scale float32, lse2, delta []float32) {
	switch {
	case haveAVX512:
		gradientRowsAVX512(&p.x[0], &ds.x[0], p.ld, rows, width, &visible[0], scale2, scale, &lse2[0], &delta[0])
	case haveAVX2:
		gradientRowsAVX2(&p.x[0], &ds.x[0], p.ld, rows, width, &visible[0], scale2, scale, &lse2[0], &delta[0])
	default:
		gradientRowsGo(p, ds, rows, width, visible, scale2, scale, lse2, delta)
	}
}

//go:noescape
func maxRowsAVX512(s *float32, ld, rows int, visible *int, top *float32)

//go:noescape
func weighRowsAVX512(s *float32, ld, rows, width int, visible *int, scale float32, largest, total *float32)

//go:noescape
func gradientRowsAVX512(p, ds *float32, ld, rows, width int, visible *int, scale2, scale float32, lse2, delta *float32)

//go:noescape
func maxRowsAVX2(s *float32, ld, rows int, visible *int, top *float32)

//go:noescape
func weighRowsAVX2(s *float32, ld, rows, width int, visible *int, scale float32, largest, total *float32)

//go:noescape
func gradientRowsAVX2(p, ds *float32, ld, rows, width int, visible *int, scale2, scale float32, lse2, delta *float32)
