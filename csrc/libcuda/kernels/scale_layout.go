package kernels

import "math"

// StoredScales are the block scales of a GEMM operand.
type StoredScales struct {
	Address uint64 // as stored
	Mode    int    // libcuda.ScaleMode
	// The operand has Rows along the GEMM's K, and Blocks scales in a row. Height rows share
	// a scale.
	Rows, Blocks, Height int

	Count int // scales that cuBLASLt reads, with padding; 0: it reads them as stored
	Bytes int // of a scale

	Outer uint64 // address of the tensor's outer scale_inv; 0: none
}

// ScaleLayout returns the launch that writes the scales of A and B to scratch memory, in
// cuBLASLt's layout, its arguments without the scratch address, and the places of both in
// that memory. If an operand has an Outer, the third place gets alpha, the product of both,
// and beta; else it is 0.
func ScaleLayout(a, b StoredScales, beta float32, scratch uint64) (l Launches, args []uint64, at [3]uint64) {
	const unit = 256 // cuBLASLt needs 16
	count := 1
	for i, s := range []StoredScales{a, b} {
		at[i] = scratch + uint64(l.Scratch)
		l.Scratch += int64(ceilDiv(s.Count*s.Bytes, unit) * unit)
		args = append(args, s.Address, at[i], uint64(s.Mode), uint64(s.Rows), uint64(s.Blocks), uint64(s.Height), uint64(s.Count))
		count += s.Count
	}
	if a.Outer != 0 || b.Outer != 0 {
		at[2] = scratch + uint64(l.Scratch)
		l.Scratch += unit
	}
	args = append(args, a.Outer, b.Outer, math.Float64bits(float64(beta)), at[2])
	l.Kernels = []Kernel{flat("scale_layout", "scale_layout.cu", ceilDiv(count, flatThreads))}
	return l, args, at
}
