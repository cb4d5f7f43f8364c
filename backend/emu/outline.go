package emu

import (
	"fmt"

	"octet/backend"
)

// What a process has beside the memory of tensors: of Go's runtime, mostly its lists of
// blocks for each size of object, and of every op what is recorded and bound of it.
// Both are rounded from what train's TestMemoryIsAsPlanned measures.
const (
	runtimeBytes = 2 << 20
	opBytes      = 4 << 10
)

// outline is the temps of all programs, what the threads need to decode and pack the
// operands of products, and what Go takes. Other ops take less, from the same scratch;
// the device models and AMX take about as much.
func outline(s backend.Spec, programs []*backend.Program) (o backend.Outline, err error) {
	o.Temps = backend.MakePlan(arenaAlign, backend.PerOp, programs...).Bytes
	scratch, ops := 0, 0
	for _, p := range programs {
		ops += len(p.Nodes())
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
	o.Beside = []backend.Share{
		{Name: name, Bytes: int64(s.Threads) * (4*int64(scratch) + workerGap)},
		{Name: "Go's runtime and ops", Bytes: runtimeBytes + int64(ops)*opBytes},
	}
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
