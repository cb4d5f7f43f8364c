package cuda

import "octet/backend"

// workspaceBytes is what NVIDIA recommends for cuBLASLt on Hopper and later.
const workspaceBytes = 32 << 20

// block is the sizes of the memory that programs loaded together share, in this order:
// temps, cuBLASLt's workspace, scratch of kernels, tables of kernels.
type block struct{ temps, workspace, scratch, tables int64 }

// measure binds programs to arbitrary addresses and returns how much memory they need.
func measure(plan *backend.Plan, programs []*backend.Program) (block, error) {
	b := binder{address: func(t *backend.Tensor) uint64 { return uint64(align + t.DType.Bytes(t.Offset)) }}
	if _, err := b.bindAll(programs); err != nil {
		return block{}, err
	}
	size := block{temps: backend.Aligned(plan.Bytes, align), scratch: backend.Aligned(b.scratch, align), tables: backend.Aligned(int64(8*len(b.tables)), align)}
	if b.hasGEMM {
		size.workspace = workspaceBytes
	}
	return size, nil
}

// outline returns what Load allocates.
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
		Extra: []backend.Share{
			{Name: "cuBLASLt's workspace", Bytes: size.workspace},
			{Name: "scratch of kernels", Bytes: size.scratch},
			{Name: "tables of kernels", Bytes: size.tables},
			{Name: "alignment", Bytes: alignment},
		},
		// An estimate for CUDA's context, compiled kernels and cuBLASLt's own memory on a
		// Hopper. Usage measures it on a device.
		Outside: []backend.Share{{Name: "context, kernels, cuBLASLt", Bytes: 600 << 20}},
	}, nil
}
