package ptq

import (
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"octet/fp8"
)

// Matrix is a quantized weight. Element [r, c] is the value of Codes[r·Cols+c] times
// ScaleInv[r·groups+c/Group], where groups is Cols/Group, rounded up.
type Matrix struct {
	Rows, Cols, Group int
	// DType is the format of the codes: E4M3, INT8, or Invalid for integers as two's
	// complement, which unlike INT8 have the lowest code, too.
	DType    fp8.DType
	Codes    []uint8
	ScaleInv []float32
}

func newMatrix(rows, cols, group int, d fp8.DType) Matrix {
	return Matrix{rows, cols, group, d, make([]uint8, rows*cols), make([]float32, rows*ceilDiv(cols, group))}
}

// Values dequantizes the matrix.
func (m Matrix) Values() []float32 {
	x := make([]float32, len(m.Codes))
	if m.DType != fp8.Invalid {
		m.DType.Decode(x, m.Codes)
	} else {
		for i, c := range m.Codes {
			x[i] = float32(int8(c))
		}
	}
	groups := ceilDiv(m.Cols, m.Group)
	for i := range x {
		x[i] *= m.ScaleInv[i/m.Cols*groups+i%m.Cols/m.Group]
	}
	return x
}

// nearest rounds a weight [rows, cols] to nearest even.
func (s Scheme) nearest(w []float32, rows, cols int) Matrix {
	if s.Bits == 0 {
		return perRow(w, rows, cols, s.Input)
	}
	m := newMatrix(rows, cols, s.Group, fp8.Invalid)
	parallel(rows, func(r int) {
		row := make([]float64, cols)
		for c := range row {
			row[c] = float64(w[r*cols+c])
		}
		for c := range row {
			scale := m.groupScale(r, c, row, s.Bits)
			m.Codes[r*cols+c] = uint8(integer(row[c], scale, s.Bits))
		}
	})
	return m
}

// perRow casts a weight as a recipe's row of granularity "row" and scale "fp32" does on
// a device.
func perRow(w []float32, rows, cols int, d fp8.DType) Matrix {
	m := newMatrix(rows, cols, cols, d)
	choice := fp8.BlockScale{Elements: d, Stored: fp8.F32, Rule: fp8.Exact, Limit: d.Max()}
	for r := range rows {
		row := w[r*cols : (r+1)*cols]
		inverse, scale := choice.Choose(fp8.Amax(row))
		fp8.Quantize8(m.Codes[r*cols:(r+1)*cols], row, d, scale, false)
		m.ScaleInv[r] = math.Float32frombits(inverse)
	}
	return m
}

// groupScale returns the scale_inv of the group of element [r, c]. At the first element of a
// group it chooses the scale from the group's values in row.
func (m Matrix) groupScale(r, c int, row []float64, bits int) float64 {
	at := &m.ScaleInv[r*ceilDiv(m.Cols, m.Group)+c/m.Group]
	if c%m.Group == 0 {
		*at = groupScale(row[c:min(c+m.Group, m.Cols)], bits)
	}
	return float64(*at)
}

// groupScale returns max|x| over half the number of steps between the lowest and the
// highest code, 7.5 for 4 bits, rounded to BF16, the format of the scales in files; 1 for a
// group of zeros.
func groupScale(x []float64, bits int) float32 {
	most := 0.0
	for _, v := range x {
		most = max(most, math.Abs(v))
	}
	var code [1]uint16
	var scale [1]float32
	fp8.EncodeBF16(code[:], []float32{float32(most / (float64(int(1)<<bits-1) / 2))})
	if fp8.DecodeBF16(scale[:], code[:]); scale[0] == 0 {
		return 1
	}
	return scale[0]
}

// integer returns the code of x, rounded to nearest even and clamped to the range of bits.
func integer(x, scale float64, bits int) int8 {
	half := float64(int(1) << (bits - 1))
	return int8(min(max(math.RoundToEven(x/scale), -half), half-1))
}

// parallel calls do for 0 to n-1, on several threads.
func parallel(n int, do func(i int)) {
	var next atomic.Int64
	var group sync.WaitGroup
	for range min(n, runtime.GOMAXPROCS(0)) {
		group.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				do(int(i))
			}
		})
	}
	group.Wait()
}
