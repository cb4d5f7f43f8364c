package train

import (
	"fmt"
	"math"
)

// headDim checks heads whose width is given.
func (v *validator) headDim(m Model) {
	switch {
	case !inRange(v, "model.head_dim", m.HeadDim, 0, maxSize):
	case m.HeadDim%2 != 0:
		v.fail("model.head_dim = %d is odd, but rotary embeddings need an even head size; use %d", m.HeadDim, m.HeadDim+1)
	case m.Heads%m.KVHeads != 0:
		v.fail("model.kv_heads = %d does not divide model.heads = %d; use model.kv_heads = %d", m.KVHeads, m.Heads, m.Heads)
	default:
		for _, width := range []struct {
			key string
			n   int
		}{{"model.heads", m.Heads}, {"model.kv_heads", m.KVHeads}} {
			if v.fp8 && width.n*m.HeadDim%align != 0 {
				v.fail("%s = %d with model.head_dim = %d gives a width of %d, not a multiple of %d, which FP8 GEMMs require; use model.head_dim = %d",
					width.key, width.n, m.HeadDim, width.n*m.HeadDim, align, nearestMultiple(m.HeadDim, align))
			}
		}
	}
}

// ropeScaling checks model.rope_scaling.
func (v *validator) ropeScaling(m Model) {
	fail := func(err error) {
		v.fail("model.rope_scaling = %v: %v; use [factor, low_freq_factor, high_freq_factor, original_max_position_embeddings] as Llama 3's config.json has them, [factor] for a linear one, or [] for none", m.RopeScaling, err)
	}
	switch n := len(m.RopeScaling); {
	case n != 0 && n != 1 && n != 4:
		fail(fmt.Errorf("it has %d numbers", n))
	case n == 4 && !(m.RopeScaling[3] >= 1 && m.RopeScaling[3] <= maxSize && m.RopeScaling[3] == math.Trunc(m.RopeScaling[3])):
		fail(fmt.Errorf("original_max_position_embeddings = %v: expected a whole number from 1 to %d", m.RopeScaling[3], maxSize))
	case n > 0 && !(m.RopeScaling[0] >= 1): // the zero value scales nothing
		fail(fmt.Errorf("factor = %v: expected a number of at least 1", m.RopeScaling[0]))
	default:
		if err := m.ropeScaling().Validate(); err != nil {
			fail(err)
		}
	}
}
