package attention

import (
	"unsafe"

	"octet/backend/emu/cast"
	"octet/backend/emu/memory"
	"octet/backend/emu/simd"
)

// prefetcher prefetches rows that are read or written soon, some with each matMul. The rows of
// one head are too short for the hardware prefetcher.
type prefetcher struct {
	expected   [8]rowsInMemory
	prefetched int // rows of expected[0] that are prefetched
}

// rowsInMemory are rows of a matrix.
type rowsInMemory struct {
	first             unsafe.Pointer
	step, rows, bytes int
}

// prefetchRows is the number of rows that each matMul prefetches: a matMul of mr rows takes
// longer than loading them from memory.
const prefetchRows = 16

// expect registers rows×cols elements of m, from (row, col) on, to be read or written
// soon. expect ignores elements if all entries are in use.
func (p *prefetcher) expect(m *memory.Matrix, row, col, rows, cols int) {
	for i := range p.expected {
		if p.expected[i].rows == 0 {
			p.expected[i] = rowsInMemory{m.Address(row, col), m.LD * m.DType.Size(), rows, cols * m.DType.Size()}
			return
		}
	}
}

// expectStore is expect for the elements that out will store.
func (p *prefetcher) expectStore(out *cast.Output, row, col, rows, cols int) {
	direct := out.Direct()
	for i := range direct {
		p.expect(&direct[i], row, col, rows, cols)
	}
}

// expectNothing clears the registered rows.
func (p *prefetcher) expectNothing() {
	p.expected, p.prefetched = [len(p.expected)]rowsInMemory{}, 0
}

// prefetchNext prefetches the next expected rows.
func (p *prefetcher) prefetchNext() {
	w := &p.expected[0]
	if w.rows == 0 {
		return
	}
	n := min(prefetchRows, w.rows-p.prefetched)
	simd.PrefetchRows(unsafe.Add(w.first, p.prefetched*w.step), w.step, n, w.bytes)
	if p.prefetched += n; p.prefetched == w.rows {
		copy(p.expected[:], p.expected[1:])
		p.expected[len(p.expected)-1], p.prefetched = rowsInMemory{}, 0
	}
}
