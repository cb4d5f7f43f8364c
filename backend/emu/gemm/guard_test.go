//go:build linux || darwin

package gemm

import (
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/fp8"
)

// fenced returns n bytes that end, or begin, at an inaccessible page.
func fenced(t *testing.T, n int, atEnd bool) []byte {
	page := syscall.Getpagesize()
	size := pool.RoundUp(max(n, 1), page)
	all, err := syscall.Mmap(-1, 0, size+2*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, syscall.Munmap(all)) })
	require.NoError(t, syscall.Mprotect(all[:page], syscall.PROT_NONE))
	require.NoError(t, syscall.Mprotect(all[page+size:], syscall.PROT_NONE))
	if atEnd {
		return all[page+size-n : page+size]
	}
	return all[page : page+n]
}

func fencedMatrix(t *testing.T, d fp8.DType, rows, cols int, atEnd bool) memory.Matrix {
	m := memory.Matrix{DType: d, Rows: rows, Cols: cols, LD: cols}
	n := rows * cols
	raw := unsafe.Pointer(unsafe.SliceData(fenced(t, n*d.Size(), atEnd)))
	switch d.Size() {
	case 4:
		m.F32 = unsafe.Slice((*float32)(raw), n)
	case 2:
		m.U16 = unsafe.Slice((*uint16)(raw), n)
	default:
		m.U8 = unsafe.Slice((*uint8)(raw), n)
	}
	return m
}

// No kernel reads or writes beyond its operands, also with partial vectors.
func TestGemmStaysInside(t *testing.T) {
	p := pool.New(1)
	defer p.Close()
	for _, atEnd := range []bool{false, true} {
		for _, d := range []fp8.DType{fp8.F32, fp8.BF16, fp8.E4M3, fp8.E5M2, fp8.INT8} {
			for _, shape := range [][3]int{{1, 1, 1}, {3, 17, 15}, {15, 33, 31}, {17, 31, 50}} {
				m, n, k := shape[0], shape[1], shape[2]
				for trans := range 4 {
					transA, transB := trans&1 > 0, trans&2 > 0
					a, b := fencedMatrix(t, d, m, k, atEnd), fencedMatrix(t, d, k, n, atEnd)
					if transA {
						a.Rows, a.Cols, a.LD = k, m, m
					}
					if transB {
						b.Rows, b.Cols, b.LD = n, k, k
					}
					out := fencedMatrix(t, d, m, n, atEnd)
					e := Epilogue{}
					if d != fp8.E5M2 {
						e.Residual = fencedMatrix(t, []fp8.DType{fp8.F32, fp8.BF16}[trans&1], m, n, atEnd)
					}
					scales := fencedMatrix(t, fp8.F32, 1, m+n, atEnd).F32
					e.RowScale, e.ColScale = scales[:m], scales[m:]
					for _, kernel := range testedKernels() {
						g, err := NewWith(kernel, p, a, transA, b, transB, out)
						require.NoError(t, err)
						g.Run(e)
					}
				}
			}
		}
	}
}
