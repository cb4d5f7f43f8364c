//go:build cuda && cgo && linux

package libcuda

// #cgo noescape octet_product_run
// #cgo nocallback octet_product_run
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

// NewLt loads the newest cuBLASLt that the device's driver serves and starts
// it, which takes some memory of the device.
func (d *Device) NewLt() (*Lt, error) {
	lib, err := openCublasLt(d.Version)
	if err != nil {
		return nil, err
	}
	l := &Lt{Library: Library{lib.Path, cublasLtVersion(lib)}, d: d, lib: lib}
	return l, l.check(C.octet_lt_new(&d.c, lib.Table, &l.lt))
}

// Close ends the library's work on the device. Products need it no more.
func (l *Lt) Close() error { return l.check(C.octet_lt_free(&l.d.c, l.lib.Table, l.lt)) }

// check knows that an entry may have failed in the driver, before it came to
// cuBLASLt.
func (l *Lt) check(s C.octet_status) error {
	if s.code == 0 {
		return nil
	}
	if e := (&Error{Call: C.GoString(s.call)}); e.driver() {
		return l.d.check(s)
	}
	return failed(s, func(code C.int) *C.char { return C.octet_cublaslt_text(l.lib.Table, code) })
}

// Matrix is a row-major operand of a product in device memory.
type Matrix struct {
	DType fp8.DType // F32, BF16, F16, E4M3 or E5M2
	Data  Ptr
	LD    int // elements from one row to the next
	Scale Ptr // F32 [1], of FP8 only; 0 is 1. Dequantises A and B, quantises D
}

// Gemm is a product of row-major matrices,
//
//	v = Alpha·A.Scale·B.Scale·op(A)·op(B) + Beta·C
//	AmaxD = max |v|
//	D = round(v·D.Scale)
//
// with op(A) of M×K, op(B) of K×N and sums in FP32. A without a transpose is
// stored as [M, K], with one as [K, M]; B as [K, N] or [N, K].
//
// What cuBLASLt takes (its documentation, section cublasLtMatmul): A and B both
// of one wide format, or FP8 and not both E5M2. On Ada and Hopper FP8 needs
// TransB without TransA. FP8 needs every address, and the length of every row
// and its distance to the next, to be multiples of 16 bytes, and N and K to be
// multiples of 16 whatever D's format (cuBLASLt calls our N its M). D may be wide, or
// FP8 for FP8 operands: E5M2 only where one of them is. C is of D's format, of
// 16 bits where D is FP8, and may be D itself if it has D's format.
type Gemm struct {
	M, N, K        int
	TransA, TransB bool
	A, B, D        Matrix
	C              Matrix // Data 0: none
	Alpha, Beta    float32
	AmaxD          Ptr  // F32 [1], overwritten; FP8 D only; 0: not wanted
	FastAccum      bool // FP8: partial sums stay in the tensor core's own accumulator
	SplitK         bool // Algos may also find what adds up parts of K in an order of its own
}

func (g *Gemm) String() string {
	t := map[bool]string{true: "ᵀ"}
	return fmt.Sprintf("%d×%d×%d product %s%s·%s%s in %s", g.M, g.N, g.K, g.A.DType, t[g.TransA], g.B.DType, t[g.TransB], g.D.DType)
}

// formats are those that cuBLASLt has, as the shim numbers them.
var formats = map[fp8.DType]C.int{
	fp8.F32: C.OCTET_F32, fp8.BF16: C.OCTET_BF16, fp8.F16: C.OCTET_F16, fp8.E4M3: C.OCTET_E4M3, fp8.E5M2: C.OCTET_E5M2,
}

// Product is a Gemm that cuBLASLt knows: its sizes, formats and addresses.
type Product struct {
	Gemm

	lt *Lt
	p  *C.octet_product
}

