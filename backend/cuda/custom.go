package cuda

import (
	"fmt"
	"strings"

	"octet/backend"
	"octet/csrc/libcuda/kernels"
)

// maxArgBytes is the size of a kernel's parameters before CUDA 12.1 (CUDA C++ programming
// guide, function parameters).
const maxArgBytes = 4096

// rowOf returns an op's row. For a backend.Looped op without one it returns a row that runs
// its CUDA source.
func rowOf(op backend.Op) (r row, ok bool) {
	if r, ok = ops.Of(op); ok {
		return r, true
	}
	_, ok = op.(backend.Looped)
	return row{bind: (*binder).loop}, ok
}

func (b *binder) loop(n *backend.Node) ([]call, error) {
	loop := n.Op.(backend.Looped).Loop()
	switch {
	case loop.WholeRows:
		return nil, unsupported(n, "the Loop of %T has WholeRows, but CUDA source computes single elements: split the op into built-in ops and loops over elements, or run it on emu", n.Op)
	case loop.CUDA == "":
		return nil, unsupported(n, "the Loop of %T has no CUDA source: set Loop.CUDA", n.Op)
	}
	var args []uint64
	for _, t := range loop.In {
		words := b.tensor(t)
		if t.Rows() == 1 {
			words[1] = 0 // every row of the results reads this one
		}
		args = append(args, words...)
	}
	for _, casts := range loop.Out {
		args = append(args, b.casts(casts)...)
	}
	rows, cols := backend.ResultShape(loop.Out[0])
	args = append(args, uint64(rows), uint64(cols))
	if bytes := 8 * (len(args) + 1); bytes > maxArgBytes {
		return nil, unsupported(n, "its %d inputs and %d results need %d bytes of kernel arguments, the maximum is %d: split the op", len(loop.In), len(loop.Out), bytes, maxArgBytes)
	}
	launches, text := kernels.Loop(strings.TrimPrefix(fmt.Sprintf("%T", n.Op), "*"), loop.CUDA, len(loop.In), len(loop.Out), rows, cols)
	calls := b.launches(launches, args)
	calls[0].launch.source.text = text
	return calls, nil
}
