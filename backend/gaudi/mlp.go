package gaudi

import (
	"math"

	"octet/backend"
)

// mulSiLU returns Up ⊙ silu(Gate). SynapseAI has a kernel for silu only; the compiler
// fuses it with the multiplication.
func (b *builder) mulSiLU(up, gate *backend.Tensor) value {
	return b.mul(b.wide(up), b.silu(b.wide(gate)))
}

var _ = implementOp(row[*backend.SwiGLU]{build: (*builder).swiGLU, lower: lowering.swiGLU})

func (b *builder) swiGLU(o *backend.SwiGLU) error {
	a := b.mulSiLU(o.Up, o.Gate)
	switch {
	case o.InvC != nil:
		a = b.mul(a, b.vector(o.InvC))
	case o.TokenScale != nil:
		of := a
		if o.ScaleOfUp {
			of = b.wide(o.Up)
		}
		r, inv := b.tokenScales(of, o.Exact)
		a = b.mul(a, inv)
		b.out(o.TokenScale, r)
	}
	b.store(o.Out, a)
	return nil
}

func (l lowering) swiGLU(o *backend.SwiGLU) {
	for _, p := range rangesOf(o.Up, l.limit) {
		part := *o
		part.Up, part.Gate, part.TokenScale = p.of(o.Up), p.of(o.Gate), p.ofVector(o.TokenScale)
		part.Out = p.ofCasts(o.Out)
		l.add(&part)
	}
}

// tokenScales returns the smoothing scale of every token, by which h is divided, and its
// inverse, {1, rows}; see backend.SwiGLU.
func (b *builder) tokenScales(v value, exact bool) (r, inv value) {
	one := b.constant(1)
	top := b.magnitude(v, func(x value) value { return b.maximum(x, 0) })
	usable := b.usable(top)
	if exact {
		r = b.where(usable, b.clamp(top, minSmooth, maxSmooth), one)
		return r, b.div(one, r)
	}
	r, inv = b.smallestPower(b.lessEqual(top, b.powers(minSmooth, maxSmooth, same)), minSmooth, maxSmooth)
	return b.where(usable, r, one), b.where(usable, inv, one)
}

var _ = implementOp(row[*backend.SwiGLUAmax]{build: (*builder).swiGLUAmax, lower: lowering.swiGLUAmax})

func (b *builder) swiGLUAmax(o *backend.SwiGLUAmax) error {
	for _, f := range []struct {
		out, seen *backend.Tensor
		of        func() value
	}{
		{o.Out, o.Seen, func() value { return b.mulSiLU(o.Up, o.Gate) }},
		{o.UpOut, o.UpSeen, func() value { return b.wide(o.Up) }},
	} {
		if f.out == nil {
			continue
		}
		top := b.largestOfColumns(f.of())
		b.out(f.out, top)
		if f.seen != nil {
			b.out(f.seen, b.larger(b.vector(f.seen), top))
		}
	}
	return nil
}

func (l lowering) swiGLUAmax(o *backend.SwiGLUAmax) {
	ranges := rangesOf(o.Up, l.limit)
	out, up := l.partialMax(o.Out, ranges), l.partialMax(o.UpOut, ranges)
	for i, p := range ranges {
		part := *o
		part.Up, part.Gate = p.of(o.Up), p.of(o.Gate)
		part.Out, part.UpOut = out.of(i), up.of(i)
		l.add(&part)
	}
	out.join(l)
	up.join(l)
}

var _ = implementOp(row[*backend.SwiGLUGrad]{build: (*builder).swiGLUGrad, lower: lowering.swiGLUGrad})

func (b *builder) swiGLUGrad(o *backend.SwiGLUGrad) error {
	one := b.constant(1)
	da, up, gate := b.wide(o.DOut), b.wide(o.Up), b.wide(o.Gate)
	switch {
	case o.InvC != nil:
		da = b.mul(da, b.vector(o.InvC))
	case o.TokenScale != nil:
		da = b.mul(da, b.div(one, b.reshape(b.f32(o.TokenScale), 1, up.sizes[1])))
	}
	s := b.sigmoid(gate)
	b.store(o.DUp, b.mul(da, b.mul(gate, s)))
	slope := b.mul(s, b.add(one, b.mul(gate, b.sub(one, s))))
	b.store(o.DGate, b.mul(b.mul(da, up), slope))
	return nil
}

func (l lowering) swiGLUGrad(o *backend.SwiGLUGrad) {
	for _, p := range rangesOf(o.Up, l.limit) {
		part := *o
		part.DOut, part.Up, part.Gate = p.of(o.DOut), p.of(o.Up), p.of(o.Gate)
		part.TokenScale = p.ofVector(o.TokenScale)
		part.DUp, part.DGate = p.ofCasts(o.DUp), p.ofCasts(o.DGate)
		l.add(&part)
	}
}

var _ = implementElementwise((*builder).activation)

// activation computes GELU by erf, because SynapseAI's GELU kernel may use the tanh form,
// and ReLU by where, which keeps NaN.
func (b *builder) activation(o *backend.Activation) error {
	x := b.wide(o.X)
	switch o.Kind {
	case backend.GELU:
		b.store(o.Out, b.mul(x, b.normalCDF(x)))
	case backend.ReLU:
		b.store(o.Out, b.where(b.lessEqual(x, b.constant(0)), b.constant(0), x))
	default:
		return b.unsupported("no graph for activation %d", o.Kind)
	}
	return nil
}

var _ = implementElementwise((*builder).activationGrad)

func (b *builder) activationGrad(o *backend.ActivationGrad) error {
	x, dOut := b.wide(o.X), b.wide(o.DOut)
	switch o.Kind {
	case backend.GELU:
		density := b.mul(b.constant(float32(1/math.Sqrt(2*math.Pi))), b.exp(b.mul(b.constant(-0.5), b.mul(x, x))))
		b.store(o.DX, b.mul(dOut, b.add(b.normalCDF(x), b.mul(x, density))))
	case backend.ReLU:
		b.store(o.DX, b.where(b.lessEqual(x, b.constant(0)), b.constant(0), dOut))
	default:
		return b.unsupported("no graph for the gradient of activation %d", o.Kind)
	}
	return nil
}

// normalCDF returns Φ(x) = (1 + erf(x/√2))/2.
func (b *builder) normalCDF(x value) value {
	half := b.constant(0.5)
	return b.add(half, b.mul(half, b.erf(b.mul(x, b.constant(math.Sqrt2/2)))))
}
