//go:build cuda && cgo && linux

package cuda

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"octet/backend"
	"octet/csrc/libcuda"
	"octet/fp8"
)

// This file chooses a cuBLASLt algorithm for each GEMM. cuBLASLt's heuristics order the
// candidates by an estimate. The first few are timed on unused memory, once per kind of
// GEMM and kind of GPU (choices.go). Split-k algorithms are excluded: they sum their
// parts in an order of their own.

// candidates is how many algorithms are timed, and trials how often.
const (
	candidates = 8
	trials     = 4
)

// gemmKey identifies a kind of GEMM: all of a kind share an algorithm.
type gemmKey struct {
	m, n, k        int
	transA, transB bool
	fast, c        bool
	formats        [3]fp8.DType
	ld             [4]int
	alignment      [4]uint64
}

func (p *gemm) key() gemmKey {
	k := gemmKey{
		m: p.m, n: p.n, k: p.k, transA: p.transA, transB: p.transB, fast: p.fast, c: p.beta != 0,
		formats: [3]fp8.DType{p.a.dtype, p.b.dtype, p.d.dtype},
	}
	for i, x := range []matrix{p.a, p.b, p.c, p.d} {
		k.ld[i], k.alignment[i] = x.ld, min(x.address&-x.address, align)
	}
	return k
}

// ltGemm returns the GEMM as cuBLASLt's binding takes it.
func (p *gemm) ltGemm() libcuda.Gemm {
	of := func(m matrix) libcuda.Matrix {
		return libcuda.Matrix{DType: m.dtype, Data: libcuda.Ptr(m.address), LD: m.ld, Scale: libcuda.Ptr(m.scale), Mode: m.mode}
	}
	return libcuda.Gemm{
		M: p.m, N: p.n, K: p.k, TransA: p.transA, TransB: p.transB,
		A: of(p.a), B: of(p.b), C: of(p.c), D: of(p.d),
		Alpha: 1, Beta: p.beta, Factors: libcuda.Ptr(p.factors), FastAccum: p.fast,
	}
}

// tuner prepares calls while programs are loaded.
type tuner struct {
	*device
	buffer    libcuda.Ptr // unused memory
	bytes     int64       // of buffer
	workspace libcuda.Ptr
	own       bool // moved allocated the buffer
	chosen    choices
	algos     map[string]libcuda.Algo // by kind
	events    [2]*libcuda.Event
}

// newTuner returns a tuner that adds its choices to chosen.
func newTuner(d *device, chosen choices) *tuner {
	return &tuner{device: d, chosen: chosen, algos: map[string]libcuda.Algo{}}
}

func (t *tuner) close() {
	t.cache.Lock()
	t.cache.save()
	t.cache.Unlock()
	if t.own {
		_ = t.gpu.Free(t.buffer) // at worst it leaks until the process exits
	}
	for _, e := range t.events {
		if e != nil {
			_ = e.Close()
		}
	}
}

// prepare returns kernels and algorithms for the calls of one node.
func (t *tuner) prepare(calls []call) ([]readyCall, error) {
	var list []readyCall
	for _, c := range calls {
		if c.collective != nil {
			list = append(list, readyCall{collective: c.collective})
			continue
		}
		if c.gemm == nil {
			f, err := t.function(c.launch)
			if err != nil {
				return list, err
			}
			list = append(list, readyCall{function: f, launch: c.launch})
			continue
		}
		p, err := t.lt.NewMatMul(c.gemm.ltGemm())
		if err != nil {
			return list, err
		}
		list = append(list, readyCall{gemm: p})
		if list[len(list)-1].algo, err = t.algo(c.gemm, p); err != nil {
			return list, err
		}
	}
	return list, nil
}

// algo returns the algorithm for a GEMM and chooses it if its kind is new.
func (t *tuner) algo(p *gemm, matMul *libcuda.MatMul) (libcuda.Algo, error) {
	kind := fmt.Sprintf("%+v", p.key())
	if p.a.mode != libcuda.PerTensor {
		kind += fmt.Sprintf(" scales %d %d", p.a.mode, p.b.mode)
	}
	if algo, ok := t.algos[kind]; ok {
		return algo, nil
	}
	algo, err := t.choose(kind, p, matMul)
	if err == nil {
		t.algos[kind], t.chosen.Algorithms[kind] = algo, algorithm(algo.Code())
	}
	return algo, err
}

// choose returns the algorithm that the resumed run had, or the cached one of this kind
// of GPU, or the fastest.
func (t *tuner) choose(kind string, p *gemm, matMul *libcuda.MatMul) (libcuda.Algo, error) {
	t.cache.Lock()
	defer t.cache.Unlock()
	for _, from := range []choices{t.earlier, t.cache.choices} {
		code, ok := from.Algorithms[kind]
		if !ok {
			continue
		}
		algo, err := matMul.Algo(libcuda.Code(code))
		if err != nil || !fits(&algo) {
			continue // this device may not support it
		}
		if _, _, err = t.fastest(p, []libcuda.Algo{algo}); !refused(err) {
			return algo, err
		}
	}
	list, err := matMul.Algos(workspaceBytes, candidates)
	if err != nil {
		return libcuda.Algo{}, err
	}
	list = slices.DeleteFunc(list, func(a libcuda.Algo) bool { return !fits(&a) })
	if len(list) == 0 {
		return libcuda.Algo{}, fmt.Errorf("%v: %w without split-k", &matMul.Gemm, libcuda.ErrNoAlgorithm)
	}
	place, timed, err := t.fastest(p, list)
	if err != nil {
		return libcuda.Algo{}, err
	}
	if timed {
		t.cache.set(kind, algorithm(list[place].Code()))
	}
	return list[place], nil
}

