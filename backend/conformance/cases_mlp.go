package conformance

import (
	"math"

	"octet/backend"
	"octet/fp8"
)

func (s *suite) mlp() {
	for _, v := range variants {
		for _, smoothing := range []string{"none", "channels", "tokens", "tokens-exact", "tokens-up"} {
			s.add(func(b *fixture) {
				op := &backend.SwiGLU{
					Up: b.outliers(b.normal("up", v.in, v.rows, v.cols), 7), Gate: b.outliers(b.normal("gate", v.in, v.rows, v.cols), 40),
					Out: b.casts(v.style, "out", v.rows, v.cols, elementwise),
				}
				switch smoothing {
				case "channels":
					op.InvC = b.normal("inv_c", fp8.F32, v.cols)
				case "tokens", "tokens-exact", "tokens-up":
					op.Exact, op.ScaleOfUp = smoothing == "tokens-exact", smoothing == "tokens-up"
					op.TokenScale = b.result("factor", fp8.F32, elementwise, v.rows)
				}
				b.p.Add(op)
			}, "swiglu/%s/%s", v, smoothing)
		}
		for _, smoothing := range []string{"none", "channels", "tokens"} {
			s.add(func(b *fixture) {
				op := &backend.SwiGLUGrad{
					DOut: b.normal("dout", v.in, v.rows, v.cols),
					Up:   b.normal("up", v.in, v.rows, v.cols), Gate: b.outliers(b.normal("gate", v.in, v.rows, v.cols), 40),
					DUp: b.casts(v.style, "dup", v.rows, v.cols, elementwise), DGate: b.casts(v.style, "dgate", v.rows, v.cols, elementwise),
				}
				switch smoothing {
				case "channels":
					op.InvC = b.normal("inv_c", fp8.F32, v.cols)
				case "tokens":
					op.TokenScale = b.positive("factor", v.rows)
				}
				b.p.Add(op)
			}, "swiglugrad/%s/%s", v, smoothing)
		}
		for _, kind := range []backend.ActivationKind{backend.GELU, backend.ReLU} {
			tolerance := elementwise
			if kind == backend.ReLU {
				tolerance = exactly
			}
			s.add(func(b *fixture) {
				b.p.Add(&backend.Activation{
					X: b.nonzero("x", v), Out: b.casts(v.style, "out", v.rows, v.cols, tolerance), Kind: kind,
				})
			}, "activation%d/%s", kind, v)
			s.add(func(b *fixture) {
				b.p.Add(&backend.ActivationGrad{
					DOut: b.normal("dout", v.in, v.rows, v.cols), X: b.nonzero("x", v),
					DX: b.casts(v.style, "dx", v.rows, v.cols, tolerance), Kind: kind,
				})
			}, "activationgrad%d/%s", kind, v)
		}
		for records := range 3 { // no record, one of up·silu(gate), one of each
			s.add(func(b *fixture) {
				op := &backend.SwiGLUAmax{
					Up: b.normal("up", v.in, v.rows, v.cols), Gate: b.outliers(b.normal("gate", v.in, v.rows, v.cols), 40),
					Out: b.result("out", fp8.F32, elementwise, v.cols),
				}
				if records > 0 {
					op.Seen = b.small("seen", v.cols)
				}
				if records > 1 {
					op.UpOut, op.UpSeen = b.result("up_out", fp8.F32, exactly, v.cols), b.small("up_seen", v.cols)
					b.tolerance[op.UpSeen] = exactly
				}
				b.p.Add(op)
			}, "swigluamax/%s/records%d", v, records)
		}
	}
	s.add(func(b *fixture) {
		up := b.normal("up", fp8.F32, 6, 9)
		b.values[up][4], b.values[up][14] = nan, inf
		gate := b.normal("gate", fp8.F32, 6, 9)
		b.values[gate][14] = 1
		b.p.Add(&backend.SwiGLUAmax{
			Up: up, Gate: gate, Out: b.result("out", fp8.F32, elementwise, 9), Seen: b.small("seen", 9),
			UpOut: b.result("up_out", fp8.F32, exactly, 9), UpSeen: b.small("up_seen", 9),
		})
	}, "swigluamax/nan")
	s.tokenScales()
	s.smoothScale()
	s.add(func(b *fixture) {
		b.p.Add(&backend.SwiGLU{
			Up: b.gapped("up", fp8.BF16, 5, 12), Gate: b.gapped("gate", fp8.BF16, 5, 12), Out: b.casts("view", "out", 5, 12, elementwise),
		})
	}, "swiglu/views")
}

// small declares a record of maxima. Its initial values are larger than some maxima of
// columns, but not most.
func (b *fixture) small(name string, n int) *backend.Tensor {
	t := b.result(name, fp8.F32, elementwise, n)
	for i := range b.values[t] {
		b.values[t][i] = float64(i%7) / 4
	}
	return t
}

