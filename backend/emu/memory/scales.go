package memory

import "octet/fp8"

// BlockScales are the scales (scale_inv) of a stored matrix, one for each block of
// Rows × Cols elements, row-major, in F32 or as codes of DType; 0 means all rows or
// columns. The zero value is one scale of 1.
type BlockScales struct {
	Rows, Cols int
	Across     int // blocks side by side
	F32        []float32
	DType      fp8.DType // E8M0, E4M3, …; F32 for F32
	Codes      []uint8
}

// Block returns the scale of block i.
func (s *BlockScales) Block(i int) float32 {
	switch {
	case s.F32 != nil:
		return s.F32[i]
	case s.Codes != nil:
		return s.DType.Table()[s.Codes[i]]
	}
	return 1
}

// Index returns the block of element (row, col).
func (s *BlockScales) Index(row, col int) (i int) {
	if s.Rows > 0 {
		i = row / s.Rows * s.Across
	}
	if s.Cols > 0 {
		i += col / s.Cols
	}
	return i
}

// Element returns the scale of element (row, col).
func (s *BlockScales) Element(row, col int) float32 { return s.Block(s.Index(row, col)) }
