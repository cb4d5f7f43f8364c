package emu

import (
	"math"

	"octet/backend"
	"octet/backend/emu/cast"
	"octet/backend/emu/simd"
	"octet/fp8"
)

// Smooth-SwiGLU: its smoothing scales, per channel (smoothScale) and per token
// (swiGLUPerToken). They divide h.

var _ = implement((*binder).smoothScale)

func (b *binder) smoothScale(o *backend.SmoothScale) func() {
	c, invC, weight := b.f32(o.C), b.f32(o.InvC), b.f32(o.WeightMax)
	hAmax, wAmax := b.f32(o.HAmax), b.f32(o.WAmax)
	hScale, hScaleInv := b.f32(o.HScale), b.f32(o.HScaleInv)
	wScale, wScaleInv := b.f32(o.WScale), b.f32(o.WScaleInv)
	smooth, channel := make([]float32, len(c)), make([]float32, len(c))
	collectSmooth, collectChannel := b.windowMax(smooth, o.SmoothMax), b.windowMax(channel, o.ChannelMax)
	if o.SmoothMax == o.ChannelMax {
		smooth, collectSmooth = channel, func() {}
	}
	return func() {
		collectSmooth()
		collectChannel()
		var h, w float32
		for i, k := range weight {
			q := float64(smooth[i])
			if o.Balanced {
				q = math.Sqrt(q / float64(k)) // 0, infinite or NaN if q or k is 0 or not finite
			}
			c[i] = smoothingScale(q, o.Margin, o.Exact)
			invC[i] = 1 / c[i]
			h = fp8.MaxAmax(h, channel[i]*invC[i])
			w = fp8.MaxAmax(w, k*c[i])
		}
		if hAmax != nil {
			hAmax[0] = fp8.MaxAmax(hAmax[0], h)
		}
		if wAmax != nil {
			wAmax[0] = fp8.MaxAmax(wAmax[0], w)
		}
		if hScale != nil {
			hScale[0], _ = fp8.ScaleFor(h, o.HLimit, o.HPow2)
			hScaleInv[0] = 1 / hScale[0]
		}
		if wScale != nil {
			wScale[0], _ = fp8.ScaleFor(w, o.WLimit, o.WPow2)
			wScaleInv[0] = 1 / wScale[0]
		}
	}
}

// smoothingScale returns q·2^margin, rounded up to a power of two (if exact, rounded to
// FP32) and clamped to 2^±30; 1 if q is not positive and finite.
func smoothingScale(q float64, margin int, exact bool) float32 {
	const limit = 1 << 30
	if !(q > 0) || math.IsInf(q, 0) {
		return 1
	}
	q = math.Ldexp(q, margin)
	if !exact {
		fraction, exponent := math.Frexp(q)
		if fraction == 0.5 {
			exponent--
		}
		q = math.Ldexp(1, exponent)
	}
	return float32(min(max(q, 1./limit), limit))
}

// swiGLUPerToken is swiGLU with a smoothing scale per token. The scale depends on the
// whole row: the kernel computes the row, then divides and casts it while it is in the
// cache.
func (b *binder) swiGLUPerToken(o *backend.SwiGLU) func() {
	up, gate, scales := b.matrix(o.Up), b.matrix(o.Gate), b.f32(o.TokenScale)
	cols := up.Cols
	result := b.output(o.Out)
	ups, products := b.scratch(cols), b.scratch(cols)
	run := b.pool.Rows(up.Rows, cols, func(worker, r int) {
		a := products[worker]
		u := up.Row(ups[worker], r)
		gate.Load(a, r, 0)
		simd.MulSiLU(a, u, a)
		top := fp8.Amax(a)
		if o.ScaleOfUp {
			top = fp8.Amax(u)
		}
		scales[r] = smoothingScale(float64(top), 0, o.Exact)
		simd.Scale(a, 1/scales[r])
		result.Store(worker, r, 0, a)
	})
	return cast.Storing(run, result)
}
