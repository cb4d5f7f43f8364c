package infer

import (
	"context"

	"octet/backend"
	"octet/fp8"
	"octet/nn"
	"octet/recipe"
)

// Smoothing holds the smoothing scales of per-channel Smooth-SwiGLU in one layer and the
// scale_inv of the hidden activation after it is divided by them.
type Smoothing struct {
	C              []float32 // [ffn]; nil in a layer without per-channel smoothing
	HiddenScaleInv float32
}

// MeasureSmoothing returns, for each layer, the smoothing scales that evaluation and
// generation use. They follow from the channel maxima in the scale state of w.
func MeasureSmoothing(ctx context.Context, c nn.Config, r recipe.Recipe, w Weights, dev backend.Backend) ([]Smoothing, error) {
	s, err := newSession(c, r, dev.Spec())
	if err != nil {
		return nil, err
	}
	s.dev = dev
	pass := s.pass("channel_factors", 1, 1)
	smoothing, scales := s.model.SmoothingScales(pass)
	// The host reads variables, not temps, which end with their program.
	keep := func(t *backend.Tensor) *backend.Tensor {
		if t == nil {
			return nil
		}
		v := s.vars.Tensor(backend.Output, t.Name+".out", fp8.F32, t.Elems())
		pass.Add(&backend.Quantize{X: t, Out: []backend.Cast{{Out: v}}})
		return v
	}
	for i := range smoothing {
		smoothing[i], scales[i] = keep(smoothing[i]), keep(scales[i])
	}
	programs, err := s.start(ctx, w, pass.Program)
	if err != nil {
		return nil, err
	}
	if err := programs[0].Run(ctx); err != nil {
		return nil, err
	}
	list := make([]Smoothing, len(smoothing))
	for i := range list {
		if smoothing[i] == nil {
			continue
		}
		if list[i].C, err = s.read(smoothing[i]); err != nil {
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
