//go:build cuda && cgo && linux

package libcuda

// #cgo noescape octet_matmul_run
// #cgo nocallback octet_matmul_run
// #include "libcuda.h"
import "C"

import (
	"encoding/binary"
	"errors"
	"fmt"

	"octet/fp8"
)

// Lt is cuBLASLt on a device.
type Lt struct {
	Library

	d   *Device
	lib cublasLt
	lt  C.octet_handle
}

// NewLt loads the newest cuBLASLt that the device's driver supports and creates its
// handle, which allocates some device memory.
func (d *Device) NewLt() (*Lt, error) {
	lib, err := openCublasLt(d.Version)
	if err != nil {
		return nil, err
	}
	l := &Lt{Library: Library{lib.Path, cublasLtVersion(lib)}, d: d, lib: lib}
	return l, l.check(C.octet_lt_new(&d.c, lib.Table, &l.lt))
}

// Close destroys the handle. Close all MatMuls before.
func (l *Lt) Close() error { return l.check(C.octet_lt_free(&l.d.c, l.lib.Table, l.lt)) }

// check returns the error of a status. An entry may have failed in the driver, before it
// called cuBLASLt.
func (l *Lt) check(s C.octet_status) error {
	if s.code == 0 {
		return nil
	}
	if e := (&Error{Call: C.GoString(s.call)}); e.driver() {
		return l.d.check(s)
	}
	return failed(s, func(code C.int) *C.char { return C.octet_cublaslt_text(l.lib.Table, code) })
}

// Matrix is a row-major operand of a GEMM in device memory.
type Matrix struct {
	DType fp8.DType // F32, BF16, F16, E4M3, E5M2, or E2M1 for A and B
	Data  Ptr
	LD    int // elements between the starts of rows
	// Scale_inv of A and B, in Mode's format and layout, or scale of D, F32 [1]; for FP8 only.
	// 0 means 1.
	Scale Ptr
	Mode  ScaleMode // of A and B
}

// Gemm is a GEMM of row-major matrices,
//
//	v = Alpha·A.Scale·B.Scale·op(A)·op(B) + Beta·C
//	AmaxD = max |v|
//	D = round(v·D.Scale)
//
// with op(A) of M×K, op(B) of K×N and sums in FP32. A is stored as [M, K], or as [K, M]
// if transposed; B as [K, N] or [N, K].
//
// cuBLASLt's rules (its documentation, section cublasLtMatmul): A and B have the same
// wide format, or both are FP8 and not both E5M2. On Ada and Hopper FP8 requires TransB
// without TransA. For FP8, addresses, row lengths and LDs must be multiples of 16 bytes,
// and N and K multiples of 16 whatever D's format (cuBLASLt calls our N its M). D may be
// wide, or FP8 for FP8 operands: E5M2 only if one of them is. C has D's format, or 16
// bits if D is FP8, and may be D itself if it has D's format.
//
// Scales of A and B that are not per tensor multiply elements or partial sums, where the
// equation has A.Scale and B.Scale. D is then wide, and these modes exist (the same
// documentation):
//
//	compute capability 9.0, CUDA 12.9   PerRow × PerRow; Vec128 × Vec128, Vec128 × Block128
//	                                    and Block128 × Vec128 with M in multiples of 4
//	10.0 and later, CUDA 12.8           Vec32E8M0 × Vec32E8M0; Vec16E4M3 × Vec16E4M3 for E2M1,
//	                                    whose K is a multiple of 32
type Gemm struct {
	M, N, K        int
	TransA, TransB bool
	A, B, D        Matrix
	C              Matrix // Data 0: no C
	Alpha, Beta    float32
	Factors        Ptr  // Alpha and Beta, F32 [2] in device memory; Beta still says whether there is a C. 0: the fields
	AmaxD          Ptr  // F32 [1], overwritten; FP8 D only; 0: no amax
	FastAccum      bool // FP8: accumulate in the tensor core, without promotion to FP32 registers
	SplitK         bool // Algos may include split-k, which sums in an order of its own
}

func (g *Gemm) String() string {
	t := map[bool]string{true: "ᵀ"}
	return fmt.Sprintf("%d×%d×%d GEMM %s%s·%s%s in %s", g.M, g.N, g.K, g.A.DType, t[g.TransA], g.B.DType, t[g.TransB], g.D.DType)
}

// formats are the shim's numbers of cuBLASLt's formats.
var formats = map[fp8.DType]C.int{
	fp8.F32: C.OCTET_F32, fp8.BF16: C.OCTET_BF16, fp8.F16: C.OCTET_F16, fp8.E4M3: C.OCTET_E4M3, fp8.E5M2: C.OCTET_E5M2, fp8.E2M1: C.OCTET_E2M1,
}

// MatMul is a Gemm described to cuBLASLt: sizes, formats and addresses.
type MatMul struct {
	Gemm

	lt *Lt
	p  *C.octet_matmul
}

