package conformance

import (
	"fmt"
	"maps"
	"slices"

	"octet/backend"
	"octet/fp8"
)

// gradientFormats adds the ops that read stored gradients, in each format of moments besides F32.
func (s *suite) gradientFormats() {
	formats := map[fp8.DType]bool{}
	for _, f := range stateFormats[1:] {
		formats[f[1]], formats[f[2]] = true, true
	}
	for _, d := range slices.Sorted(maps.Keys(formats)) {
		s.add(func(b *fixture) {
			x := b.gradientIn("x", d, 13, 8)
			gapped := b.gapped("y", d, 5, 6)
			if x.Scale != nil {
				gapped.Scale = b.scalar("y.scale_inv", 0.3)
			}
			b.p.Add(&backend.SumSquares{X: []*backend.Tensor{x, gapped}, Out: b.result("out", fp8.F32, summed(200), 1)})
		}, "sumsquares/%s", d)
		for _, f := range stateFormats[:3] {
			for _, l2 := range []float32{0, 0.3} {
				s.add(func(b *fixture) {
					b.p.Add(b.storedGradients(d, f, l2))
				}, "adamw/grad-%s/%s-%s-%s/l2-%v", d, f[0], f[1], f[2], l2)
				s.add(func(b *fixture) {
					b.p.Add(b.statsOf(b.storedGradients(d, f, l2), 1))
				}, "updatestats/grad-%s/%s-%s-%s/l2-%v", d, f[0], f[1], f[2], l2)
			}
		}
		// The second update may skip blocks by the magnitudes that SumSquares and the first noted.
		s.add(func(b *fixture) {
			op := b.storedGradients(d, stateFormats[1], 0)
			op.Eps = 10 // a moment that rounds otherwise than in float64 hardly shows
			for i := range 2 {
				again := *op
				again.Amaxes = b.result(fmt.Sprintf("amaxes%d", i), fp8.F32, anything, 9)
				b.p.Add(&backend.SumSquares{X: op.Grad, Out: b.result(fmt.Sprintf("squares%d", i), fp8.F32, summed(codesElems), 1)})
				b.p.Add(&again)
			}
		}, "adamw/grad-%s/twice", d)
	}
}

// gradientIn declares a gradient in a format with one scale, if it takes any.
func (b *fixture) gradientIn(name string, d fp8.DType, shape ...int) *backend.Tensor {
	t := b.normal(name, d, shape...)
	if d == fp8.F16 {
		t.Scale = b.scalar(name+".scale_inv", 0.07)
	}
	return t
}

// storedGradients returns an update of three tensors with gradients in format d.
func (b *fixture) storedGradients(d fp8.DType, f [3]fp8.DType, l2 float32) *backend.AdamW {
	op := b.newAdamW(f, 3, 5*7, 64, codesElems)
	op.L2 = l2
	for i, g := range op.Grad {
		op.Grad[i] = b.gradientIn(g.Name+".stored", d, g.Elems())
	}
	return op
}
