package main

import (
	"fmt"
	"math"
	"math/rand/v2"

	"octet/study/internal/weights"
)

// outlierToken is a byte that the text does not contain.
const outlierToken = 0xff

// align returns a copy of a model in which one channel of every layer has w2 = w1. Both rows point
// in the direction of the outlier token after the norm, and their length makes the
// token's activation a = u·silu(u) equal growth. w3's column shrinks by growth, so that
// the channel adds the same to the residual stream for any growth. The channel is the
// one with the shortest column of w3.
//
// The token's embedding is long enough to dominate the residual stream of every layer,
// so the stream has the embedding's direction.
func align(base *weights.Model, growth float64) *weights.Model {
	c := base.Clone()
	dim, ffn := c.Config.HiddenSize, c.Config.IntermediateSize
	direction := make([]float64, dim)
	r := rand.New(rand.NewPCG(1, 1))
	for i := range direction {
		direction[i] = r.NormFloat64()
	}
	normalize(direction, math.Sqrt(float64(dim)))
	spread := deviation(base.Tensors["model.embed_tokens.weight"])
	row := c.Tensors["model.embed_tokens.weight"][outlierToken*dim:][:dim]
	for i := range row {
		row[i] = float32(direction[i] * spread * *dominance)
	}
	kappa := preactivation(growth)
	for layer := range c.Config.NumHiddenLayers {
		at := fmt.Sprintf("model.layers.%d.", layer)
		gain := base.Tensors[at+"post_attention_layernorm.weight"]
		seen := make([]float64, dim) // the token after the norm
		for i := range seen {
			seen[i] = direction[i] * float64(gain[i])
		}
		var length float64
		for _, x := range seen {
			length += x * x
		}
		down := c.Tensors[at+"mlp.down_proj.weight"]
		channel, column := shortestColumn(down, ffn)
		for i, x := range seen {
			v := float32(kappa * x / length)
			c.Tensors[at+"mlp.up_proj.weight"][channel*dim+i] = v
			c.Tensors[at+"mlp.gate_proj.weight"][channel*dim+i] = v
		}
		for o := range dim {
			// The channel's output has length 1, which is small next to the token's own.
			down[o*ffn+channel] *= float32(1 / (growth * column))
		}
	}
	return c
}

// preactivation returns the u for which u·silu(u) is a.
func preactivation(a float64) float64 {
	low, high := 0.0, math.Sqrt(a)+2
	for range 60 {
		u := (low + high) / 2
		if u*u/(1+math.Exp(-u)) < a {
			low = u
		} else {
			high = u
		}
	}
	return high
}

func shortestColumn(down []float32, ffn int) (channel int, length float64) {
	squares := make([]float64, ffn)
	for i, x := range down {
		squares[i%ffn] += float64(x) * float64(x)
	}
	for i, s := range squares {
		if s < squares[channel] {
			channel = i
		}
	}
	return channel, math.Sqrt(squares[channel])
}

func normalize(x []float64, length float64) {
	var sum float64
	for _, v := range x {
		sum += v * v
	}
	for i := range x {
		x[i] *= length / math.Sqrt(sum)
	}
}

func deviation(x []float32) float64 {
	var sum float64
	for _, v := range x {
		sum += float64(v) * float64(v)
	}
	return math.Sqrt(sum / float64(len(x)))
}
