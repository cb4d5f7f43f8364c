package cuda

import "octet/backend"

// workspaceBytes is what NVIDIA recommends for cuBLASLt on Hopper and later.
const workspaceBytes = 32 << 20

// block is the memory that programs which are loaded together share, in this
// order: temps, cuBLASLt's workspace, what kernels need beside their operands, and
// the tables that they read.
type block struct{ temps, workspace, scratch, tables int64 }

// measure binds programs to no memory in particular, to see how much they need.
func measure(plan *backend.Plan, programs []*backend.Program) (block, error) {
	b := binder{address: func(t *backend.Tensor) uint64 { return uint64(align + t.Offset*t.DType.Size()) }}
	if _, err := b.bindAll(programs); err != nil {
		return block{}, err
	}
	size := block{temps: backend.Aligned(plan.Bytes, align), scratch: backend.Aligned(b.scratch, align), tables: backend.Aligned(int64(8*len(b.tables)), align)}
	if b.products {
		size.workspace = workspaceBytes
	}
	return size, nil
}

// outline is what Load takes, and Bind for alignment.
func outline(_ backend.Spec, programs []*backend.Program) (o backend.Outline, err error) {
	plan := backend.MakePlan(align, backend.PerOp, programs...)
	size, err := measure(plan, programs)
	if err != nil {
		return o, err
	}
	alignment := size.temps - plan.Bytes
	for t := range programs[0].Vars().All() {
		if t.Base == nil {
			alignment += backend.Aligned(t.Bytes(), align) - t.Bytes()
		}
	}
	return backend.Outline{
		Temps: plan.Bytes,
		Beside: []backend.Share{
			{Name: "cuBLASLt's workspace", Bytes: size.workspace},
			{Name: "scratch of kernels", Bytes: size.scratch},
			{Name: "tables of kernels", Bytes: size.tables},
			{Name: "alignment", Bytes: alignment},
		},
		// Of CUDA's context, compiled kernels and cuBLASLt's own on a Hopper: a guess.
		// What they are on a device, Usage tells.
		Outside: []backend.Share{{Name: "context, kernels, cuBLASLt", Bytes: 600 << 20}},
	}, nil
}
