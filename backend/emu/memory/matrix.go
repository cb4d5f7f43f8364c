// Package memory describes tensors in memory: matrices in any format, with their scales.
package memory

import (
	"unsafe"

	"octet/backend/emu/pool"
	"octet/backend/emu/simd"
	"octet/fp8"
)

// Matrix is a matrix in memory, row-major. Exactly one of F32, U16 and U8 is set, by the
// size of DType.
type Matrix struct {
	DType          fp8.DType
	F32            []float32 // F32
	U16            []uint16  // BF16, F16
	U8             []uint8   // formats of up to eight bits; of four, two elements share a byte
	Rows, Cols, LD int       // LD is the number of elements from one row to the next
	Scale          []float32 // per-tensor scale_inv, one element; nil is 1
}

// New returns a matrix of format d in raw, which must be aligned for its elements.
func New(d fp8.DType, rows, cols, ld int, raw []byte) Matrix {
	m := Matrix{DType: d, Rows: rows, Cols: cols, LD: ld}
	switch d.Size() {
	case 4:
		m.F32 = pool.View[float32](raw)
	case 2:
		m.U16 = pool.View[uint16](raw)
	default:
		m.U8 = raw
	}
	return m
}

// ScaleInv returns the per-tensor scale_inv, 1 if there is none.
func (m *Matrix) ScaleInv() float32 {
	if m.Scale == nil {
		return 1
	}
	return m.Scale[0]
}

// Sub returns m from row i and column j on. Where two elements share a byte, the first
// element must be the first of its byte, here and in the methods below.
func (m Matrix) Sub(i, j int) Matrix {
	at := i*m.LD + j
	switch {
	case m.F32 != nil:
		m.F32 = m.F32[at:]
	case m.U16 != nil:
		m.U16 = m.U16[at:]
	default:
		m.U8 = m.U8[m.DType.Bytes(at):]
	}
	m.Rows -= i
	m.Cols -= j
	return m
}

// Address returns the address of element (row, col).
func (m *Matrix) Address(row, col int) unsafe.Pointer {
	at := row*m.LD + col
	switch {
	case m.F32 != nil:
		return unsafe.Pointer(&m.F32[at])
	case m.U16 != nil:
		return unsafe.Pointer(&m.U16[at])
	}
	return unsafe.Pointer(&m.U8[m.DType.Bytes(at)])
}

// Prefetch prefetches n elements from (row, col) on.
func (m *Matrix) Prefetch(row, col, n int) {
	simd.PrefetchRows(m.Address(row, col), 0, 1, m.DType.Bytes(n))
}

// Load decodes len(dst) elements from (row, col) on and applies the scale.
func (m *Matrix) Load(dst []float32, row, col int) {
	at := row*m.LD + col
	switch m.DType {
	case fp8.F32:
		copy(dst, m.F32[at:at+len(dst)])
	case fp8.BF16:
		fp8.DecodeBF16(dst, m.U16[at:at+len(dst)])
	case fp8.F16:
		fp8.Dequantize16(dst, m.U16[at:at+len(dst)], m.ScaleInv())
		return
	default:
		if m.DType.Size() == 0 {
			fp8.Dequantize4(dst, m.U8[m.DType.Bytes(at):], m.DType, m.ScaleInv())
		} else {
			fp8.Dequantize8(dst, m.U8[at:at+len(dst)], m.DType, m.ScaleInv())
		}
		return
	}
	if m.Scale != nil {
		simd.Scale(dst, m.Scale[0])
	}
}

// Code returns the code, of up to eight bits, of element at of m's memory, which for (row, col)
// is row·LD + col.
func (m *Matrix) Code(at int) uint8 {
	if m.DType.Size() == 1 {
		return m.U8[at]
	}
	return m.U8[at/2] >> (at % 2 * 4) & 0xf
}

// Codes returns n codes of up to eight bits from (row, col) on, one in a byte: m's memory,
// or, of codes of four bits, a copy in buffer, which must have n bytes. The caller must not
// write to the result.
func (m *Matrix) Codes(buffer []uint8, row, col, n int) []uint8 {
	at := row*m.LD + col
	if m.DType.Size() == 1 {
		return m.U8[at : at+n]
	}
	fp8.Unpack4(buffer[:n], m.U8[at/2:])
	return buffer[:n]
}

// Piece returns n elements from (row, col) on as FP32: m's memory if it is unscaled
// FP32, else decoded into buffer, which must have n elements. The caller must not write
// to the result.
func (m *Matrix) Piece(buffer []float32, row, col, n int) []float32 {
	if m.DType == fp8.F32 && m.Scale == nil {
		at := row*m.LD + col
		return m.F32[at : at+n]
	}
	m.Load(buffer[:n], row, col)
	return buffer[:n]
}

// Row returns row i as FP32; see Piece.
func (m *Matrix) Row(buffer []float32, i int) []float32 {
	return m.Piece(buffer, i, 0, m.Cols)
}
