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

// This file chooses an algorithm of cuBLASLt for each product. Its heuristics
// order the candidates by an estimate; the first few are timed on memory that
// holds nothing yet, once for each kind of product on a kind of GPU (choices.go).
// Those that split k are left out: their parts are added up in an order of their
// own.

// candidates is how many algorithms are timed, and trials how often.
const (
	candidates = 8
	trials     = 4
)

// productKey is what products have in common that one algorithm computes.
type productKey struct {
	m, n, k        int
	transA, transB bool
	fast, c        bool
	formats        [3]fp8.DType
	ld             [4]int
	alignment      [4]uint64
}

func (p *product) key() productKey {
	k := productKey{
		m: p.m, n: p.n, k: p.k, transA: p.transA, transB: p.transB, fast: p.fast, c: p.beta != 0,
		formats: [3]fp8.DType{p.a.dtype, p.b.dtype, p.d.dtype},
	}
	for i, x := range []matrix{p.a, p.b, p.c, p.d} {
		k.ld[i], k.alignment[i] = x.ld, min(x.address&-x.address, align)
	}
	return k
}

// gemm is the product as cuBLASLt's binding takes it.
func (p *product) gemm() libcuda.Gemm {
	of := func(m matrix) libcuda.Matrix {
		return libcuda.Matrix{DType: m.dtype, Data: libcuda.Ptr(m.address), LD: m.ld, Scale: libcuda.Ptr(m.scale)}
	}
	return libcuda.Gemm{
		M: p.m, N: p.n, K: p.k, TransA: p.transA, TransB: p.transB,
		A: of(p.a), B: of(p.b), C: of(p.c), D: of(p.d),
		Alpha: 1, Beta: p.beta, FastAccum: p.fast,
	}
}

// tuner makes calls ready while programs are loaded.
type tuner struct {
	*device
	room      libcuda.Ptr // memory that holds nothing yet
	bytes     int64       // of it
	workspace libcuda.Ptr
	own       bool // room was taken for this
	chosen    choices
	algos     map[string]libcuda.Algo // by kind
	events    [2]*libcuda.Event
}

// newTuner notes in chosen what it takes.
func newTuner(d *device, chosen choices) *tuner {
	return &tuner{device: d, chosen: chosen, algos: map[string]libcuda.Algo{}}
}

func (t *tuner) close() {
	t.remembered.Lock()
	t.remembered.save()
	t.remembered.Unlock()
	if t.own {
		_ = t.gpu.Free(t.room) // at worst it is missing until the process ends
	}
	for _, e := range t.events {
		if e != nil {
			_ = e.Close()
		}
	}
}

// prepare finds kernels and algorithms for the calls of one node.
func (t *tuner) prepare(calls []call) ([]readyCall, error) {
	var list []readyCall
	for _, c := range calls {
		if c.collective != nil {
			list = append(list, readyCall{collective: c.collective})
			continue
		}
		if c.product == nil {
			f, err := t.function(c.launch)
			if err != nil {
				return list, err
			}
			list = append(list, readyCall{function: f, launch: c.launch})
			continue
		}
		p, err := t.lt.NewProduct(c.product.gemm())
		if err != nil {
			return list, err
		}
		list = append(list, readyCall{product: p})
		if list[len(list)-1].algo, err = t.algo(c.product, p); err != nil {
			return list, err
		}
	}
	return list, nil
}

// algo is the algorithm for a product, chosen when its kind is first seen.
func (t *tuner) algo(p *product, described *libcuda.Product) (libcuda.Algo, error) {
	kind := fmt.Sprintf("%+v", p.key())
	if algo, ok := t.algos[kind]; ok {
		return algo, nil
	}
	algo, err := t.choose(kind, p, described)
	if err == nil {
		t.algos[kind], t.chosen.Products[kind] = algo, algorithm(algo.Code())
	}
	return algo, err
}

// choose takes the algorithm that the run had before, or that was chosen on such
// a GPU before, or the fastest.
func (t *tuner) choose(kind string, p *product, described *libcuda.Product) (libcuda.Algo, error) {
	t.remembered.Lock()
	defer t.remembered.Unlock()
	for _, from := range []choices{t.earlier, t.remembered.choices} {
		code, ok := from.Products[kind]
		if !ok {
			continue
		}
		algo, err := described.Algo(libcuda.Code(code))
		if err != nil || !fits(&algo) {
			continue // another device may not have it
		}
		if _, _, err = t.fastest(p, []libcuda.Algo{algo}); !refused(err) {
			return algo, err
		}
	}
	list, err := described.Algos(workspaceBytes, candidates)
	if err != nil {
		return libcuda.Algo{}, err
	}
	list = slices.DeleteFunc(list, func(a libcuda.Algo) bool { return !fits(&a) })
	if len(list) == 0 {
		return libcuda.Algo{}, fmt.Errorf("%v: %w that does not split k", &described.Gemm, libcuda.ErrNoAlgorithm)
	}
	place, timed, err := t.fastest(p, list)
	if err != nil {
		return libcuda.Algo{}, err
	}
	if timed {
		t.remembered.set(kind, algorithm(list[place].Code()))
	}
	return list[place], nil
}

// unsupportedGEMM is the error for a node that cuBLASLt has no algorithm for.
func unsupportedGEMM(n *backend.Node, reason error) error {
	o := n.Op.(*backend.MatMul)
	return unsupported(n, "A is %s, B is %s and Out is %s: %v", o.A, o.B, o.Out, reason)
}

// refused reports whether another algorithm may do where one failed.
func refused(err error) bool {
	e := (*libcuda.Error)(nil)
	return errors.As(err, &e) && e.Refused()
}

// fits reports whether an algorithm may be used here at all.
func fits(a *libcuda.Algo) bool { return a.Splits <= 1 && a.Workspace <= workspaceBytes }

// fastest runs algorithms, times them if there are several, and returns the place
// of the best; the first, untried, where there is no memory to run them on. One
// that cuBLASLt offers and then does not run is passed over: what its heuristics
// say is an estimate.
func (t *tuner) fastest(p *product, list []libcuda.Algo) (place int, timed bool, err error) {
	moved, ok := t.moved(p)
	if !ok {
		return 0, false, nil
	}
	on, err := t.lt.NewProduct(moved.gemm())
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
	var least time.Duration
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
		if place < 0 || took < least {
			place, least = i, took
		}
	}
	if place < 0 {
		return 0, false, refusal
	}
	return place, true, nil
}

// time puts work on the stream once to warm up, and then a few times between two
// events. It measures one.
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

// moved is the product on memory that holds nothing yet, aligned as it is. The
// bytes there become small positive numbers in every format: zeros would let a
// GPU run faster than it does.
func (t *tuner) moved(p *product) (product, bool) {
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
			end += backend.Aligned(int64(rows*m.ld*m.dtype.Size())+align, align)
		}
	}
	if end > t.bytes {
		at, err := t.gpu.Alloc(int(end))
		if err != nil {
			return q, false
		}
		if t.own {
			_ = t.gpu.Free(t.room) // see close
		}
		t.room, t.bytes, t.own = at, end, true
	}
	for _, m := range list {
		if m.address != 0 {
			m.address += uint64(t.room)
		}
		if m.scale != 0 {
			m.scale = uint64(t.room) // the first align bytes are nobody's
		}
	}
	return q, t.stream.Fill(t.room, pattern, int(end)) == nil
}
