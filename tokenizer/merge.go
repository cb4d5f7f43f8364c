package tokenizer

import (
	"math/bits"
	"slices"
)

// merges is a hash table of the merges of a vocabulary: two ids to the rank of their merge and the id
// that it gives. Lookups dominate encoding, so it is a flat table with linear probing.
type merges struct {
	slots []mergeSlot
	shift int
}

type mergeSlot struct {
	left, right int32
	rank, id    int32 // rank −1: empty
}

func newMerges(n int) merges {
	size := bits.Len(uint(max(2*n, 8) - 1))
	m := merges{slots: make([]mergeSlot, 1<<size), shift: 64 - size}
	for i := range m.slots {
		m.slots[i].rank = -1
	}
	return m
}

func (m *merges) at(left, right int32) int {
	return int((uint64(uint32(left))<<32 | uint64(uint32(right))) * 0x9e3779b97f4a7c15 >> m.shift)
}

// add adds a merge. Of several of the same two ids the last one counts.
func (m *merges) add(left, right, rank, id int32) {
	for i := m.at(left, right); ; i = (i + 1) & (len(m.slots) - 1) {
		if s := &m.slots[i]; s.rank < 0 || s.left == left && s.right == right {
			*s = mergeSlot{left, right, rank, id}
			return
		}
	}
}

// find returns the rank and the id of a merge; noMerge without one.
func (m *merges) find(left, right int32) (rank, id int32) {
	for i := m.at(left, right); ; i = (i + 1) & (len(m.slots) - 1) {
		switch s := &m.slots[i]; {
		case s.rank < 0:
			return noMerge, 0
		case s.left == left && s.right == right:
			return s.rank, s.id
		}
	}
}

func (m *merges) empty() bool {
	return !slices.ContainsFunc(m.slots, func(s mergeSlot) bool { return s.rank >= 0 })
}

// joins reports whether some merge has the id.
func (m *merges) joins(id int32) bool {
	return slices.ContainsFunc(m.slots, func(s mergeSlot) bool { return s.rank >= 0 && (s.left == id || s.right == id) })
}

const noMerge = 1<<31 - 1

// symbol is a symbol of a piece while it is merged.
type symbol struct {
	id         int32
	rank, into int32 // of the merge with the next symbol
	prev, next int32 // positions; −1 at the ends
}

// shortPiece is the length up to which a scan for the lowest rank is faster than a heap.
const shortPiece = 48

// merge joins the symbols of a piece in place and returns their number: always the merge with the
// lowest rank, of equal ranks the first.
func (e *Encoder) merge(ids []int32) int {
	if len(ids) <= shortPiece {
		return e.mergeShort(ids)
	}
	return e.mergeLong(ids)
}

func (e *Encoder) mergeShort(ids []int32) int {
	n := len(ids)
	var ranks, into [shortPiece]int32
	for i := range n - 1 {
		ranks[i], into[i] = e.merges.find(ids[i], ids[i+1])
	}
	for n > 1 {
		best := 0
		for i := 1; i < n-1; i++ {
			if ranks[i] < ranks[best] {
				best = i
			}
		}
		if ranks[best] == noMerge {
			break
		}
		ids[best] = into[best]
		copy(ids[best+1:n], ids[best+2:n])
		copy(ranks[best:n-1], ranks[best+1:n-1])
		copy(into[best:n-1], into[best+1:n-1])
		n--
		if best < n-1 {
			ranks[best], into[best] = e.merges.find(ids[best], ids[best+1])
		}
		if best > 0 {
			ranks[best-1], into[best-1] = e.merges.find(ids[best-1], ids[best])
		}
	}
	return n
}

// mergeLong keeps the merges of all pairs in a heap, ordered by rank and position. An entry whose
// symbol has another merge by now is skipped.
func (e *Encoder) mergeLong(ids []int32) int {
	e.symbols, e.heap = e.symbols[:0], e.heap[:0]
	for i, id := range ids {
		s := symbol{id: id, rank: noMerge, prev: int32(i) - 1, next: int32(i) + 1}
		if i == len(ids)-1 {
			s.next = -1
		}
		e.symbols = append(e.symbols, s)
	}
	for i := range ids {
		e.propose(int32(i))
	}
	for len(e.heap) > 0 {
		top := e.pop()
		at := int32(uint32(top))
		s := &e.symbols[at]
		if s.id < 0 || s.rank != int32(top>>32) || s.next < 0 {
			continue
		}
		removed := &e.symbols[s.next]
		s.id, s.next = s.into, removed.next
		removed.id = -1
		if s.next >= 0 {
			e.symbols[s.next].prev = at
		}
		e.propose(at)
		if s.prev >= 0 {
			e.propose(s.prev)
		}
	}
	n := 0
	for i := int32(0); i >= 0; i = e.symbols[i].next {
		ids[n] = e.symbols[i].id
		n++
	}
	return n
}

// propose looks up the merge of the symbol at a position with the next one, and puts it on the heap.
func (e *Encoder) propose(at int32) {
	s := &e.symbols[at]
	if s.next < 0 {
		s.rank = noMerge
		return
	}
	if s.rank, s.into = e.merges.find(s.id, e.symbols[s.next].id); s.rank != noMerge {
		e.push(uint64(uint32(s.rank))<<32 | uint64(uint32(at)))
	}
}

func (e *Encoder) push(x uint64) {
	e.heap = append(e.heap, x)
	i := len(e.heap) - 1
	for i > 0 {
		up := (i - 1) / 2
		if e.heap[up] <= x {
			break
		}
		e.heap[i] = e.heap[up]
		i = up
	}
	e.heap[i] = x
}

func (e *Encoder) pop() uint64 {
	top, last := e.heap[0], e.heap[len(e.heap)-1]
	e.heap = e.heap[:len(e.heap)-1]
	n := len(e.heap)
	for i := 0; n > 0; {
		down := 2*i + 1
		if down+1 < n && e.heap[down+1] < e.heap[down] {
			down++
		}
		if down >= n || e.heap[down] >= last {
			e.heap[i] = last
			break
		}
		e.heap[i] = e.heap[down]
		i = down
	}
	return top
}
