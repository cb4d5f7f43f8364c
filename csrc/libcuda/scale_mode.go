package libcuda

// ScaleMode says which elements of an FP8 or FP4 operand share a scale, and how cuBLASLt
// reads the scales (cublasLtMatmulMatrixScale_t, whose numbers these are). In the operand as
// stored, rows are indexed by i and run along K; scale j of a row is that of its block j
// along K.
type ScaleMode int

const (
	// PerTensor is one F32 scale.
	PerTensor ScaleMode = iota
	// Vec16E4M3 has an E4M3 scale for 16 elements along K, in tiles of 128 rows and 4 blocks,
	// one row of tiles after the other, padded with zeros. Scale (i, j) of a tile is its byte
	// i%32·16 + i/32·4 + j (cuBLAS documentation, 1D block scaling factors layout).
	Vec16E4M3
	// Vec32E8M0 has an E8M0 scale for 32 elements along K, in the same tiles.
	Vec32E8M0
	// PerRow has an F32 scale for each row: element i.
	PerRow
	// Vec128 has an F32 scale for 128 elements along K: element i + j·rows.
	Vec128
	// Block128 has an F32 scale for 128 rows and 128 elements along K: element
	// j + i/128·stride, where stride is the number of blocks along K, rounded up to a
	// multiple of 4.
	Block128
)

// Elements returns the number of elements along K that share a scale; 0 for all.
func (m ScaleMode) Elements() int { return [...]int{0, 16, 32, 0, 128, 128}[m] }

// Scales returns the number of scales that cuBLASLt reads for an operand of this many rows
// and elements along K, with padding.
func (m ScaleMode) Scales(rows, k int) int {
	switch m {
	case PerRow:
		return rows
	case Vec128:
		return rows * ceilDiv(k, 128)
	case Block128:
		return ceilDiv(rows, 128) * padded(ceilDiv(k, 128), 4)
	case Vec16E4M3, Vec32E8M0:
		return padded(rows, 128) * padded(ceilDiv(k, m.Elements()), 4)
	}
	return 1
}

// Bytes returns the size of a scale.
func (m ScaleMode) Bytes() int {
	if m == Vec16E4M3 || m == Vec32E8M0 {
		return 1
	}
	return 4
}

func ceilDiv(n, size int) int { return (n + size - 1) / size }

func padded(n, size int) int { return ceilDiv(n, size) * size }
