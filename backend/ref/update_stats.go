package ref

import (
	"math"

	"octet/backend"
)

var _ = implement((*Backend).updateStats)

func (b *Backend) updateStats(o *backend.UpdateStats) {
	n := len(o.Grad)
	squares, largest, zeroV := make([]float64, n), make([]float64, n), make([]float64, n)
	if !b.set(o.Skip) {
		rule := b.adamRule(o.Coef, o.Step, o.Beta1, o.Beta2, o.Eps, o.L2, o.EpsForm)
		for i := range o.Grad {
			grad, p, m, v := b.read(o.Grad[i]), b.read(o.Master[i]), b.read(o.M1[i]), b.read(o.M2[i])
			for j := range grad {
				g, _, newV, update := rule.apply(grad[j], p[j], m[j], v[j])
				debiased := newV / (rule.root2 * rule.root2)
				squares[i] += g * g / math.Max(debiased, rule.eps*rule.eps)
				largest[i] = maxAmax(largest[i], update)
				if v[j] == 0 && m[j] != 0 {
					zeroV[i]++
				}
			}
			whole := float64(len(grad) * o.Parts)
			squares[i] /= whole
			zeroV[i] /= whole
		}
	}
	b.store(o.MeanSquares, squares)
	b.store(o.Largest, largest)
	b.store(o.ZeroV, zeroV)
}

// adamRule is the arithmetic of a step of AdamW without its learning rate.
type adamRule struct {
	coef, beta1, beta2, eps, l2 float64
	correction1, root2          float64 // 1 − β1ᵗ, √(1 − β2ᵗ)
	form                        backend.EpsForm
}

func (b *Backend) adamRule(coef, step *backend.Tensor, beta1, beta2, eps, l2 float32, form backend.EpsForm) adamRule {
	t := b.read(step)[0]
	return adamRule{
		coef: b.read(coef)[0], beta1: float64(beta1), beta2: float64(beta2), eps: float64(eps), l2: float64(l2),
		correction1: 1 - math.Pow(float64(beta1), t), root2: math.Sqrt(1 - math.Pow(float64(beta2), t)), form: form,
	}
}

// apply returns the gradient after clipping and L2, the new moments, and the update that the
// learning rate multiplies.
func (r *adamRule) apply(grad, p, m, v float64) (g, newM, newV, update float64) {
	g = r.coef*grad + r.l2*p
	m = r.beta1*m + (1-r.beta1)*g
	v = r.beta2*v + (1-r.beta2)*g*g
	if r.form == backend.EpsCorrected {
		return g, m, v, m / r.correction1 / (math.Sqrt(v)/r.root2 + r.eps)
	}
	return g, m, v, r.root2 / r.correction1 * m / (math.Sqrt(v) + r.eps)
}
