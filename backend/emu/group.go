package emu

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"octet/backend"
	"octet/backend/emu/pool"
	"octet/backend/emu/simd"
	"octet/backend/world"
)

// group runs the collectives of a rank. If the other ranks are goroutines of this process, every
// rank offers its memory to the others in a collective, and each computes a share of the
// result and stores it in the memory of all ranks.
//
// If a rank fails or its context ends, all current and later collectives fail on all ranks
// (package world).
type group struct {
	*world.Group
	*sharedMemory            // of ranks in this process
	processes     *processes // of ranks that are processes; else nil
}

// sharedMemory is what the ranks of a process share.
type sharedMemory struct {
	wake   []chan struct{} // by rank
	offers []offer         // by rank

	mu      sync.Mutex
	arrived int
}

// offer is a rank's memory for a collective.
type offer struct {
	op    string
	f32   []float32
	bytes []byte
}

func (o offer) size() int { return max(len(o.f32), len(o.bytes)) }

func newGroup(w *world.Group) (*group, error) {
	create := func() any {
		p := &sharedMemory{offers: make([]offer, w.Size())}
		for range w.Size() {
			// One token is enough: a rank takes it before it arrives again.
			p.wake = append(p.wake, make(chan struct{}, 1))
		}
		return p
	}
	p, inProcess := w.Shared(create).(*sharedMemory)
	if !inProcess {
		return joinProcesses(w)
	}
	return &group{Group: w, sharedMemory: p}, nil
}

// fail makes all collectives fail because of this rank.
func (g *group) fail(cause error) { g.Fail(world.CodeFailed, cause) }

// wait is a barrier: it returns nil once all ranks wait, and an error on every rank if one
// of them stops instead. what names the collective.
func (g *group) wait(ctx context.Context, what *string) error {
	if g.Group == nil {
		return nil
	}
	if err := g.Err(); err != nil {
		return fmt.Errorf("%w: %w", backend.ErrDeviceLost, err)
	}
	g.mu.Lock()
	if g.arrived++; g.arrived == len(g.wake) {
		g.arrived = 0
		for rank, wake := range g.wake {
			if rank != g.Rank() {
				wake <- struct{}{}
			}
		}
		g.mu.Unlock()
		return nil
	}
	g.mu.Unlock()
	g.Waits(what)
	begin := time.Now()
	defer func() {
		g.AddWait(time.Since(begin))
		g.Continues()
	}()
	wake := g.wake[g.Rank()]
	select {
	case <-wake:
		return nil
	case <-g.Done():
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-wake: // the last rank arrived in the meantime
		return nil
	default:
	}
	if err := g.Err(); err != nil {
		return fmt.Errorf("%w: %w", backend.ErrDeviceLost, err)
	}
	g.fail(ctx.Err())
	return ctx.Err()
}

// rendezvous waits until all ranks have made their offers, and checks that they match. The
// offers stay valid until the next wait.
func (g *group) rendezvous(ctx context.Context, what *string, mine offer) error {
	g.offers[g.Rank()] = mine
	if err := g.wait(ctx, what); err != nil {
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
	g, what := b.group, n.Path()
	return func(ctx context.Context) error {
		if err := g.rendezvous(ctx, &what, mine); err != nil {
			return err
		}
		b.pool.Run(tasks, task)
		return g.wait(ctx, &what)
	}
}

var _ = implementOp(row{}, (*binder).allReduce)

// allReduce assigns chunks to the ranks in turn. A chunk's owner reduces it in the memory
// of rank 0 and copies the result to the other ranks.
func (b *binder) allReduce(node *backend.Node, o *backend.AllReduce) (kernel, error) {
	if p := b.group.processes; p != nil {
		return b.overProcesses(node, p.allReduce(b.f32(o.X), o.Reduce)), nil
	}
	mine := offer{op: "allreduce (sum)", f32: b.f32(o.X)}
	first, combine := 1, simd.Add
	if o.Reduce == backend.ReduceMax {
		// The reduction includes rank 0, to get the magnitudes of its values.
		mine.op, first, combine = "allreduce (max)", 0, simd.MaxMagnitudes
	}
	n, rank, offers := len(mine.f32), b.group.Rank(), b.group.offers
	chunks := pool.CeilDiv(n, pool.TaskElems)
	own := pool.CeilDiv(chunks-rank, len(offers))
	return b.collective(node, mine, own, func(_, task int) {
		from := (task*len(offers) + rank) * pool.TaskElems
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
	mine, out, ranks := offer{op: "reducescatter", f32: b.f32(o.X)}, b.f32(o.Out), b.group.Size()
	n := len(out)
	if len(mine.f32) != n*ranks {
		return nil, fmt.Errorf("operand X must have %d times the elements of Out, one part for each rank: X is %s, Out is %s", ranks, o.X, o.Out)
	}
	if p := b.group.processes; p != nil {
		return b.overProcesses(node, p.reduceScatter(out, mine.f32)), nil
	}
	offers := b.group.offers
	return b.collective(node, mine, pool.CeilDiv(n, pool.TaskElems), func(_, task int) {
		from := task * pool.TaskElems
		to := min(n, from+pool.TaskElems)
		part := b.group.Rank() * n
		copy(out[from:to], offers[0].f32[part+from:part+to])
		for _, other := range offers[1:] {
			simd.Add(out[from:to], other.f32[part+from:part+to])
		}
	}), nil
}

var _ = implementOp(row{blockScaled: []string{"X", "Out"}}, (*binder).allGather)

func (b *binder) allGather(node *backend.Node, o *backend.AllGather) (kernel, error) {
	mine, out, ranks := offer{op: "allgather", bytes: b.bytes(o.X)}, b.bytes(o.Out), b.group.Size()
	n := len(mine.bytes)
	if len(out) != n*ranks {
		return nil, fmt.Errorf("operand Out must have %d times the bytes of X, one part for each rank: X is %s, Out is %s", ranks, o.X, o.Out)
	}
	if p := b.group.processes; p != nil {
		return b.overProcesses(node, p.allGather(out, mine.bytes, slices.Repeat([]int{n}, ranks))), nil
	}
	offers := b.group.offers
	return b.collective(node, mine, len(offers), func(_, rank int) {
		copy(out[rank*n:(rank+1)*n], offers[rank].bytes)
	}), nil
}

var _ = implementOp(row{blockScaled: []string{"X", "Out"}}, (*binder).allToAll)

func (b *binder) allToAll(node *backend.Node, o *backend.AllToAll) (kernel, error) {
	mine, out := offer{op: "alltoall", bytes: b.bytes(o.X)}, b.bytes(o.Out)
	bytes, err := o.PartBytes(b.group.Size())
	if err != nil {
		return nil, err
	}
	if p := b.group.processes; p != nil {
		return b.overProcesses(node, p.allToAll(out, mine.bytes)), nil
	}
	n, offers := int(bytes), b.group.offers
	part := b.group.Rank() * n
	return b.collective(node, mine, len(offers), func(_, rank int) {
		copy(out[rank*n:(rank+1)*n], offers[rank].bytes[part:])
	}), nil
}
