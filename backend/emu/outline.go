package emu

import (
	"fmt"

	"octet/backend"
	"octet/backend/emu/gemm"
	"octet/backend/emu/pool"
)

// Memory of a process besides tensors: Go's runtime, mostly its free lists for each
// object size, and each op's node and kernel. Both figures are rounded from what
// train's TestMemoryIsAsPlanned measures.
const (
	runtimeBytes = 2 << 20
	opBytes      = 4 << 10
)

// outline returns the bytes of the programs' temps, of the threads' scratch, and of Go.
// GEMMs need the most scratch, to decode and pack operands; other ops share it. The
// device models and AMX need about as much.
func outline(s backend.Spec, programs []*backend.Program) (o backend.Outline, err error) {
	o.Temps = backend.MakePlan(pool.CacheLine, grouped(programs...), programs...).Bytes
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
	o.Extra = []backend.Share{
		{Name: name, Bytes: int64(s.Threads) * (4*int64(scratch) + pool.WorkerGap)},
		{Name: "Go's runtime and ops", Bytes: runtimeBytes + int64(ops)*opBytes},
	}
	return o, nil
}

// scratchOf returns the scratch of one thread for a GEMM, in floats.
func scratchOf(o *backend.MatMul, threads int) int {
	k := o.A.Cols()
	if o.TransA {
		k = o.A.Rows()
	}
	return gemm.Scratch(o.Out.Rows(), o.Out.Cols(), k, o.TransA, threads)
}
