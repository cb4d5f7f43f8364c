package backend

import (
	"fmt"
	"reflect"

	"octet/fp8"
)

// rewrite builds a program from p node by node: emit may pass the node on,
// replace it or add others. The tensors stay the same, temps that emit makes
// are declared in the new program, and everything is checked again.
func rewrite(p *Program, emit func(r *record, n *Node)) (*Program, error) {
	q := p.rec.vars.Program(p.rec.name)
	for _, t := range p.rec.order {
		q.rec.declare(t)
	}
	for _, n := range p.rec.nodes {
		emit(q.rec, n)
	}
	if q.rec.err != nil {
		return nil, fmt.Errorf("lowering %s: %w", p.rec.name, q.rec.err)
	}
	return q, nil
}

// with is the node's place in the program around another op.
func (n *Node) with(op Op) *Node {
	m := *n
	m.Op = op
	return &m
}

// Unfuse turns the casts of every op that fused does not claim into Quantize
// ops behind it, through an F32 temp, which gives the same bits: a cast is
// defined on the op's FP32 result. Ops whose only cast is a plain F32 or BF16
// store stay as they are.
func Unfuse(p *Program, fused func(Op) bool) (*Program, error) {
	return rewrite(p, func(r *record, n *Node) {
		if _, ok := n.Op.(*Quantize); ok || fused(n.Op) {
			r.add(n)
			return
		}
		var quantize []*Quantize
		op := cloneOp(n.Op, func(t *Tensor) *Tensor { return t })
		v := reflect.ValueOf(op).Elem()
		for i := range v.NumField() {
			if v.Type().Field(i).Type != castsType {
				continue
			}
			casts := v.Field(i).Interface().([]Cast)
			if len(casts) == 0 || len(casts) == 1 && plainStore(casts[0]) {
				continue
			}
			rows, cols := casts[0].Out.Rows(), casts[0].Out.Cols()
			if casts[0].Transpose {
				rows, cols = cols, rows
			}
			wide := &Tensor{
				Name: casts[0].Out.Name + ".f32", DType: fp8.F32,
				Shape: []int{rows, cols}, LD: cols, Class: Temp,
			}
			r.declare(wide)
			quantize = append(quantize, &Quantize{X: wide, Out: casts})
			v.Field(i).Set(reflect.ValueOf([]Cast{{Out: wide}}))
		}
		r.add(n.with(op))
		for _, q := range quantize {
			r.add(n.with(q))
		}
	})
}

func plainStore(c Cast) bool {
	return c.Scale == nil && c.Amax == nil && !c.Transpose && c.Rounding == fp8.Nearest &&
		(c.Out.DType == fp8.F32 || c.Out.DType == fp8.BF16)
}
