package infer

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDraw(t *testing.T) {
	// Probabilities 1/2, 1/4, 1/8, 1/8 at temperature 1.
	ln := func(x float64) float32 { return float32(math.Log(x)) }
	logits := []float32{ln(1), ln(4), ln(1), ln(2)}
	frequencies := func(s Sampling) (n [4]float64) {
		rng := rand.New(rand.NewPCG(1, 0))
		d := newSampler(s, len(logits))
		const draws = 20000
		for range draws {
			n[d.draw(logits, rng)] += 1. / draws
		}
		return n
	}
	for _, c := range []struct {
		s    Sampling
		want [4]float64
	}{
		{Sampling{Temperature: 0, TopP: 1}, [4]float64{0, 1, 0, 0}},
		{Sampling{Temperature: 1, TopP: 1}, [4]float64{1. / 8, 1. / 2, 1. / 8, 1. / 4}},
		{Sampling{Temperature: 0.5, TopP: 1}, [4]float64{1. / 22, 16. / 22, 1. / 22, 4. / 22}},
		{Sampling{Temperature: 1, TopP: 0.7}, [4]float64{0, 2. / 3, 0, 1. / 3}},
		{Sampling{Temperature: 1, TopP: 0.8}, [4]float64{1. / 7, 4. / 7, 0, 2. / 7}}, // the first of equal values
		{Sampling{Temperature: 1, TopP: 1e-9}, [4]float64{0, 1, 0, 0}},
	} {
		require.InDeltaSlice(t, c.want[:], func() []float64 { n := frequencies(c.s); return n[:] }(), 0.015, "%+v", c.s)
	}
	require.Equal(t, int32(1), newSampler(Sampling{TopP: 1}, 4).draw([]float32{-1, 3, 3, 2}, nil), "the first of equal values")
}

func TestDrawAllocatesNothing(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 0))
	logits := make([]float32, 1000)
	for i := range logits {
		logits[i] = rng.Float32()
	}
	for _, temperature := range []float64{0, 0.8} {
		s := newSampler(Sampling{Temperature: temperature, TopP: 0.9}, len(logits))
		require.Zero(t, testing.AllocsPerRun(20, func() { s.draw(logits, rng) }))
	}
}
