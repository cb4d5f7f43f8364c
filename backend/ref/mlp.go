package ref

import (
	"math"

	"octet/backend"
)

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

func (b *Backend) swiGLU(o *backend.SwiGLU) {
	out, gate, cols := b.read(o.Up), b.read(o.Gate), o.Up.Cols()
	invC := b.readOr(o.InvC, cols, 1)
	for i, g := range gate {
		out[i] *= g * sigmoid(g) * invC[i%cols]
	}
	b.cast(out, cols, o.Out)
}

func (b *Backend) swiGLUAmax(o *backend.SwiGLUAmax) {
	up, gate := b.read(o.Up), b.read(o.Gate)
	out := make([]float64, o.Up.Cols())
	for i, g := range gate {
		out[i%len(out)] = maxAmax(out[i%len(out)], up[i]*g*sigmoid(g))
	}
	b.store(o.Out, out)
}

func (b *Backend) swiGLUGrad(o *backend.SwiGLUGrad) {
	dOut, up, gate, cols := b.read(o.DOut), b.read(o.Up), b.read(o.Gate), o.Up.Cols()
	invC := b.readOr(o.InvC, cols, 1)
	dUp, dGate := make([]float64, len(up)), make([]float64, len(up))
	for i, g := range gate {
		da, s := dOut[i]*invC[i%cols], sigmoid(g)
		dUp[i] = da * g * s
		dGate[i] = da * up[i] * s * (1 + g*(1-s))
	}
	b.cast(dUp, cols, o.DUp)
	b.cast(dGate, cols, o.DGate)
}

func (b *Backend) activation(o *backend.Activation) {
	x := b.read(o.X)
	for i, v := range x {
		switch o.Kind {
		case backend.GELU:
			x[i] = v * normalCDF(v)
		case backend.ReLU:
			x[i] = max(v, 0)
		}
	}
	b.cast(x, o.X.Cols(), o.Out)
}

func (b *Backend) activationGrad(o *backend.ActivationGrad) {
	x, dx := b.read(o.X), b.read(o.DOut)
	for i, v := range x {
		switch o.Kind {
		case backend.GELU:
			dx[i] *= normalCDF(v) + v*math.Exp(-v*v/2)/math.Sqrt(2*math.Pi)
		case backend.ReLU:
			if v <= 0 {
				dx[i] = 0
			}
		}
	}
	b.cast(dx, o.X.Cols(), o.DX)
}

// normalCDF is Φ, by erfc: erf would cancel where x is far below zero.
func normalCDF(x float64) float64 { return math.Erfc(-x/math.Sqrt2) / 2 }
