package emu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/emu/pool"
	"octet/backend/world"
	"octet/csrc/libmpi"
	"octet/fp8"
)

// orderedSizes returns numbers of elements: one, fewer than ranks, around the size from which
// a reduction is not gathered, several MiB and, for three ranks, more than a piece.
func orderedSizes(n int) []int {
	sizes := []int{1, 3, 17, 4095, 4097, 5461, 16385, 100_003}
	switch {
	case testing.Short():
		return sizes
	case n == 3:
		return append(sizes, pieceBytes/4+8209)
	}
	return append(sizes, 1<<20+13)
}

// ordered is the operands of collectives on all ranks, and the results of ranks in one
// process.
type ordered struct {
	n              int
	x, part        [][]float32 // by rank
	piece          [][]byte    // of unequal sizes
	sum, max, rest [][]byte
	gathered       []byte
}

// noiseOf returns values whose sum depends on the order, with some infinities, NaN of
// different bits and zeros of both signs.
func noiseOf(rank, n int) []float32 {
	x, state, scale := make([]float32, n), uint64(rank+1), float32(math.Pow(1000, float64(rank)))
	for i := range x {
		state = state*6364136223846793005 + 1442695040888963407
		x[i] = float32(int32(state>>32)) * scale
		switch state >> 33 % 256 {
		case 0:
			x[i] = math.Float32frombits(0x7fc00000 + uint32(rank+1))
		case 1:
			x[i] = float32(math.Inf(rank%2*2 - 1))
		case 2:
			x[i] = math.Float32frombits(uint32(rank) << 31)
		}
	}
	return x
}

func withPool(p *processes, workers *pool.Pool) *processes {
	p.pool = workers
	return p
}

func newOrdered(t *testing.T, n, elems int) *ordered {
	o := &ordered{n: n}
	tr := newTrial(t)
	x := tr.tensor("x", fp8.F32, nil, elems)
	top := tr.tensor("top", fp8.F32, nil, elems)
	wide := tr.tensor("wide", fp8.F32, nil, n*elems)
	part := tr.tensor("part", fp8.F32, nil, elems)
	tr.program.Add(&backend.AllReduce{X: x})
	tr.program.Add(&backend.AllReduce{X: top, Reduce: backend.ReduceMax})
	tr.program.Add(&backend.ReduceScatter{X: wide, Out: part})
	devices, programs := tr.ranks(n, func(rank int, d *device) {
		o.x = append(o.x, noiseOf(rank, elems))
		o.part = append(o.part, noiseOf(rank+n, n*elems))
		o.piece = append(o.piece, bytesOf(o.x[rank])[:rank*elems%4096])
		o.gathered = append(o.gathered, o.piece[rank]...)
		d.set(x, o.x[rank])
		d.set(top, o.x[rank])
		d.set(wide, o.part[rank])
	})
	for _, err := range together(n, func(rank int) error { return programs[rank].Run(t.Context()) }) {
		require.NoError(t, err)
	}
	for _, d := range devices {
		b := &binder{device: d}
		o.sum = append(o.sum, bytesOf(slices.Clone(b.f32(x))))
		o.max = append(o.max, bytesOf(slices.Clone(b.f32(top))))
		o.rest = append(o.rest, bytesOf(slices.Clone(b.f32(part))))
		require.NoError(t, d.Close())
	}
	return o
}

// compare runs the collectives on one rank, and returns an error if a bit differs.
func (o *ordered) compare(ctx context.Context, p *processes) error {
	rank := p.Rank()
	x, top, out := slices.Clone(o.x[rank]), slices.Clone(o.x[rank]), make([]float32, len(o.x[rank]))
	gathered := make([]byte, len(o.gathered))
	var sizes []int
	for _, b := range o.piece {
		sizes = append(sizes, len(b))
	}
	for _, c := range []struct {
		name      string
		run       kernel
		got, want []byte
	}{
		{"sum", p.allReduce(x, backend.ReduceSum), bytesOf(x), o.sum[rank]},
		{"max", p.allReduce(top, backend.ReduceMax), bytesOf(top), o.max[rank]},
		{"reduce-scatter", p.reduceScatter(out, o.part[rank]), bytesOf(out), o.rest[rank]},
		{"all-gather", p.allGather(gathered, o.piece[rank], sizes), gathered, o.gathered},
	} {
		if err := c.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		if !bytes.Equal(c.want, c.got) {
			return fmt.Errorf("%s of %d elements differs on rank %d of %d", c.name, len(x), rank, o.n)
		}
	}
	return nil
}

// local is a transport between goroutines.
type local struct {
	*hub
	rank int
}

type hub struct {
	ranks []memoryOf
	mu    sync.Mutex
	here  int
	all   *sync.Cond
	cause error
}

type memoryOf struct {
	send      []byte
	sendParts []libmpi.Part
}

func newLocal(n int) (list []transport) {
	h := &hub{ranks: make([]memoryOf, n)}
	h.all = sync.NewCond(&h.mu)
	for rank := range n {
		list = append(list, local{h, rank})
	}
	return list
}

