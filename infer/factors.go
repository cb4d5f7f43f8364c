package infer

import (
	"context"

	"octet/backend"
	"octet/fp8"
	"octet/nn"
	"octet/recipe"
)

// Factors are Smooth-SwiGLU's factors by channel in one layer, and the factor
// that dequantises the hidden activation divided by them.
type Factors struct {
	C              []float32 // [ffn]; nil in a layer that is not smoothed
	HiddenScaleInv float32
}

// ChannelFactors computes, layer by layer, what evaluation and generation use:
// from the running maxima that the weights come with.
func ChannelFactors(ctx context.Context, c nn.Config, r recipe.Recipe, w Weights, dev backend.Backend) ([]Factors, error) {
	s, err := newSession(c, r, dev)
	if err != nil {
		return nil, err
	}
	pass := s.pass("channel_factors", 1, 1)
	factors, scales := s.model.ChannelFactors(pass)
	// Temps end with their program: what the host reads are variables.
	keep := func(t *backend.Tensor) *backend.Tensor {
		if t == nil {
			return nil
		}
		v := s.vars.Tensor(backend.Output, t.Name+".out", fp8.F32, t.Elems())
		pass.Add(&backend.Quantize{X: t, Out: []backend.Cast{{Out: v}}})
		return v
	}
	for i := range factors {
		factors[i], scales[i] = keep(factors[i]), keep(scales[i])
	}
	programs, err := s.start(ctx, w, pass.Program)
	if err != nil {
		return nil, err
	}
	if err := programs[0].Run(ctx); err != nil {
		return nil, err
	}
	list := make([]Factors, len(factors))
	for i := range list {
		if factors[i] == nil {
			continue
		}
		if list[i].C, err = s.read(factors[i]); err != nil {
			return nil, err
		}
		scale, err := s.read(scales[i])
		if err != nil {
			return nil, err
		}
		list[i].HiddenScaleInv = scale[0]
	}
	return list, nil
}

func (s *session) read(t *backend.Tensor) ([]float32, error) {
	raw := make([]byte, t.Bytes())
	if err := s.dev.Read(t, raw); err != nil {
		return nil, err
	}
	x := make([]float32, t.Elems())
	t.DType.Decode(x, raw)
	return x, nil
}
