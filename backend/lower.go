package backend

import (
	"fmt"
	"iter"
	"reflect"

	"octet/fp8"
)

// Rewriter builds a program from another one.
type Rewriter struct{ rec *record }

// Rewrite builds a program from p node by node: emit may keep the node, replace it or
// add others. Tensors stay the same, temps that emit makes are declared in the new
// program, and every node is checked again.
func Rewrite(p *Program, emit func(r *Rewriter, n *Node)) (*Program, error) {
	if err := p.Err(); err != nil {
		return nil, err
	}
	q := p.rec.vars.Program(p.rec.name)
	for _, t := range p.rec.order {
		q.rec.declare(t)
	}
	for _, n := range p.rec.nodes {
		emit(&Rewriter{q.rec}, n)
	}
	if q.rec.err != nil {
		return nil, fmt.Errorf("lowering %s: %w", p.rec.name, q.rec.err)
	}
	return q, nil
}

// Add appends op with n's scope, block, phase and queue.
func (r *Rewriter) Add(n *Node, op Op) { r.rec.add(n.with(op)) }

// Temp declares a temp. If the name is taken, Temp appends a number.
func (r *Rewriter) Temp(name string, d fp8.DType, shape ...int) *Tensor {
	t := &Tensor{Name: name, DType: d, Shape: shape, Class: Temp}
	for i := 2; r.rec.temps[t.Name] != nil || r.rec.vars.byName[t.Name] != nil; i++ {
		t.Name = fmt.Sprintf("%s#%d", name, i)
	}
	t.LD = t.Cols()
	r.rec.declare(t)
	return t
}

// with returns a copy of the node that holds op.
func (n *Node) with(op Op) *Node {
	m := *n
	m.Op = op
	return &m
}

// Unfuse replaces the casts of every op for which fused is false by Quantize ops that
// follow the op and read an F32 temp. The bits stay the same, because a cast is defined
// on the op's FP32 result. An op whose only cast is a plain F32, BF16 or F16 store stays as
// it is.
func Unfuse(p *Program, fused func(Op) bool) (*Program, error) {
	return Rewrite(p, func(r *Rewriter, n *Node) {
		if _, ok := n.Op.(*Quantize); ok || fused(n.Op) {
			r.Add(n, n.Op)
			return
		}
		var quantize []*Quantize
		op := ReplaceOperands(n.Op, func(t *Tensor) *Tensor { return t })
		v := reflect.ValueOf(op).Elem()
		for i := range v.NumField() {
			if v.Type().Field(i).Type != castsType {
				continue
			}
			casts := v.Field(i).Interface().([]Cast)
			if len(casts) == 0 || len(casts) == 1 && plainStore(casts[0]) {
				continue
			}
			rows, cols := ResultShape(casts)
			wide := r.Temp(casts[0].Out.Name+".f32", fp8.F32, rows, cols)
			quantize = append(quantize, &Quantize{X: wide, Out: casts})
			v.Field(i).Set(reflect.ValueOf([]Cast{{Out: wide}}))
		}
		r.Add(n, op)
		for _, q := range quantize {
			r.Add(n, q)
		}
	})
}

func plainStore(c Cast) bool {
	return c.Scale == nil && c.Amax == nil && !c.Transpose && c.Rounding == fp8.Nearest && c.Precision == fp8.Invalid &&
		c.Out.DType.IsWide() && c.Overflow() == fp8.NonSaturating
}

// Casts yields every cast of an op.
func Casts(op Op) iter.Seq[Cast] {
	return func(yield func(Cast) bool) {
		v := reflect.ValueOf(op).Elem()
		for i := range v.NumField() {
			if casts, ok := v.Field(i).Interface().([]Cast); ok {
				for _, c := range casts {
					if !yield(c) {
						return
					}
				}
			}
		}
	}
}

// MapCasts returns a copy of op with f applied to a copy of each list of casts.
func MapCasts(op Op, f func([]Cast) []Cast) Op {
	clone := ReplaceOperands(op, func(t *Tensor) *Tensor { return t })
	v := reflect.ValueOf(clone).Elem()
	for i := range v.NumField() {
		if casts, ok := v.Field(i).Interface().([]Cast); ok {
			v.Field(i).Set(reflect.ValueOf(f(casts)))
		}
	}
	return clone
}
