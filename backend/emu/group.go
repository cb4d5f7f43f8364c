package emu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"octet/backend"
	"octet/backend/emu/pool"
	"octet/backend/emu/simd"
)

// group runs the collectives of in-process ranks. Each rank runs its programs from its own
// goroutine; in a collective every rank offers its memory to the others, and each computes
// a share of the result and stores it in the memory of all ranks.
//
// If a rank fails, its context ends or its backend is closed, all current and later
// collectives of the group fail on all ranks, like a communicator that lost a member. So
// they do after a timeout, which is the only sign of a rank that hangs or has returned.
type group struct {
	waitLimit time.Duration
	done      []atomic.Int64 // ops, by rank
	timers    []*time.Timer  // by rank

	mu      sync.Mutex
	arrived int
	waiting []bool        // by rank: it waits for other ranks
	last    []string      // by rank: the last collective that it reached
	ended   error         // why the group's collectives fail; nil: they work
	closed  chan struct{} // closed when ended is set
	wake    []chan struct{}
	offers  []offer
}

// timeoutVariable names the environment variable of the timeout: the time that ranks wait
// while no rank finishes an op. It does not limit the duration of a step, which may take
// hours on a CPU, with ranks of unequal speed.
const timeoutVariable = "OCTET_EMU_TIMEOUT"

// progressChecks is how often a waiting rank checks the progress of the others within the
// timeout. While the process or the machine is suspended, at most one check is lost, not
// the whole timeout.
const progressChecks = 10

// offer is a rank's memory for a collective.
type offer struct {
	op    string
	f32   []float32
	bytes []byte
}

func (o offer) size() int { return max(len(o.f32), len(o.bytes)) }

func newGroup(n int, waitLimit time.Duration) *group {
	g := &group{
		waitLimit: waitLimit,
		done:      make([]atomic.Int64, n),
		timers:    make([]*time.Timer, n),
		waiting:   make([]bool, n),
		last:      make([]string, n),
		closed:    make(chan struct{}),
		wake:      make([]chan struct{}, n),
		offers:    make([]offer, n),
	}
	for i := range n {
		g.timers[i] = time.NewTimer(waitLimit)
		g.timers[i].Stop()
		// One token is enough: a rank takes it before it arrives again.
		g.wake[i] = make(chan struct{}, 1)
	}
	return g
}

// wait is a barrier: it returns nil once all ranks wait, and an error on every rank if one
// of them stops instead. what names the collective.
func (g *group) wait(ctx context.Context, rank int, what string) error {
	g.mu.Lock()
	if g.ended != nil {
		defer g.mu.Unlock()
		return g.ended
	}
	g.waiting[rank], g.last[rank] = true, what
	if g.arrived++; g.arrived == len(g.wake) {
		g.arrived = 0
		for i, w := range g.wake {
			g.waiting[i] = false
			if i != rank {
				w <- struct{}{}
			}
		}
		g.mu.Unlock()
		return nil
	}
	g.mu.Unlock()
	return g.await(ctx, rank)
}

