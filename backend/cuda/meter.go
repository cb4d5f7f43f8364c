//go:build cuda && cgo && linux

package cuda

import (
	"time"

	"octet/backend"
	"octet/csrc/libcuda"
	"octet/fp8"
)

// meter measures rates that the GPU reaches, by the GPU's own clock: of an FP8 GEMM with
// fast accumulation, and of a copy. Without enough memory a rate is 0, unknown.
type meter struct {
	*device
	dim   int // of the square matrices
	bytes int // of the copy
}

// minTime is the shortest run of a GEMM that counts as a measurement, and maxDim bounds
// its matrices: 256 MiB for all three.
const (
	minTime = 500 * time.Microsecond
	maxDim  = 8192
)

// Meter returns a meter that allocates up to 512 MiB of device memory, only while it
// measures. The copy exceeds every cache.
func (d *device) Meter() backend.Meter { return &meter{d, 256, 256 << 20} }

// FLOPs measures GEMMs of growing size until one takes minTime.
func (m *meter) FLOPs() float64 {
	for {
		took := m.timeGEMM()
		if took == 0 {
			return 0
		}
		if took >= minTime || m.dim >= maxDim {
			d := float64(m.dim)
			return 2 * d * d * d / took.Seconds()
		}
		m.dim *= 2
	}
}

// timeGEMM returns the duration of one GEMM, 0 if it cannot be measured.
func (m *meter) timeGEMM() time.Duration {
	t := newTuner(m.device, noChoices(m.lt.Version))
	defer t.close()
	t.bytes = align + 4*(backend.Aligned(int64(m.dim)*int64(m.dim), align)+align)
	at, err := m.gpu.Alloc(int(t.bytes) + workspaceBytes)
	if err != nil {
		return 0
	}
	defer func() { _ = m.gpu.Free(at) }() // at worst it leaks until the process exits
	t.buffer, t.workspace = at, at+libcuda.Ptr(t.bytes)
	a := matrix{dtype: fp8.E4M3, address: align, ld: m.dim, scale: 1}
	p, ok := t.moved(&gemm{m: m.dim, n: m.dim, k: m.dim, transB: true, fast: true, a: a, b: a, d: matrix{dtype: fp8.BF16, address: align, ld: m.dim}})
	if !ok {
		return 0
	}
	matMul, err := m.lt.NewMatMul(p.ltGemm())
	if err != nil {
		return 0
	}
	defer matMul.Close()
	algo, err := t.algo(&p, matMul)
	if err != nil {
		return 0
	}
	took, err := t.time(func() error { return matMul.Run(m.stream, &algo, t.workspace, workspaceBytes) })
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
	took, err := t.time(func() error { return m.stream.Copy(at+libcuda.Ptr(m.bytes), at, m.bytes) })
	if err != nil {
		return 0
	}
	return 2 * float64(m.bytes) / took.Seconds()
}
