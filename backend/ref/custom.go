package ref

import (
	"context"
	"fmt"

	"octet/backend"
)

// rowOf returns the row of an op; one that runs Reference for a custom op.
func rowOf(op backend.Op) (r row, ok bool) {
	if r, ok = ops.Of(op); ok {
		return r, true
	}
	_, ok = op.(backend.CustomOp)
	return row{run: runCustom}, ok
}

func runCustom(_ context.Context, b *Backend, n *backend.Node) error {
	a := &arguments{b: b, operands: n.Operands()}
	n.Op.(backend.CustomOp).Reference(a)
	return a.err
}

// arguments implements backend.Arguments. It keeps the first error.
type arguments struct {
	b        *Backend
	operands []backend.Operand
	err      error
}

// Read implements backend.Arguments.
func (a *arguments) Read(t *backend.Tensor) []float64 {
	for _, o := range a.operands {
		if o.Tensor == t && o.Access != backend.Out {
			return a.b.read(t)
		}
	}
	a.fail("Reference reads %s, which is not an operand that the op reads", t)
	return make([]float64, t.Elems())
}

// Store implements backend.Arguments.
func (a *arguments) Store(t *backend.Tensor, values []float64) {
	if a.writes(t, len(values)) {
		a.b.store(t, values)
	}
}

// Cast implements backend.Arguments.
func (a *arguments) Cast(casts []backend.Cast, result []float64, cols int) {
	ok := true
	for _, c := range casts {
		ok = ok && a.writes(c.Out, len(result))
	}
	if ok {
		a.b.cast(result, cols, casts)
	}
}

// writes reports whether t is an operand that the op writes, with n elements.
func (a *arguments) writes(t *backend.Tensor, n int) bool {
	for _, o := range a.operands {
		if o.Tensor == t && o.Access != backend.In {
			if n != t.Elems() {
				a.fail("Reference stores %d values in %s", n, t)
			}
			return n == t.Elems()
		}
	}
	a.fail("Reference writes %s, which is not an operand that the op writes", t)
	return false
}

func (a *arguments) fail(format string, args ...any) {
	if a.err == nil {
		a.err = fmt.Errorf(format, args...)
	}
}
