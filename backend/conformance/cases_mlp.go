package conformance

import (
	"octet/backend"
	"octet/fp8"
)

func (s *suite) mlp() {
	for _, v := range variants {
		for _, smooth := range []bool{false, true} {
			invC := func(b *bench) *backend.Tensor {
				if !smooth {
					return nil
				}
				return b.normal("inv_c", fp8.F32, v.cols)
			}
			s.add(func(b *bench) {
				b.p.Add(&backend.SwiGLU{
					Up: b.normal("up", v.in, v.rows, v.cols), Gate: b.outliers(b.normal("gate", v.in, v.rows, v.cols), 40),
					InvC: invC(b), Out: b.casts(v.style, "out", v.rows, v.cols, elementwise),
				})
			}, "swiglu/%s/smooth-%v", v, smooth)
			s.add(func(b *bench) {
				b.p.Add(&backend.SwiGLUGrad{
					DOut: b.normal("dout", v.in, v.rows, v.cols),
					Up:   b.normal("up", v.in, v.rows, v.cols), Gate: b.outliers(b.normal("gate", v.in, v.rows, v.cols), 40),
					InvC: invC(b),
					DUp:  b.casts(v.style, "dup", v.rows, v.cols, elementwise), DGate: b.casts(v.style, "dgate", v.rows, v.cols, elementwise),
				})
			}, "swiglugrad/%s/smooth-%v", v, smooth)
		}
		for _, kind := range []backend.ActivationKind{backend.GELU, backend.ReLU} {
			tolerance := elementwise
			if kind == backend.ReLU {
				tolerance = exactly
			}
			s.add(func(b *bench) {
				b.p.Add(&backend.Activation{
					X: b.nonzero("x", v), Out: b.casts(v.style, "out", v.rows, v.cols, tolerance), Kind: kind,
				})
			}, "activation%d/%s", kind, v)
			s.add(func(b *bench) {
				b.p.Add(&backend.ActivationGrad{
					DOut: b.normal("dout", v.in, v.rows, v.cols), X: b.nonzero("x", v),
					DX: b.casts(v.style, "dx", v.rows, v.cols, tolerance), Kind: kind,
				})
			}, "activationgrad%d/%s", kind, v)
		}
		s.add(func(b *bench) {
			b.p.Add(&backend.SwiGLUAmax{
				Up: b.normal("up", v.in, v.rows, v.cols), Gate: b.outliers(b.normal("gate", v.in, v.rows, v.cols), 40),
				Out: b.result("out", fp8.F32, elementwise, v.cols),
			})
		}, "swigluamax/%s", v)
	}
	s.add(func(b *bench) {
		up := b.normal("up", fp8.F32, 6, 9)
		b.values[up][4], b.values[up][14] = nan, inf
		gate := b.normal("gate", fp8.F32, 6, 9)
		b.values[gate][14] = 1
		b.p.Add(&backend.SwiGLUAmax{Up: up, Gate: gate, Out: b.result("out", fp8.F32, elementwise, 9)})
	}, "swigluamax/nan")
	s.add(func(b *bench) {
		b.p.Add(&backend.SwiGLU{
			Up: b.gapped("up", fp8.BF16, 5, 12), Gate: b.gapped("gate", fp8.BF16, 5, 12), Out: b.casts("view", "out", 5, 12, elementwise),
		})
	}, "swiglu/views")
}

// nonzero is normal without zeros, whose sign max(x, 0) does not define.
func (b *bench) nonzero(name string, v variant) *backend.Tensor {
	t := b.normal(name, v.in, v.rows, v.cols)
	for i, x := range b.values[t] {
		if x == 0 {
			b.values[t][i] = 0.5
		}
	}
	return t
}
