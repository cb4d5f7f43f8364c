package ref

import (
	"math"

	"octet/backend"
	"octet/fp8"
)

// expanded returns the value of a code of an expanded tensor, whose block has s, k and c.
func expanded(code float64, block []float64) float64 {
	s, k, c := block[0], block[1], block[2]
	return math.Copysign(math.Pow(math.Abs(code)*s, 1/k)*c, code)
}

// expand computes the expansion of each block of an expanded tensor, by the equations of
// fp8.ExpansionOf, into blocks, and replaces each value by what is cast.
func (b *Backend) expand(t *backend.Tensor, values, blocks []float64) {
	limit, n := float64(t.DType.Max()), fp8.ExpansionElems
	smallest, largest := make([]float64, len(blocks)/n), make([]float64, len(blocks)/n)
	for i, x := range values {
		block, x := t.ScaleIndex(i), math.Abs(b.fp32(x))
		largest[block] = maxAmax(largest[block], x)
		if x > 0 && (smallest[block] == 0 || x < smallest[block]) {
			smallest[block] = x
		}
	}
	for i, top := range largest {
		block := blocks[n*i : n*i+n]
		if !finite(top) {
			continue
		}
		s, k, c := 1.0, 1.0, 1.0
		if top > 0 {
			c = b.fp32(math.Sqrt(top * smallest[i]))
			if span := math.Log2(top / smallest[i]); span > 0 {
				k = min(max(math.Floor(16*math.Log2(limit*limit/2)/span)/16, 1./16), 16)
			}
			s = b.fp32(math.Pow(top/c, k) / limit)
		}
		block[0], block[1], block[2] = s, k, c
	}
	for i, x := range values {
		if x = b.fp32(x); x == 0 || !finite(x) {
			continue
		}
		block := blocks[n*t.ScaleIndex(i):]
		values[i] = math.Copysign(math.Pow(math.Abs(x)/block[2], block[1])/block[0], x)
	}
}