// tokenScales adds rows whose maximum gives no smoothing scale or one at a limit, and
// maxima at and next to powers of two.
func (s *suite) tokenScales() {
	tops := []float64{0, negativeZero, inf, nan, 1, 2, 0.25, 1 + 0x1p-23, 1 - 0x1p-24, 0x1p-40, 0x1p50, 3e38, 1e-40}
	for _, exact := range []bool{false, true} {
		for _, ofUp := range []bool{false, true} {
			s.add(func(b *fixture) {
				const cols = 37
				up, gate := b.normal("up", fp8.F32, len(tops), cols), b.normal("gate", fp8.F32, len(tops), cols)
				for i, top := range tops {
					for j := range cols { // far below the row's maximum
						b.values[up][i*cols+j] = 0x1p-50 * b.values[up][i*cols+j]
						b.values[gate][i*cols+j] = 0.01
					}
					b.values[up][i*cols+i] = top
					if top == inf || top == nan {
						b.values[gate][i*cols+i] = 1
					}
				}
				b.p.Add(&backend.SwiGLU{
					Up: up, Gate: gate, TokenScale: b.result("factor", fp8.F32, elementwise, len(tops)),
					Out:       []backend.Cast{{Out: b.result("out", fp8.F32, elementwise, len(tops), cols), Amax: b.scalar("amax", 1)}},
					ScaleOfUp: ofUp, Exact: exact,
				})
			}, "swiglu/rowfactors/exact-%v/up-%v", exact, ofUp)
		}
	}
}

func (s *suite) smoothScale() {
	for _, data := range []string{"normal", "edges", "zeros", "inf", "nan"} {
		for _, window := range []int{1, 4} {
			for _, balanced := range []bool{false, true} {
				for form := range 4 { // power of two or exact, without or with a margin
					s.add(func(b *fixture) {
						op := b.smooth(data, window)
						op.Balanced, op.Exact = balanced, form%2 == 1
						if form >= 2 {
							op.Margin = 3
						}
						b.p.Add(op)
					}, "smoothscale/%s/window%d/balanced-%v/form%d", data, window, balanced, form)
				}
			}
		}
		// Smoothing scales from other maxima, and scales that the op does not compute.
		for delayed := range 4 {
			s.add(func(b *fixture) {
				op := b.smooth(data, 1)
				op.SmoothMax, op.Balanced = b.positive("factor", 3, op.C.Elems()), delayed == 0
				op.HPow2, op.WPow2 = delayed == 0, delayed == 1
				if delayed&1 != 0 {
					op.HScale, op.HScaleInv = nil, nil
				}
				if delayed&2 != 0 {
					op.WScale, op.WScaleInv = nil, nil
				}
				b.p.Add(op)
			}, "smoothscale/%s/delayed%d", data, delayed)
		}
	}
}

// smooth returns a SmoothScale op over maxima some of which, depending on data, give no
// smoothing scale.
func (b *fixture) smooth(data string, window int) *backend.SmoothScale {
	const n = 24
	m, k := b.positive("m", window, n), b.positive("k", n)
	rows, weights := b.values[m], b.values[k]
	switch data {
	case "edges": // ratios that are powers of two, and clamped exponents
		for i := range rows {
			rows[i] = math.Ldexp(weights[i%n], i%n-n/2)
		}
		for i := 5; i < n; i += 4 { // maxima that are powers of two
			rows[i] = math.Ldexp(1, i-n/2)
		}
		rows[0], weights[0], rows[1], weights[1] = 0x1p100, 0x1p-10, 0x1p-100, 0x1p10
		rows[2], rows[3], weights[4] = 0, 0, 0
	case "zeros":
		clear(rows)
	case "inf":
		rows[5], weights[6] = inf, inf
	case "nan":
		rows[5], weights[6] = nan, nan
	}
	return &backend.SmoothScale{
		SmoothMax: m, ChannelMax: m, WeightMax: k, HAmax: b.scalar("h.amax", 1), WAmax: b.scalar("w.amax", 1),
		C: b.result("c", fp8.F32, exactly, n), InvC: b.result("inv_c", fp8.F32, exactly, n),
		HScale: b.result("h.scale", fp8.F32, exactly, 1), HScaleInv: b.result("h.scale_inv", fp8.F32, exactly, 1),
		WScale: b.result("w.scale", fp8.F32, exactly, 1), WScaleInv: b.result("w.scale_inv", fp8.F32, exactly, 1),
		HLimit: 448, WLimit: 240, HPow2: true, WPow2: true,
	}
}

// nonzero is normal without zeros: max(x, 0) does not define the sign of a zero.
func (b *fixture) nonzero(name string, v variant) *backend.Tensor {
	t := b.normal(name, v.in, v.rows, v.cols)
	for i, x := range b.values[t] {
		if x == 0 {
			b.values[t][i] = 0.5
		}
	}
	return t
}
