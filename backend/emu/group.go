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

// group is all ranks of a run, as one of them sees them. If the other ranks are goroutines of this
// process, every rank offers its memory to the others in a collective, and each computes a share of the
// result and stores it in the memory of all ranks.
//
// If a rank fails or its context ends, all current and later collectives fail on all ranks
// (package world).
type group struct {
	*world.Group
	shared    *sharedMemory                // of ranks in this process; else nil
	processes *processes                   // of ranks that are processes; else nil
	subsets   map[backend.Group]*processes // of these, for collectives of some ranks
}

// sharedMemory is what the ranks of a process share: a barrier for each set of ranks that has
// collectives.
type sharedMemory struct {
	mu       sync.Mutex
	barriers map[ranksOf]*barrier
}

// ranksOf names a set of ranks: a group, and its first rank.
type ranksOf struct {
	backend.Group
	first int
}

// barrier is where the ranks of a set wait for each other.
type barrier struct {
	wake   []chan struct{} // by place in the set
	offers []offer         // likewise

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
	create := func() any { return &sharedMemory{barriers: map[ranksOf]*barrier{}} }
	s, inProcess := w.Shared(create).(*sharedMemory)
	if !inProcess {
		return joinProcesses(w)
	}
	return &group{Group: w, shared: s}, nil
}

func newBarrier(ranks int) *barrier {
	m := &barrier{offers: make([]offer, ranks)}
	for range ranks {
		// One token is enough: a rank takes it before it arrives again.
		m.wake = append(m.wake, make(chan struct{}, 1))
	}
	return m
}

// members are the ranks that a collective joins, as one of them sees them.
type members struct {
	*group
	*barrier            // of ranks in this process
	over     *processes // of ranks that are processes; else nil

	of           backend.Group
	index, ranks int // this rank's place, and the number of ranks
}

// members returns the ranks of a collective. All of them call it.
func (g *group) members(of backend.Group) (*members, error) {
	ranks, err := of.Ranks(g.Size())
	if err != nil {
		return nil, err
	}
	if ranks == g.Size() {
		of = backend.Group{}
	}
	m := &members{group: g, of: of, index: of.Index(g.Rank()), ranks: ranks}
	if g.processes != nil {
		m.over = g.overSubset(of, ranks)
		return m, nil
	}
	g.shared.mu.Lock()
	defer g.shared.mu.Unlock()
	key := ranksOf{of, of.Member(g.Rank(), 0)}
	if g.shared.barriers[key] == nil {
		g.shared.barriers[key] = newBarrier(ranks)
	}
	m.barrier = g.shared.barriers[key]
	return m, nil
}

// fail makes all collectives fail because of this rank.
func (g *group) fail(cause error) { g.Fail(world.CodeFailed, cause) }

// wait is a barrier: it returns nil once all members wait, and an error on every rank if one
// of them stops instead. what names the collective.
func (m *members) wait(ctx context.Context, what *string) error {
	if m.Group == nil {
		return nil
	}
	if err := m.Err(); err != nil {
		return fmt.Errorf("%w: %w", backend.ErrDeviceLost, err)
	}
	m.mu.Lock()
	if m.arrived++; m.arrived == len(m.wake) {
		m.arrived = 0
		for i, wake := range m.wake {
			if i != m.index {
				wake <- struct{}{}
			}
		}
		m.mu.Unlock()
		return nil
	}
	m.mu.Unlock()
	m.Waits(what)
	begin := time.Now()
	defer func() {
		m.AddWait(time.Since(begin))
		m.Continues()
	}()
	wake := m.wake[m.index]
	select {
	case <-wake:
		return nil
	case <-m.Done():
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-wake: // the last rank arrived in the meantime
		return nil
	default:
	}
	if err := m.Err(); err != nil {
		return fmt.Errorf("%w: %w", backend.ErrDeviceLost, err)
	}
	m.fail(ctx.Err())
	return ctx.Err()
}

// rendezvous waits until all members have made their offers, and checks that they match. The
// offers stay valid until the next wait.
func (m *members) rendezvous(ctx context.Context, what *string, mine offer) error {
	m.offers[m.index] = mine
	if err := m.wait(ctx, what); err != nil {
		return err
	}
	first := m.offers[0]
	for i, other := range m.offers {
		if other.op != first.op || other.size() != first.size() {
			return fmt.Errorf("the ranks run different programs: rank %d is at %s of %d, rank %d at %s of %d",
				m.of.Member(m.Rank(), 0), first.op, first.size(), m.of.Member(m.Rank(), i), other.op, other.size())
		}
	}
	return nil
}

