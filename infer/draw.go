package infer

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// Sampling configures how the next token is drawn.
type Sampling struct {
	Temperature float64 // 0: the most likely token
	TopP        float64 // nucleus: draw from the smallest set of tokens with this probability; 1: all
	Seed        uint64
}

// Validate returns an error for settings outside their range.
func (s Sampling) Validate() error {
	switch {
	case !(s.Temperature >= 0) || math.IsInf(s.Temperature, 0):
		return fmt.Errorf("temperature %v: expected 0 or more", s.Temperature)
	case !(s.TopP > 0 && s.TopP <= 1):
		return fmt.Errorf("top-p %v: expected more than 0, at most 1", s.TopP)
	}
	return nil
}

// sampler draws tokens from logits.
type sampler struct {
	Sampling
	order   []int32   // token ids by decreasing probability
	weights []float64 // their unnormalized probabilities
}

func newSampler(s Sampling, vocab int) *sampler {
	return &sampler{s, make([]int32, vocab), make([]float64, vocab)}
}

// draw returns a token, drawn from the distribution of the logits at the given temperature, restricted
// to the nucleus. Tokens of equal probability are ordered by id.
func (s *sampler) draw(values []float32, rng *rand.Rand) int32 {
	if s.Temperature == 0 {
		best := 0
		for i, x := range values {
			if x > values[best] {
				best = i
			}
		}
		return int32(best)
	}
	for i := range s.order {
		s.order[i] = int32(i)
	}
	slices.SortFunc(s.order, func(a, b int32) int {
		return cmp.Or(cmp.Compare(values[b], values[a]), cmp.Compare(a, b))
	})
	top := float64(values[s.order[0]])
	total := 0.0
	for i, id := range s.order {
		s.weights[i] = math.Exp((float64(values[id]) - top) / s.Temperature)
		total += s.weights[i]
	}
	nucleus := 0.0
	kept := len(s.order)
	for i, w := range s.weights {
		nucleus += w
		if nucleus >= s.TopP*total {
			kept = i + 1
			break
		}
	}
	u := rng.Float64() * nucleus
	for i, w := range s.weights[:kept] {
		if u -= w; u < 0 {
			return s.order[i]
		}
	}
	return s.order[kept-1]
}