// NewProduct describes a product to cuBLASLt. Whether it can be computed, Algos
// tells.
func (l *Lt) NewProduct(g Gemm) (*Product, error) {
	c := C.octet_gemm{
		m: C.int64_t(g.M), n: C.int64_t(g.N), k: C.int64_t(g.K),
		trans_a: flag(g.TransA), trans_b: flag(g.TransB), fast: flag(g.FastAccum), split: flag(g.SplitK),
		alpha: C.float(g.Alpha), beta: C.float(g.Beta), amax: C.uint64_t(g.AmaxD),
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
		*o.to = C.octet_matrix{format: format, ld: C.int64_t(o.from.LD), data: C.uint64_t(o.from.Data), scale: C.uint64_t(o.from.Scale)}
	}
	if g.C.Data == 0 && g.Beta != 0 {
		return nil, fmt.Errorf("%v: Beta is %v and there is no C", &g, g.Beta)
	}
	p := &Product{Gemm: g, lt: l}
	if err := l.check(C.octet_product_new(l.lib.Table, &c, &p.p)); err != nil {
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
func (p *Product) Close() { C.octet_product_free(p.lt.lib.Table, p.p) }

// Algo is one way to compute a product, which holds for every product of the
// same sizes, formats and alignments.
type Algo struct {
	Workspace int // bytes that Run needs
	Splits    int // parts that K is cut into: 1 where every sum has one order

	data [8]C.uint64_t
}

// Algos asks cuBLASLt for ways to compute the product in at most so many bytes
// of workspace, without splitting K unless that is allowed, by its own estimate the
// fastest first.
// That there is none is an error.
func (p *Product) Algos(workspace, limit int) ([]Algo, error) {
	found := make([]C.octet_algo, max(1, limit))
	count := C.int(len(found))
	err := p.lt.check(C.octet_product_algos(&p.lt.d.c, p.lt.lib.Table, p.lt.lt, p.p, C.size_t(workspace), &found[0], &count))
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

// ErrNoAlgorithm says that cuBLASLt does not support a GEMM of these sizes, formats and
// addresses on this device.
var ErrNoAlgorithm = errors.New("cuBLASLt has no algorithm for it")

// Code is what an algorithm is to cuBLASLt: bytes that mean the same to every
// process with the same version of the library (cublasLt.h, cublasLtMatmulAlgo_t).
type Code [64]byte

// Code can be kept, and given to Algo.
func (a *Algo) Code() (c Code) {
	for i, word := range a.data {
		binary.NativeEndian.PutUint64(c[8*i:], uint64(word))
	}
	return c
}

// Algo is the algorithm of a code, if cuBLASLt would compute the product with it
// on this device.
func (p *Product) Algo(c Code) (Algo, error) {
	var a C.octet_algo
	for i := range a.data {
		a.data[i] = C.uint64_t(binary.NativeEndian.Uint64(c[8*i:]))
	}
	if err := p.lt.check(C.octet_product_check(&p.lt.d.c, p.lt.lib.Table, p.lt.lt, p.p, &a)); err != nil {
		return Algo{}, fmt.Errorf("%v: %w", &p.Gemm, err)
	}
	return algoOf(a), nil
}

func algoOf(a C.octet_algo) Algo {
	return Algo{int(a.workspace), int(a.splits), a.data}
}

// Run puts the product on a stream. The workspace, aligned to 256 bytes, has to
// have the algorithm's size and belongs to the product until it is done. What was
// not run before may not be captured: cuBLASLt loads its kernels when it first
// needs them.
func (p *Product) Run(s *Stream, a *Algo, workspace Ptr, bytes int) error {
	c := C.octet_algo{data: a.data}
	status := C.octet_product_run(&p.lt.d.c, p.lt.lib.Table, p.lt.lt, p.p, &c, C.uint64_t(workspace), C.size_t(bytes), s.s)
	if status.code == 0 {
		return nil
	}
	err := p.lt.check(status)
	// cuBLASLt has one status for launches that failed, whatever the reason: that
	// the device is lost, the driver says.
	if e := (*Error)(nil); errors.As(err, &e) && e.cublas() && e.Code == 13 { // CUBLAS_STATUS_EXECUTION_FAILED
		_, lost := s.Idle()
		if errors.As(lost, &e) && e.DeviceLost() {
			err = fmt.Errorf("%w: %w", lost, err)
		}
	}
	return fmt.Errorf("%v: %w", &p.Gemm, err)
}
