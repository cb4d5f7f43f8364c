package emu

import (
	"fmt"

	"octet/backend"
)

// outline is the temps of all programs, and what the threads need to decode and pack
// the operands of products. Other ops take less, from the same scratch; the device
// models and AMX take about as much.
func outline(s backend.Spec, programs []*backend.Program) (o backend.Outline, err error) {
	o.Temps = backend.MakePlan(arenaAlign, backend.PerOp, programs...).Bytes
	scratch := 0
	for _, p := range programs {
		for _, n := range p.Nodes() {
			if m, ok := n.Op.(*backend.MatMul); ok {
				scratch = max(scratch, scratchOf(m, s.Threads))
			}
		}
	}
	unit := "threads"
	if s.Threads == 1 {
		unit = "thread"
	}
	name := fmt.Sprintf("scratch of %d %s", s.Threads, unit)
	o.Beside = []backend.Share{{Name: name, Bytes: int64(s.Threads) * (4*int64(scratch) + workerGap)}}
	return o, nil
}

// scratchOf is what one thread needs of a product, in floats.
func scratchOf(o *backend.MatMul, threads int) int {
	m, k := orient(matrix{rows: o.A.Rows(), cols: o.A.Cols()}, o.TransA)
	kernel := gemmKernels()[0]
	scratch := func(k int) int {
		plan := planGemm(kernel, m, o.Out.Cols(), k, depthUnit, o.TransA, threads)
		return plan.scratch()
	}
	if kernel.pairs != nil {
		return max(scratch(k), scratch(parts(k, 2)))
	}
	return scratch(k)
}