// NewMatMul describes a GEMM to cuBLASLt. Algos reports whether cuBLASLt supports it.
func (l *Lt) NewMatMul(g Gemm) (*MatMul, error) {
	c := C.octet_gemm{
		m: C.int64_t(g.M), n: C.int64_t(g.N), k: C.int64_t(g.K),
		trans_a: flag(g.TransA), trans_b: flag(g.TransB), fast: flag(g.FastAccum), split: flag(g.SplitK),
		alpha: C.float(g.Alpha), beta: C.float(g.Beta), amax: C.uint64_t(g.AmaxD), factors: C.uint64_t(g.Factors),
	}
	for _, o := range []struct {
		name string
		from Matrix
		to   *C.octet_matrix
	}{{"A", g.A, &c.a}, {"B", g.B, &c.b}, {"C", g.C, &c.c}, {"D", g.D, &c.d}} {
		format, ok := formats[o.from.DType]
		if !ok && (o.name != "C" || g.C.Data != 0) {
			return nil, fmt.Errorf("%v: cuBLASLt has no format %s for %s", &g, o.from.DType, o.name)
		}
		*o.to = C.octet_matrix{format: format, ld: C.int64_t(o.from.LD), data: C.uint64_t(o.from.Data), scale: C.uint64_t(o.from.Scale), mode: C.int(o.from.Mode)}
	}
	if g.C.Data == 0 && g.Beta != 0 {
		return nil, fmt.Errorf("%v: Beta is %v, but there is no C", &g, g.Beta)
	}
	p := &MatMul{Gemm: g, lt: l}
	if err := l.check(C.octet_matmul_new(l.lib.Table, &c, &p.p)); err != nil {
		return nil, fmt.Errorf("%v: %w", &g, err)
	}
	return p, nil
}

func flag(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

// Close frees the description.
func (p *MatMul) Close() { C.octet_matmul_free(p.lt.lib.Table, p.p) }

// Algo is an algorithm for a GEMM, valid for every GEMM of the same sizes, formats and
// alignments.
type Algo struct {
	Workspace int // bytes that Run needs
	Splits    int // parts into which K is split; 1: each sum has one order

	data [8]C.uint64_t
}

// Algos returns up to limit algorithms that need at most workspace bytes, the fastest by
// cuBLASLt's estimate first. Split-k algorithms are included only if g.SplitK is set. If
// there is none, the error is ErrNoAlgorithm.
func (p *MatMul) Algos(workspace, limit int) ([]Algo, error) {
	found := make([]C.octet_algo, max(1, limit))
	count := C.int(len(found))
	err := p.lt.check(C.octet_matmul_algos(&p.lt.d.c, p.lt.lib.Table, p.lt.lt, p.p, C.size_t(workspace), &found[0], &count))
	if e := (*Error)(nil); errors.As(err, &e) && e.cublas() && e.Code == 15 { // CUBLAS_STATUS_NOT_SUPPORTED
		err = fmt.Errorf("%w: %w", ErrNoAlgorithm, err)
	} else if err == nil && count == 0 {
		err = ErrNoAlgorithm
	}
	if err != nil {
		return nil, fmt.Errorf("%v: %w", &p.Gemm, err)
	}
	var algos []Algo
	for _, a := range found[:count] {
		algos = append(algos, algoOf(a))
	}
	return algos, nil
}

// ErrNoAlgorithm means that cuBLASLt does not support a GEMM of these sizes, formats and
// addresses on this device.
var ErrNoAlgorithm = errors.New("cuBLASLt has no algorithm for it")

// Code is cuBLASLt's opaque code of an algorithm, valid in every process with the same
// version of the library (cublasLt.h, cublasLtMatmulAlgo_t).
type Code [64]byte

// Code returns the code, which can be stored and passed to MatMul.Algo.
func (a *Algo) Code() (c Code) {
	for i, word := range a.data {
		binary.NativeEndian.PutUint64(c[8*i:], uint64(word))
	}
	return c
}

// Algo returns the algorithm of a code, or an error if cuBLASLt does not support it for
// this GEMM on this device.
func (p *MatMul) Algo(c Code) (Algo, error) {
	var a C.octet_algo
	for i := range a.data {
		a.data[i] = C.uint64_t(binary.NativeEndian.Uint64(c[8*i:]))
	}
	if err := p.lt.check(C.octet_matmul_check(&p.lt.d.c, p.lt.lib.Table, p.lt.lt, p.p, &a)); err != nil {
		return Algo{}, fmt.Errorf("%v: %w", &p.Gemm, err)
	}
	return algoOf(a), nil
}

func algoOf(a C.octet_algo) Algo {
	return Algo{int(a.workspace), int(a.splits), a.data}
}

// Run enqueues the GEMM. The workspace, aligned to 256 bytes, must have the algorithm's
// size, and the GEMM uses it until it is done. Run an algorithm once before capturing it:
// cuBLASLt loads its kernels on first use.
func (p *MatMul) Run(s *Stream, a *Algo, workspace Ptr, bytes int) error {
	c := C.octet_algo{data: a.data}
	status := C.octet_matmul_run(&p.lt.d.c, p.lt.lib.Table, p.lt.lt, p.p, &c, C.uint64_t(workspace), C.size_t(bytes), s.s)
	if status.code == 0 {
		return nil
	}
	err := p.lt.check(status)
	// cuBLASLt has one status for failed launches, whatever the reason; only the driver
	// reports a lost device.
	if e := (*Error)(nil); errors.As(err, &e) && e.cublas() && e.Code == 13 { // CUBLAS_STATUS_EXECUTION_FAILED
		_, lost := s.Idle()
		if errors.As(lost, &e) && e.DeviceLost() {
			err = fmt.Errorf("%w: %w", lost, err)
		}
	}
	return fmt.Errorf("%v: %w", &p.Gemm, err)
}
