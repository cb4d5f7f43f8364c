package emu

import (
	"time"

	"octet/backend"
	"octet/backend/emu/gemm"
	"octet/backend/emu/pool"
)

// meter implements backend.Meter on the device's own pool, so that its rates are for the
// threads that programs use.
type meter struct {
	*device
	peak     gemm.Peak
	operands [][]float32 // of each worker
	calls    [][8]int    // of the micro-kernel by each task; padded to a cache line
	from, to []byte
}

// Meter implements backend.Metered. Its memory, twice copyBytes, is allocated
// by the first call of Bytes.
func (d *device) Meter() backend.Meter {
	if d.amx {
		return &meter{device: d, peak: gemm.NewAMXPeak()}
	}
	return &meter{device: d, peak: gemm.NewPeak(d.model == nil)} // models need FP32
}

const (
	// flopsBurst is long compared with a worker's wake-up, and short enough that some of
	// twenty bursts are undisturbed on a shared machine.
	flopsBurst = 2 * time.Millisecond
	// peakCalls is the number of calls between two readings of the clock.
	peakCalls = 32
)

// FLOPs runs the micro-kernel that multiplies FP8 operands, on packed words in the
// first-level cache. Every worker stops by the clock, so none waits for another.
func (m *meter) FLOPs() float64 {
	if m.operands == nil {
		m.operands = make([][]float32, m.pool.Size())
		for w := range m.operands {
			m.operands[w] = pool.View[float32](pool.Bytes(4 * int64(m.peak.Words)))
			for i := range m.operands[w] {
				m.operands[w][i] = 1
			}
		}
		m.calls = make([][8]int, m.pool.Size())
	}
	clear(m.calls)
	start := time.Now()
	m.pool.Run(m.pool.Size(), func(worker, task int) {
		for m.calls[task][0] == 0 || time.Since(start) < flopsBurst {
			for range peakCalls {
				m.peak.Run(m.operands[worker])
			}
			m.calls[task][0] += peakCalls
		}
	})
	elapsed, calls := time.Since(start), 0
	for _, n := range m.calls {
		calls += n[0]
	}
	return float64(calls) * float64(m.peak.FLOPs) / elapsed.Seconds()
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
		m.from, m.to = pool.Bytes(copyBytes), pool.Bytes(copyBytes)
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
	m.pool.Run(copyTasks, func(_, task int) {
		at := task * n
		f(m.to[at:at+n], m.from[at:at+n])
	})
}
