package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"octet/backend"
	"octet/checkpoint"
	"octet/fp8"
	"octet/infer"
	"octet/internal/export"
	"octet/nn"
)

// ExportModel prepares weights for others. Smooth-SwiGLU's factors, if the
// weights were trained with it, are computed on dev.
func ExportModel(ctx context.Context, w *Weights, dev backend.Backend) (export.Model, error) {
	LimitGoMemory()
	m := export.Model{Config: w.HF, Param: w.Param}
	for name, shape := range w.HF.Layout() {
		m.List = append(m.List, checkpoint.Tensor{Name: name, Shape: shape})
	}
	byToken := w.Recipe.Smooth.On() && w.Recipe.Smooth.Form.ByToken()
	m.ScaleInv = func(name string) (float32, error) {
		if byToken && strings.HasSuffix(name, ".mlp.hidden") {
			// The one that is kept is of the activation divided by each token's factor.
			return 0, fmt.Errorf("%s: an export in fp8 needs one scale of %s, which recipe %s scales by token; use --format bf16", w.Path, name, w.Recipe.Name)
		}
		var missing error
		// A scale for E4M3 up to 240 serves E4M3 up to 448, which is exported.
		for _, format := range []fp8.DType{fp8.E4M3, fp8.E4M3IEEE} {
			x, err := w.Scale(name + "." + format.String() + ".scale_inv")
			switch {
			case errors.Is(err, nn.ErrNoTensor):
				missing = cmp.Or(missing, err)
				continue
			case err == nil && len(x) != 1:
				err = fmt.Errorf("%s has %d scales, where it should have one", name, len(x))
			}
			if err != nil {
				return 0, fmt.Errorf("%s: %w", w.Path, err)
			}
			return x[0], nil
		}
		return 0, fmt.Errorf("%s: an export in fp8 needs the scale of %s, which a run in FP8 keeps: %w; use --format bf16", w.Path, name, missing)
	}
	if !w.Recipe.Smooth.On() || byToken {
		return m, nil // factors by token are no part of the weights
	}
	factors, err := infer.ChannelFactors(ctx, w.Model, w.Recipe, w, dev)
	m.Smooth = factors
	return m, err
}
