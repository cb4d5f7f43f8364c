//go:build cuda && cgo && linux

package cuda

import (
	"time"

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

// enough is how long a product takes that keeps every multiprocessor busy, and
// largestDim where its matrices end, at 256 MiB for all three.
const (
	enough     = 500 * time.Microsecond
	largestDim = 8192
)

// Meter takes memory of the device, up to 512 MiB, only while it measures. The
// copy is too large for any cache.
func (d *device) Meter() backend.Meter { return &meter{d, 256, 256 << 20} }

// FLOPs measures the product at a size that grows until it takes long enough.
func (m *meter) FLOPs() float64 {
	for {
		var took time.Duration
		err := m.watched("measure FLOPs", func() error { took = m.product(); return nil })
		if err != nil || took == 0 { // an ended group measures nothing
			return 0
		}
		if took >= enough || m.dim >= largestDim {
			d := float64(m.dim)
			return 2 * d * d * d / took.Seconds()
		}
		m.dim *= 2
	}
}

// product is the time of one, 0 if it cannot be measured.
func (m *meter) product() time.Duration {
	t := newTuner(m.device, noChoices(m.lt.Version))
	defer t.close()
	t.bytes = align + 4*(backend.Aligned(int64(m.dim)*int64(m.dim), align)+align)
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
	return took
}

func (m *meter) Bytes() float64 {
	t := newTuner(m.device, noChoices(m.lt.Version))
	defer t.close()
	at, err := m.gpu.Alloc(2 * m.bytes)
	if err != nil {
		return 0
	}
	defer func() { _ = m.gpu.Free(at) }()
	var took time.Duration
	err = m.watched("measure the memory's bandwidth", func() (err error) {
		took, err = t.time(func() error { return m.stream.Copy(at+libcuda.Ptr(m.bytes), at, m.bytes) })
		return err
	})
	if err != nil {
		return 0
	}
	return 2 * float64(m.bytes) / took.Seconds()
}
