//go:build arm64 && !noasm

package simd

// Every arm64 processor has Advanced SIMD.
const haveVectors = true

// Pause runs n ISB instructions, about ten nanoseconds each: they drain the pipeline,
// whereas YIELD does nothing on a core with one thread. (Go's runtime spins with ISB
// too.)
func Pause(n int)

func maxRowsVectors(top, scores []float32, ld int, visible []int) {
	for r, n := range visible {
		top[r] = Max(scores[r*ld:][:n])
	}
}

// weighRowsVectors passes the kernel whole groups of sixteen scores. For the last group,
// which may have hidden scores, it sums the visible weights itself.
func weighRowsVectors(scores []float32, ld, width int, visible []int, scale float32, largest, total []float32) {
	for r, n := range visible {
		row := scores[r*ld:][:width]
		var lanes, mixed [16]float32
		whole := n &^ 15
		if whole > 0 {
			weighRow(&lanes, &row[0], whole, scale, largest[r])
		}
		if whole < n {
			weighRow(&mixed, &row[whole], 16, scale, largest[r])
			for i, weight := range row[whole:n] {
				lanes[i] += weight
			}
		}
		clear(row[n:])
		total[r] += fold(lanes[:])
	}
}

// weighRow replaces scores by weights and sets lanes to their sums.
//
//go:noescape
func weighRow(lanes *[16]float32, row *float32, n int, scale, largest float32)

func scoreGradientRowsVectors(p, ds []float32, ld, width int, visible []int, scale2, scale float32, lse2, delta []float32) {
	for r, n := range visible {
		p, ds := p[r*ld:][:width], ds[r*ld:][:width]
		if n > 0 {
			scoreGradientRow(&p[0], &ds[0], (n+3)&^3, scale2, scale, lse2[r], delta[r])
		}
		clear(p[n:])
		clear(ds[n:])
	}
}

// scoreGradientRow computes ScoreGradientRows for one row; n is a multiple of 4.
//
//go:noescape
func scoreGradientRow(p, ds *float32, n int, scale2, scale, lse2, delta float32)

// The transposes take multiples of sixteen rows and columns.

//go:noescape
func transpose8Vectors(dst *uint8, ld int, src *uint8, step, rows, cols int, stream bool)

//go:noescape
func transpose16Vectors(dst *uint16, ld int, src *uint16, step, rows, cols int)
