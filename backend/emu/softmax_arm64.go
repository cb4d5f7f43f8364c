//go:build !noasm

package emu

// pow2Constants are the constants of pow2 in its order of use.
//
//lint:ignore U1000 used in assembly
var pow2Constants = [10]float32{
	pow2Lowest, pow2Highest, expRound, pow2C6, pow2C5, pow2C4, pow2C3, pow2C2, pow2C1, 1,
}

func maxRows(s sheet, rows int, visible []int, top []float32) {
	for r := range rows {
		top[r] = maximum(s.row(r, visible[r]))
	}
}

// weighRows lets the kernel weigh hidden scores too where they share sixteen
// lanes with visible ones, and does their part of the sum itself.
func weighRows(s sheet, rows, width int, visible []int, scale float32, largest, total []float32) {
	for r := range rows {
		row, n := s.row(r, width), visible[r]
		var lanes, mixed [16]float32
		whole := n &^ 15
		if whole > 0 {
			weighNEON(&lanes, &row[0], whole, scale, largest[r])
		}
		if whole < n {
			weighNEON(&mixed, &row[whole], 16, scale, largest[r])
			for i, weight := range row[whole:n] {
				lanes[i] += weight
			}
		}
		clear(row[n:])
		total[r] += foldLanes(&lanes)
	}
}

func gradientRows(p, ds sheet, rows, width int, visible []int, scale2, scale float32, lse2, delta []float32) {
	for r := range rows {
		p, ds, n := p.row(r, width), ds.row(r, width), visible[r]
		if n > 0 {
			gradientRowNEON(&p[0], &ds[0], roundUp(n, 4), scale2, scale, lse2[r], delta[r])
		}
		clear(p[n:])
		clear(ds[n:])
	}
}

// weighNEON turns n scores of a row, a multiple of 16, into weights, and sets
// the lanes to their sums.
//
//go:noescape
func weighNEON(lanes *[16]float32, row *float32, n int, scale, largest float32)

// gradientRowNEON takes a multiple of 4 elements.
//
//go:noescape
func gradientRowNEON(p, ds *float32, n int, scale2, scale, lse2, delta float32)
