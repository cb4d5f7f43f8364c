package bench

import (
	"encoding/binary"
	"math"
	"math/rand/v2"

	"octet/backend"
	"octet/fp8"
)

// normal returns the bytes of a tensor of normally distributed values; FP8 values are scaled
// to fill the range of the format. It repeats a block of values, since a tensor may be
// large.
func normal(t *backend.Tensor) []byte {
	const block = 1<<16 + 1 // odd, so that rows differ
	x := make([]float32, min(block, t.Elems()))
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	var raw []byte
	switch {
	case t.DType == fp8.F32:
		raw = fp8.AppendFloats(nil, x...)
	case t.DType.IsQuantized():
		raw = make([]byte, len(x))
		fp8.Quantize8(raw, x, t.DType, 16, false)
	default:
		codes := make([]uint16, len(x))
		if t.DType == fp8.BF16 {
			fp8.EncodeBF16(codes, x)
		} else {
			fp8.Quantize16(codes, x, 1)
		}
		for _, c := range codes {
			raw = binary.LittleEndian.AppendUint16(raw, c)
		}
	}
	whole := make([]byte, t.Bytes())
	for at := 0; at < len(whole); at += len(raw) {
		copy(whole[at:], raw)
	}
	return whole
}

// tokens is a stream of random ids; the cost of a model does not depend on them.
type tokens struct{ vocab int }

// Len is enough for any step.
func (tokens) Len() int64 { return math.MaxInt32 }

// ReadTokens implements data.Tokens.
func (s tokens) ReadTokens(dst []int32, at int64) error {
	for i := range dst {
		dst[i] = int32(uint64(fp8.Random(1, uint64(at)+uint64(i))) * uint64(s.vocab) >> 32)
	}
	return nil
}
