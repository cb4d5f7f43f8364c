package emu

import (
	"time"

	"octet/backend"
)

// meter implements backend.Meter on the device's own pool, so that its rates are for the
// threads that programs use.
type meter struct {
	*device
	operands [][]float32 // of each worker: a, b and c of a micro-kernel
	calls    [][8]int    // of the micro-kernel by each task; padded to a cache line
	from, to []byte
}

// Meter implements backend.Metered. Its memory, twice copyBytes, is allocated
// by the first call of Bytes.
func (d *device) Meter() backend.Meter { return &meter{device: d} }

const (
	// flopsBurst is long compared with a worker's wake-up, and short enough that some of
	// twenty bursts are undisturbed on a shared machine.
	flopsBurst = 2 * time.Millisecond
	// peakDepth is k of the GEMMs: operands fit the first-level cache, and the time to load
	// and store accumulators is negligible.
	peakDepth = 128
	// peakCalls is the number of calls between two readings of the clock.
	peakCalls = 32
)

// FLOPs runs the micro-kernel that multiplies FP8 operands, on packed words in the
// first-level cache. Every worker stops by the clock, so none waits for another.
func (m *meter) FLOPs() float64 {
	k := gemmKernels()[0]
	multiply, each := k.multiply, 1 // multiplications per word
	if k.pairs != nil && m.model == nil && !m.amx {
		multiply, each = k.pairs.multiply, 2
	}
	if m.operands == nil {
		m.operands = make([][]float32, m.pool.size())
		for w := range m.operands {
			x := view[float32](alignedBytes(4 * int64(peakDepth*k.mr+peakDepth*k.nr+k.mr*k.nr)))
			m.operands[w] = x
			for i := range x {
				x[i] = 1
			}
		}
		m.calls = make([][8]int, m.pool.size())
	}
	clear(m.calls)
	start := time.Now()
	m.pool.run(m.pool.size(), func(worker, task int) {
		a, rest := m.operands[worker][:peakDepth*k.mr], m.operands[worker][peakDepth*k.mr:]
		b, c := rest[:peakDepth*k.nr], rest[peakDepth*k.nr:]
		for m.calls[task][0] == 0 || time.Since(start) < flopsBurst {
			for range peakCalls {
				multiply(peakDepth, k.mr, a, peakDepth, 1, b, c, false)
			}
			m.calls[task][0] += peakCalls
		}
	})
	elapsed, calls := time.Since(start), 0
	for _, n := range m.calls {
		calls += n[0]
	}
	return float64(calls) * float64(2*each*k.mr*k.nr*peakDepth) / elapsed.Seconds()
}

const (
	// copyBytes is the size of each of the copy's two arrays. Together they are larger than
	// the caches of laptops and virtual machines.
	copyBytes = 128 << 20
	copyTasks = 64
)

// Bytes copies one array to another, in pieces that the workers share.
func (m *meter) Bytes() float64 {
	if m.from == nil {
		m.from, m.to = alignedBytes(copyBytes), alignedBytes(copyBytes)
		// Unwritten pages all map to one page of zeros, which would stay in the cache.
		m.pieces(func(to, from []byte) {
			for i := 0; i < len(from); i += 4096 { // no system's pages are smaller
				from[i] = 1
			}
			copy(to, from)
		})
	}
	start := time.Now()
	m.pieces(func(to, from []byte) { copy(to, from) })
	return 2 * copyBytes / time.Since(start).Seconds()
}

func (m *meter) pieces(f func(to, from []byte)) {
	const n = copyBytes / copyTasks
	m.pool.run(copyTasks, func(_, task int) {
		at := task * n
		f(m.to[at:at+n], m.from[at:at+n])
	})
}
