package ref

import (
	"math"

	"octet/backend"
	"octet/fp8"
)

func (b *Backend) sumSquares(o *backend.SumSquares) {
	total := 0.0
	for _, t := range o.X {
		for _, x := range b.read(t) {
			total += x * x
		}
	}
	b.store(o.Out, []float64{total})
}

func (b *Backend) stepGate(o *backend.StepGate) {
	squares := b.read(o.SumSquares)[0]
	norm, coef := math.Sqrt(squares), 1.0
	if o.Clip > 0 {
		coef = min(1, float64(o.Clip)/(norm+1e-6))
	}
	skip, happened := 0.0, 1.0
	for _, x := range append(b.readOr(o.Amax, 0, 0), squares) {
		if !finite(x) {
			skip, happened = 1, 0
		}
	}
	b.store(o.GradNorm, []float64{norm})
	b.store(o.Coef, []float64{coef})
	b.store(o.Skip, []float64{skip})
	b.store(o.Step, []float64{b.read(o.Step)[0] + happened})
}

func (b *Backend) adamW(o *backend.AdamW) {
	if b.set(o.Skip) {
		return
	}
	control, coef := b.control(o.Control), b.read(o.Coef)[0]
	t, lr := b.read(o.Step)[0], float64(control.LR)
	beta1, beta2, eps := float64(o.Beta1), float64(o.Beta2), float64(o.Eps)
	correction1, correction2 := 1-math.Pow(beta1, t), math.Sqrt(1-math.Pow(beta2, t))

	var scratch []float64
	for i := range o.Grad {
		grad, p, m, v := b.read(o.Grad[i]), b.read(o.Master[i]), b.read(o.M1[i]), b.read(o.M2[i])
		for j := range grad {
			g := coef * grad[j]
			m[j] = beta1*m[j] + (1-beta1)*g
			v[j] = beta2*v[j] + (1-beta2)*g*g
			var step float64
			switch o.EpsForm {
			case backend.EpsHat:
				step = lr * correction2 / correction1 * m[j] / (math.Sqrt(v[j]) + eps)
			case backend.EpsCorrected:
				step = lr / correction1 * m[j] / (math.Sqrt(v[j])/correction2 + eps)
			}
			p[j] = p[j]*(1-lr*float64(o.WeightDecay)) - step
		}
		scratch = append(scratch,
			b.rescale(o.Master[i], p, control, o.Rounding),
			b.rescale(o.M1[i], m, control, o.Rounding),
			b.rescale(o.M2[i], v, control, o.Rounding))
	}
	b.store(o.Scratch, scratch)
}

// rescale stores new values in a tensor of the optimizer, under a new scale if
// it has one, and returns their amax.
func (b *Backend) rescale(t *backend.Tensor, values []float64, control backend.Control, rounding fp8.Rounding) (amax float64) {
	for _, x := range values {
		amax = maxAmax(amax, b.fp32(x))
	}
	scale := 1.0
	if t.Scale != nil {
		fresh, ok := fp8.ScaleFor(float32(amax), t.DType.Max(), false)
		scale = float64(fresh)
		if !ok {
			scale = b.fp32(1 / b.read(t.Scale)[0])
		} else {
			b.store(t.Scale, []float64{1 / scale})
		}
	}
	key := fp8.StreamKey(control.Seed, control.Step, fp8.NameKey(t.Name))
	codes := make([]float64, len(values))
	for i, x := range values {
		codes[i] = b.round(t.DType, b.fp32(b.fp32(x)*scale), rounding, fp8.Random(key, uint64(i)))
	}
	b.put(t, codes)
	return amax
}
