package ref

import (
	"math"

	"octet/backend"
	"octet/fp8"
)

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

var _ = implement((*Backend).swiGLU)

func (b *Backend) swiGLU(o *backend.SwiGLU) {
	up, out, gate, cols := b.read(o.Up), b.read(o.Up), b.read(o.Gate), o.Up.Cols()
	invC := b.readOr(o.InvC, cols, 1)
	for i, g := range gate {
		out[i] *= g * sigmoid(g) * invC[i%cols]
	}
	if o.TokenScale != nil {
		of := out
		if o.ScaleOfUp {
			of = up
		}
		scales := make([]float64, o.Up.Rows())
		for i := range scales {
			scales[i] = b.smoothingScale(b.rowMax(of, i, cols), 0, o.Exact)
			for j := range cols {
				out[i*cols+j] *= b.fp32(1 / scales[i])
			}
		}
		b.store(o.TokenScale, scales)
	}
	b.cast(out, cols, o.Out)
}

// rowMax returns the amax of row i, rounded to FP32.
func (b *Backend) rowMax(x []float64, i, cols int) float64 {
	top := 0.0
	for _, v := range x[i*cols : (i+1)*cols] {
		top = maxAmax(top, b.fp32(v))
	}
	return top
}

// smoothingScale returns the smoothing scale for the quotient or maximum q.
func (b *Backend) smoothingScale(q float64, margin int, exact bool) float64 {
	if !finite(q) || q <= 0 {
		return 1
	}
	if q = math.Ldexp(q, margin); !exact {
		fraction, exponent := math.Frexp(q) // 2^(exponent-1) ≤ q < 2^exponent
		if fraction == 0.5 {
			exponent--
		}
		q = math.Ldexp(1, exponent)
	}
	return b.fp32(max(0x1p-30, min(0x1p30, q)))
}

var _ = implement((*Backend).swiGLUAmax)

func (b *Backend) swiGLUAmax(o *backend.SwiGLUAmax) {
	up, a, gate := b.read(o.Up), b.read(o.Up), b.read(o.Gate)
	for i, g := range gate {
		a[i] *= g * sigmoid(g)
	}
	tops := columnMax(a, o.Up.Cols())
	b.store(o.Out, tops)
	b.fold(o.Seen, tops...)
	if o.UpOut != nil {
		tops := columnMax(up, o.Up.Cols())
		b.store(o.UpOut, tops)
		b.fold(o.UpSeen, tops...)
	}
}

// columnMax returns the amax of each column.
func columnMax(x []float64, cols int) []float64 {
	out := make([]float64, cols)
	for i, v := range x {
		out[i%cols] = maxAmax(out[i%cols], v)
	}
	return out
}

var _ = implement((*Backend).swiGLUGrad)

func (b *Backend) swiGLUGrad(o *backend.SwiGLUGrad) {
	dOut, up, gate, cols := b.read(o.DOut), b.read(o.Up), b.read(o.Gate), o.Up.Cols()
	invC, tokenScale := b.readOr(o.InvC, cols, 1), b.readOr(o.TokenScale, o.Up.Rows(), 1)
	dUp, dGate := make([]float64, len(up)), make([]float64, len(up))
	for i, g := range gate {
		da, s := dOut[i]*invC[i%cols]/tokenScale[i/cols], sigmoid(g)
		dUp[i] = da * g * s
		dGate[i] = da * up[i] * s * (1 + g*(1-s))
	}
	b.cast(dUp, cols, o.DUp)
	b.cast(dGate, cols, o.DGate)
}

var _ = implement((*Backend).smoothScale)

func (b *Backend) smoothScale(o *backend.SmoothScale) {
	k := b.read(o.WeightMax)
	f, m := columnMax(b.read(o.SmoothMax), len(k)), columnMax(b.read(o.ChannelMax), len(k))
	c, inv := make([]float64, len(k)), make([]float64, len(k))
	var hMax, wMax float64
	for i := range k {
		q := f[i]
		if o.Balanced {
			q = math.Sqrt(f[i] / k[i]) // 0, infinite or NaN if f or k is 0 or not finite
		}
		c[i] = b.smoothingScale(q, o.Margin, o.Exact)
		inv[i] = b.fp32(1 / c[i])
		hMax = maxAmax(hMax, b.fp32(m[i]*inv[i]))
		wMax = maxAmax(wMax, b.fp32(k[i]*c[i]))
	}
	b.store(o.C, c)
	b.store(o.InvC, inv)
	b.fold(o.HAmax, hMax)
	b.fold(o.WAmax, wMax)
	b.storeScale(o.HScale, o.HScaleInv, hMax, o.HLimit, o.HPow2)
	b.storeScale(o.WScale, o.WScaleInv, wMax, o.WLimit, o.WPow2)
}

// storeScale stores the scale for amax, and its inverse, unless scale is nil.
func (b *Backend) storeScale(scale, inv *backend.Tensor, amax float64, limit float32, pow2 bool) {
	if scale != nil {
		s, _ := fp8.ScaleFor(float32(amax), limit, pow2)
		b.store(scale, []float64{float64(s)})
		b.store(inv, []float64{1 / float64(s)})
	}
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

var _ = implement((*Backend).activation)

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

var _ = implement((*Backend).activationGrad)

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

// normalCDF returns Φ(x). It uses erfc because 1 + erf cancels for large negative x.
func normalCDF(x float64) float64 { return math.Erfc(-x/math.Sqrt2) / 2 }