// collective returns a kernel that waits for the other members' offers, runs this rank's
// tasks, and returns when all members have run theirs.
func (b *binder) collective(n *backend.Node, m *members, mine offer, tasks int, task func(worker, task int)) kernel {
	what := n.Path()
	return func(ctx context.Context) error {
		if err := m.rendezvous(ctx, &what, mine); err != nil {
			return err
		}
		b.pool.Run(tasks, task)
		return m.wait(ctx, &what)
	}
}

var _ = implementOp(row{}, (*binder).allReduce)

// allReduce assigns chunks to the members in turn. A chunk's owner reduces it in the memory
// of the first one and copies the result to the others.
func (b *binder) allReduce(node *backend.Node, o *backend.AllReduce) (kernel, error) {
	m, err := b.group.members(o.Group)
	if err != nil {
		return nil, err
	}
	if m.over != nil {
		return b.overProcesses(node, m.over.allReduce(b.f32(o.X), o.Reduce)), nil
	}
	mine := offer{op: "allreduce (sum)", f32: b.f32(o.X)}
	first, combine := 1, simd.Add
	if o.Reduce == backend.ReduceMax {
		// The reduction includes the first member, to get the magnitudes of its values.
		mine.op, first, combine = "allreduce (max)", 0, simd.MaxMagnitudes
	}
	n, offers := len(mine.f32), m.offers
	chunks := pool.CeilDiv(n, pool.TaskElems)
	own := pool.CeilDiv(chunks-m.index, len(offers))
	return b.collective(node, m, mine, own, func(_, task int) {
		from := (task*len(offers) + m.index) * pool.TaskElems
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
	m, err := b.group.members(o.Group)
	if err != nil {
		return nil, err
	}
	mine, out, ranks := offer{op: "reducescatter", f32: b.f32(o.X)}, b.f32(o.Out), m.ranks
	n := len(out)
	if len(mine.f32) != n*ranks {
		return nil, fmt.Errorf("operand X must have %d times the elements of Out, one part for each rank: X is %s, Out is %s", ranks, o.X, o.Out)
	}
	if m.over != nil {
		return b.overProcesses(node, m.over.reduceScatter(out, mine.f32)), nil
	}
	offers := m.offers
	return b.collective(node, m, mine, pool.CeilDiv(n, pool.TaskElems), func(_, task int) {
		from := task * pool.TaskElems
		to := min(n, from+pool.TaskElems)
		part := m.index * n
		copy(out[from:to], offers[0].f32[part+from:part+to])
		for _, other := range offers[1:] {
			simd.Add(out[from:to], other.f32[part+from:part+to])
		}
	}), nil
}

var _ = implementOp(row{blockScaled: []string{"X", "Out"}}, (*binder).allGather)

func (b *binder) allGather(node *backend.Node, o *backend.AllGather) (kernel, error) {
	m, err := b.group.members(o.Group)
	if err != nil {
		return nil, err
	}
	mine, out, ranks := offer{op: "allgather", bytes: b.bytes(o.X)}, b.bytes(o.Out), m.ranks
	n := len(mine.bytes)
	if len(out) != n*ranks {
		return nil, fmt.Errorf("operand Out must have %d times the bytes of X, one part for each rank: X is %s, Out is %s", ranks, o.X, o.Out)
	}
	if m.over != nil {
		return b.overProcesses(node, m.over.allGather(out, mine.bytes, slices.Repeat([]int{n}, ranks))), nil
	}
	offers := m.offers
	return b.collective(node, m, mine, len(offers), func(_, i int) {
		copy(out[i*n:(i+1)*n], offers[i].bytes)
	}), nil
}

var _ = implementOp(row{blockScaled: []string{"X", "Out"}}, (*binder).allToAll)

func (b *binder) allToAll(node *backend.Node, o *backend.AllToAll) (kernel, error) {
	m, err := b.group.members(o.Group)
	if err != nil {
		return nil, err
	}
	mine, out := offer{op: "alltoall", bytes: b.bytes(o.X)}, b.bytes(o.Out)
	bytes, err := o.PartBytes(m.ranks)
	if err != nil {
		return nil, err
	}
	if m.over != nil {
		return b.overProcesses(node, m.over.allToAll(out, mine.bytes)), nil
	}
	n, offers := int(bytes), m.offers
	part := m.index * n
	return b.collective(node, m, mine, len(offers), func(_, i int) {
		copy(out[i*n:(i+1)*n], offers[i].bytes[part:])
	}), nil
}