// wait is a barrier.
func (h *hub) wait() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.here++
	h.all.Broadcast()
	for end := (h.here + len(h.ranks) - 1) / len(h.ranks) * len(h.ranks); h.here < end && h.cause == nil; {
		h.all.Wait()
	}
	return h.cause
}

func (l local) Rank() int { return l.rank }
func (l local) Size() int { return len(l.ranks) }

func (l local) Stop(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cause = cause
	l.all.Broadcast()
}

func (l local) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}

func (l local) Close(context.Context) error { return nil }

func (l local) AllToAll(_ context.Context, send []byte, sendParts []libmpi.Part, recv []byte, recvParts []libmpi.Part) error {
	l.ranks[l.rank] = memoryOf{send, sendParts}
	if err := l.wait(); err != nil {
		return err
	}
	for r, other := range l.ranks {
		from, to := other.sendParts[l.rank], recvParts[r]
		if from.Bytes != to.Bytes {
			return fmt.Errorf("rank %d sends %v to rank %d, which receives %v", r, from, l.rank, to)
		}
		copy(recv[to.Offset:][:to.Bytes], other.send[from.Offset:][:from.Bytes])
	}
	return l.wait()
}

func (l local) AllGather(ctx context.Context, send, recv []byte, parts []libmpi.Part) error {
	mine := parts[l.rank]
	if send == nil {
		send = slices.Clone(recv[mine.Offset:][:mine.Bytes])
	}
	to := make([]libmpi.Part, len(parts))
	for r := range to {
		to[r].Bytes = mine.Bytes
	}
	return l.AllToAll(ctx, send, to, recv, parts)
}

func TestOrderedCollectives(t *testing.T) {
	for n := 1; n <= 4; n++ {
		for _, elems := range orderedSizes(n) {
			o := newOrdered(t, n, elems)
			transports := newLocal(n)
			for _, err := range together(n, func(rank int) error {
				workers := pool.New(2)
				defer workers.Close()
				err := o.compare(t.Context(), withPool(newProcesses(transports[rank]), workers))
				if err != nil {
					transports[rank].Stop(err)
				}
				return err
			}) {
				require.NoError(t, err)
			}
		}
	}
}

// The collectives of a group have the bits of ranks that are alone.
func TestOrderedCollectivesOfGroups(t *testing.T) {
	for _, of := range []backend.Group{{Size: 2, Stride: 1}, {Size: 2, Stride: 3}, {Size: 3, Stride: 2}} {
		const n = 6
		for _, elems := range orderedSizes(of.Size) {
			o := newOrdered(t, of.Size, elems)
			transports, worlds := newLocal(n), world.Local(n, time.Minute)
			for _, err := range together(n, func(rank int) error {
				workers := pool.New(1)
				defer workers.Close()
				g := &group{Group: worlds[rank], processes: withPool(newProcesses(transports[rank]), workers)}
				m, err := g.members(of)
				if err == nil {
					err = o.compare(t.Context(), m.over)
				}
				if err != nil {
					transports[rank].Stop(err)
				}
				return err
			}) {
				require.NoError(t, err, "%s", of)
			}
		}
	}
}

// An error of the transport is a lost device, unless the context ended.
func TestTransportFails(t *testing.T) {
	lost := errors.New("rank 1 is lost")
	l := newLocal(2)[0]
	p := withPool(newProcesses(l), pool.New(1))
	l.Stop(lost)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, run := range map[string]kernel{
		"gathered":       p.allReduce(make([]float32, 1), backend.ReduceSum),
		"pieces":         p.allReduce(make([]float32, gatheredBytes), backend.ReduceSum),
		"reduce-scatter": p.reduceScatter(make([]float32, 1), make([]float32, 2)),
		"all-to-all":     p.allToAll(make([]byte, 6), make([]byte, 6)),
		"all-gather":     p.allGather(make([]byte, 3), make([]byte, 1), []int{1, 2}),
	} {
		err := run(t.Context())
		require.ErrorIs(t, err, backend.ErrDeviceLost, name)
		require.ErrorIs(t, err, lost, name)
		require.Equal(t, context.Canceled, run(ended), name)
	}
}

// still is a transport that moves nothing.
type still struct{ transport }

func (still) AllToAll(context.Context, []byte, []libmpi.Part, []byte, []libmpi.Part) error {
	return nil
}

func (still) AllGather(context.Context, []byte, []byte, []libmpi.Part) error { return nil }

func TestOrderedCollectivesAllocateNothing(t *testing.T) {
	p := withPool(newProcesses(still{newLocal(2)[1]}), pool.New(1))
	for name, run := range map[string]kernel{
		"gathered":       p.allReduce(make([]float32, 5), backend.ReduceMax),
		"pieces":         p.allReduce(make([]float32, gatheredBytes), backend.ReduceSum),
		"reduce-scatter": p.reduceScatter(make([]float32, 5), make([]float32, 10)),
		"all-to-all":     p.allToAll(make([]byte, 6), make([]byte, 6)),
		"all-gather":     p.allGather(make([]byte, 3), make([]byte, 1), []int{1, 2}),
	} {
		require.Zero(t, testing.AllocsPerRun(10, func() { _ = run(t.Context()) }), name)
	}
}