// await waits for the last rank to reach the collective. It fails if the context ends, the
// group's collectives fail, or no rank finishes an op within the timeout.
func (g *group) await(ctx context.Context, rank int) error {
	timer := g.timers[rank]
	defer timer.Stop()
	var err error
	seen, stalled := int64(-1), 0
	for err == nil {
		timer.Reset(g.waitLimit / progressChecks)
		select {
		case <-g.wake[rank]:
			return nil
		case <-ctx.Done():
			err = ctx.Err()
		case <-g.closed:
			err = errClosed
		case <-timer.C:
			if done := g.progress(); done != seen {
				seen, stalled = done, 0
			} else if stalled++; stalled == progressChecks {
				err = errTimeout
			}
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.wake[rank]: // the last rank arrived in the meantime
		return nil
	default:
	}
	switch {
	case errors.Is(err, errClosed):
		return g.ended
	case errors.Is(err, errTimeout):
		g.end(g.missingRanks(rank))
		return g.ended
	}
	g.end(leftError(rank, err))
	return err
}

// Reasons why await fails, besides its context.
var errClosed, errTimeout = errors.New("closed"), errors.New("stalled")

// progress returns the number of ops that all ranks have run. Waiting ranks run none.
func (g *group) progress() (n int64) {
	for i := range g.done {
		n += g.done[i].Load()
	}
	return n
}

// missingRanks returns an error that names the ranks that rank waits for. The lock must be
// held.
func (g *group) missingRanks(rank int) error {
	var names []string
	for r, waiting := range g.waiting {
		if r != rank && !waiting {
			names = append(names, fmt.Sprintf("rank %d, whose last collective is %s", r, cmp.Or(g.last[r], "none")))
		}
	}
	return fmt.Errorf("%w: waited %v for %s (%s gives more time)", backend.ErrDeviceLost, g.waitLimit, strings.Join(names, ", and "), timeoutVariable)
}

// close makes all collectives of the group fail because of rank. A group of one rank never
// waits, and stays usable.
func (g *group) close(cause error, rank int) {
	if len(g.wake) == 1 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.end(leftError(rank, cause))
}

func leftError(rank int, cause error) error {
	return fmt.Errorf("%w: rank %d left the group: %w", backend.ErrDeviceLost, rank, cause)
}

// end makes all collectives fail with why; the first call counts. The lock must be held.
func (g *group) end(why error) {
	if g.ended == nil {
		g.ended = why
		close(g.closed)
	}
}

// rendezvous waits until all ranks have made their offers, and checks that they match. The
// offers stay valid until the next wait.
func (g *group) rendezvous(ctx context.Context, rank int, what string, mine offer) error {
	g.offers[rank] = mine
	if err := g.wait(ctx, rank, what); err != nil {
		return err
	}
	first := g.offers[0]
	for r, other := range g.offers {
		if other.op != first.op || other.size() != first.size() {
			return fmt.Errorf("the ranks run different programs: rank 0 is at %s of %d, rank %d at %s of %d",
				first.op, first.size(), r, other.op, other.size())
		}
	}
	return nil
}

// collective returns a kernel that waits for the other ranks' offers, runs this rank's
// tasks, and returns when all ranks have run theirs.
func (b *binder) collective(n *backend.Node, mine offer, tasks int, task func(worker, task int)) kernel {
	g, rank, what := b.group, b.rank, n.Path()
	return func(ctx context.Context) error {
		if err := g.rendezvous(ctx, rank, what, mine); err != nil {
			return err
		}
		b.pool.Run(tasks, task)
		return g.wait(ctx, rank, what)
	}
}

var _ = implementOp(row{}, (*binder).allReduce)

// allReduce assigns chunks to the ranks in turn. A chunk's owner reduces it in the memory
// of rank 0 and copies the result to the other ranks.
func (b *binder) allReduce(node *backend.Node, o *backend.AllReduce) (kernel, error) {
	mine := offer{op: "allreduce (sum)", f32: b.f32(o.X)}
	first, combine := 1, simd.Add
	if o.Reduce == backend.ReduceMax {
		// The reduction includes rank 0, to get the magnitudes of its values.
		mine.op, first, combine = "allreduce (max)", 0, simd.MaxMagnitudes
	}
	n, offers := len(mine.f32), b.group.offers
	chunks := pool.CeilDiv(n, pool.TaskElems)
	own := pool.CeilDiv(chunks-b.rank, len(offers))
	return b.collective(node, mine, own, func(_, task int) {
		from := (task*len(offers) + b.rank) * pool.TaskElems
		to := min(n, from+pool.TaskElems)
		result := offers[0].f32[from:to]
		for _, other := range offers[first:] {
			combine(result, other.f32[from:to])
		}
		for _, other := range offers[1:] {
			copy(other.f32[from:to], result)
		}
	}), nil
}

var _ = implementOp(row{}, (*binder).reduceScatter)

func (b *binder) reduceScatter(node *backend.Node, o *backend.ReduceScatter) (kernel, error) {
	mine, out, offers := offer{op: "reducescatter", f32: b.f32(o.X)}, b.f32(o.Out), b.group.offers
	n := len(out)
	if len(mine.f32) != n*len(offers) {
		return nil, fmt.Errorf("operand X must have %d times the elements of Out, one part for each rank: X is %s, Out is %s", len(offers), o.X, o.Out)
	}
	return b.collective(node, mine, pool.CeilDiv(n, pool.TaskElems), func(_, task int) {
		from := task * pool.TaskElems
		to := min(n, from+pool.TaskElems)
		part := b.rank * n
		copy(out[from:to], offers[0].f32[part+from:part+to])
		for _, other := range offers[1:] {
			simd.Add(out[from:to], other.f32[part+from:part+to])
		}
	}), nil
}

var _ = implementOp(row{}, (*binder).allGather)

func (b *binder) allGather(node *backend.Node, o *backend.AllGather) (kernel, error) {
	mine, out, offers := offer{op: "allgather", bytes: b.bytes(o.X)}, b.bytes(o.Out), b.group.offers
	n := len(mine.bytes)
	if len(out) != n*len(offers) {
		return nil, fmt.Errorf("operand Out must have %d times the bytes of X, one part for each rank: X is %s, Out is %s", len(offers), o.X, o.Out)
	}
	return b.collective(node, mine, len(offers), func(_, rank int) {
		copy(out[rank*n:(rank+1)*n], offers[rank].bytes)
	}), nil
}
