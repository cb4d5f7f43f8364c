//go:build cuda && cgo && linux

package cuda

import (
	"octet/backend"
	"octet/csrc/libcuda"
	"octet/fp8"
)

// meter measures what the GPU reaches, by the GPU's own clock: of an FP8 product
// with its sums in the matrix unit, and of a copy. A rate that there is no
// memory to measure is 0, unknown.
type meter struct {
	*device
	dim   int // of the square matrices
	bytes int // of the copy
}

// Meter takes memory of the device, up to 512 MiB, only while it measures. The
// product is large enough for every multiprocessor, the copy for no cache.
func (d *device) Meter() backend.Meter { return &meter{d, 8192, 256 << 20} }

func (m *meter) FLOPs() float64 {
	t := tuner{device: m.device}
	defer t.close()
	codes := roundUp(int64(m.dim) * int64(m.dim))
	t.bytes = align + 4*codes
	at, err := m.gpu.Alloc(int(t.bytes) + workspaceBytes)
	if err != nil {
		return 0
	}
	defer func() { _ = m.gpu.Free(at) }() // at worst it is missing until the process ends
	t.room, t.workspace = at, at+libcuda.Ptr(t.bytes)
	a := matrix{dtype: fp8.E4M3, address: align, ld: m.dim, scale: 1}
	p, ok := t.moved(&product{m: m.dim, n: m.dim, k: m.dim, transB: true, fast: true, a: a, b: a, d: matrix{dtype: fp8.BF16, address: align, ld: m.dim}})
	if !ok {
		return 0
	}
	described, err := m.lt.NewProduct(p.gemm())
	if err != nil {
		return 0
	}
	defer described.Close()
	algo, err := t.algo(&p, described)
	if err != nil {
		return 0
	}
	took, err := t.time(func() error { return described.Run(m.stream, &algo, t.workspace, workspaceBytes) })
	if err != nil {
		return 0
	}
	d := float64(m.dim)
	return 2 * d * d * d / took.Seconds()
}

func (m *meter) Bytes() float64 {
	t := tuner{device: m.device}
	defer t.close()
	at, err := m.gpu.Alloc(2 * m.bytes)
	if err != nil {
		return 0
	}
	defer func() { _ = m.gpu.Free(at) }()
	took, err := t.time(func() error { return m.stream.Copy(at+libcuda.Ptr(m.bytes), at, m.bytes) })
	if err != nil {
		return 0
	}
	return 2 * float64(m.bytes) / took.Seconds()
}