// unsupportedGEMM returns the error for a node that no cuBLASLt algorithm supports.
func unsupportedGEMM(n *backend.Node, reason error) error {
	o := n.Op.(*backend.MatMul)
	return unsupported(n, "A is %s, B is %s and Out is %s: %v", o.A, o.B, o.Out, reason)
}

// refused reports whether cuBLASLt refused an algorithm, so that another one may work.
func refused(err error) bool {
	e := (*libcuda.Error)(nil)
	return errors.As(err, &e) && e.Refused()
}

// fits reports whether an algorithm is deterministic and its workspace large enough.
func fits(a *libcuda.Algo) bool { return a.Splits <= 1 && a.Workspace <= workspaceBytes }

// fastest runs algorithms, times them if there are several, and returns the index of the
// fastest. Without memory to run them it returns the first, untimed. It skips algorithms
// that cuBLASLt's heuristics offer but cuBLASLt refuses to run.
func (t *tuner) fastest(p *gemm, list []libcuda.Algo) (place int, timed bool, err error) {
	moved, ok := t.moved(p)
	if !ok {
		return 0, false, nil
	}
	on, err := t.lt.NewMatMul(moved.ltGemm())
	if err != nil {
		return 0, false, err
	}
	defer on.Close()
	run := func(i int) error { return on.Run(t.stream, &list[i], t.workspace, workspaceBytes) }
	if len(list) == 1 {
		if err := run(0); err != nil {
			return 0, false, err
		}
		return 0, false, t.stream.Synchronize()
	}
	place = -1
	var best time.Duration
	var refusal error
	for i := range list {
		took, err := t.time(func() error { return run(i) })
		if refused(err) {
			refusal = err
			continue
		}
		if err != nil {
			return 0, false, err
		}
		if place < 0 || took < best {
			place, best = i, took
		}
	}
	if place < 0 {
		return 0, false, refusal
	}
	return place, true, nil
}

// time runs work once to warm up and then trials times between two events, and returns
// the mean duration.
func (t *tuner) time(work func() error) (time.Duration, error) {
	for i := range t.events {
		if t.events[i] == nil {
			var err error
			if t.events[i], err = t.gpu.NewEvent(); err != nil {
				return 0, err
			}
		}
	}
	for i := range 1 + trials {
		if i == 1 {
			if err := t.stream.Record(t.events[0]); err != nil {
				return 0, err
			}
		}
		if err := work(); err != nil {
			return 0, err
		}
	}
	if err := t.stream.Record(t.events[1]); err != nil {
		return 0, err
	}
	took, err := t.events[1].Since(t.events[0])
	return took / trials, err
}

// moved returns the GEMM with operands in unused memory, at the same alignment. Their
// bytes are small positive numbers in every format: with zeros a GPU draws less power and
// runs faster.
func (t *tuner) moved(p *gemm) (gemm, bool) {
	const pattern = 0x3a
	q, end := *p, int64(align)
	rowsA, rowsB := q.m, q.k
	if q.transA {
		rowsA = q.k
	}
	if q.transB {
		rowsB = q.n
	}
	list := []*matrix{&q.a, &q.b, &q.c, &q.d}
	for i, rows := range []int{rowsA, rowsB, q.m, q.m} {
		if m := list[i]; m.address != 0 {
			m.address = uint64(end) + m.address%align
			end += backend.Aligned(int64(m.dtype.Bytes(rows*m.ld))+align, align)
		}
	}
	scales := uint64(0) // the first align bytes hold no matrix
	if bytes := max(q.a.mode.Scales(q.m, q.k), q.b.mode.Scales(q.n, q.k)) * q.a.mode.Bytes(); bytes > align {
		scales = uint64(end)
		end += backend.Aligned(int64(bytes), align)
	}
	if end > t.bytes {
		at, err := t.gpu.Alloc(int(end))
		if err != nil {
			return q, false
		}
		if t.own {
			_ = t.gpu.Free(t.buffer) // see close
		}
		t.buffer, t.bytes, t.own = at, end, true
	}
	for _, m := range list {
		if m.address != 0 {
			m.address += uint64(t.buffer)
		}
		if m.scale != 0 {
			m.scale = uint64(t.buffer) + scales // all operands share them
		}
	}
	if t.stream.Fill(t.buffer, pattern, int(end)) != nil {
		return q, false
	}
	// The padding of scales of 16 and 32 elements must be zero. As E8M0 and E4M3 a zero is no
	// obstacle: 2^-127, and 0.
	padded := q.a.mode.Bytes() == 1
	if q.factors != 0 {
		q.factors = uint64(t.buffer)
	}
	return q, !padded || t.stream.Fill(t.buffer+libcuda.Ptr(scales), 0, int(uint64(end)-scales)) == nil
}
