package emu

import (
	"context"
	"fmt"
	"sync/atomic"
	"unsafe"

	"octet/backend"
	"octet/backend/emu/pool"
	"octet/backend/emu/simd"
	"octet/csrc/libmpi"
)

// transport moves bytes between ranks that are processes. *libmpi.World is one, and its
// comments define the methods.
type transport interface {
	Rank() int
	Size() int
	AllToAll(ctx context.Context, send []byte, sendParts []libmpi.Part, recv []byte, recvParts []libmpi.Part) error
	AllGather(ctx context.Context, send, recv []byte, parts []libmpi.Part) error
	Stop(cause error)
	Err() error
	Close(ctx context.Context) error
}

// counted is a transport that counts what collectives send. For tensors of B bytes, n ranks and
// equal parts, a rank sends
//
//	reduce-scatter  B (n-1)/n, its part to each rank
//	all-to-all      B (n-1)/n, the same
//	all-gather      B (n-1)/n of the gathered tensor, the rank's part to each rank
//	all-reduce      2 B (n-1)/n, as both; B (n-1) if n B is at most gatheredBytes
//
// A library may forward parts through other ranks; the total is the same.
type counted struct {
	transport
	sent atomic.Int64 // bytes to other ranks
}

func (c *counted) AllToAll(ctx context.Context, send []byte, sendParts []libmpi.Part, recv []byte, recvParts []libmpi.Part) error {
	err := c.transport.AllToAll(ctx, send, sendParts, recv, recvParts)
	if err == nil {
		for rank, p := range sendParts {
			if rank != c.Rank() {
				c.sent.Add(int64(p.Bytes))
			}
		}
	}
	return err
}

func (c *counted) AllGather(ctx context.Context, send, recv []byte, parts []libmpi.Part) error {
	err := c.transport.AllGather(ctx, send, recv, parts)
	if err == nil {
		c.sent.Add(int64(parts[c.Rank()].Bytes) * int64(c.Size()-1))
	}
	return err
}

// broadcast copies rank 0's buffer to those of all ranks.
func broadcast(ctx context.Context, t transport, buffer []byte) error {
	n := len(buffer)
	all, parts := make([]byte, t.Size()*n), make([]libmpi.Part, t.Size())
	for rank := range parts {
		parts[rank] = libmpi.Part{Offset: rank * n, Bytes: n}
	}
	err := t.AllGather(ctx, buffer, all, parts)
	copy(buffer, all[:n])
	return err
}

const (
	// pieceBytes limits the parts that a rank receives before it reduces them.
	pieceBytes = 16 << 20
	// gatheredBytes is the size of all ranks' operands together up to which every rank
	// gathers and reduces all of them, because one operation has less latency than two.
	gatheredBytes = 64 << 10
)

// processes builds the kernels of collectives between ranks that are processes. Results
// have the same bits as group's: reductions combine the ranks in ascending order. One kernel
// runs at a time.
type processes struct {
	transport
	pool     *pool.Pool
	received []float32 // all ranks' parts of one piece; kernels share it
}

// newProcesses returns collectives over a transport; its pool is set later.
func newProcesses(t transport) *processes { return &processes{transport: t} }

// fail returns the error of a collective: ErrDeviceLost, or the context's.
func (p *processes) fail(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("%w: %w", backend.ErrDeviceLost, err)
}

// reduction combines one piece at a time: each rank receives its part of all ranks' pieces.
type reduction struct {
	*processes
	max     bool
	combine func(dst, x []float32)
	task    func(worker, task int) // reduce, bound once

	send, recv, all []libmpi.Part // by rank

	// The rank's part of the current piece, where its result goes (perhaps the same memory),
	// and the distance between the parts in received.
	mine, result []float32
	stride       int
}

// reduction returns a reduction of pieces whose parts have at most n elements.
func (p *processes) reduction(how backend.Reduction, n int) *reduction {
	if n *= p.Size(); n > len(p.received) {
		p.received = make([]float32, n)
	}
	r := &reduction{processes: p, max: how == backend.ReduceMax, combine: simd.Add}
	if r.max {
		r.combine = simd.MaxMagnitudes
	}
	r.task = r.reduce
	r.send, r.recv, r.all = make([]libmpi.Part, p.Size()), make([]libmpi.Part, p.Size()), make([]libmpi.Part, p.Size())
	return r
}

// reduce computes the result of a range of elements, in ascending order of rank.
func (r *reduction) reduce(_, task int) {
	from := task * pool.TaskElems
	to := min(len(r.result), from+pool.TaskElems)
	rank := r.Rank()
	sum := r.received[from:to]
	if rank == 0 {
		sum = r.result[from:to]
		copy(sum, r.mine[from:to])
	}
	if r.max {
		r.combine(sum, sum) // the magnitudes of rank 0
	}
	for other := 1; other < r.Size(); other++ {
		x := r.mine[from:to]
		if other != rank {
			x = r.received[other*r.stride+from : other*r.stride+to]
		}
		r.combine(sum, x)
	}
	if rank != 0 {
		copy(r.result[from:to], sum)
	}
}

// run reduces the received parts and this rank's own.
func (r *reduction) run(mine, result []float32, stride int) {
	r.mine, r.result, r.stride = mine, result, stride
	r.pool.Run(pool.CeilDiv(len(result), pool.TaskElems), r.task)
}

// exchange sends the parts in r.send of x to their ranks, receives this rank's part from
// all others and reduces it. mine is this rank's own part.
func (r *reduction) exchange(ctx context.Context, x, mine, result []float32) error {
	for rank := range r.recv {
		r.recv[rank] = libmpi.Part{Offset: 4 * rank * len(mine), Bytes: 4 * len(mine)}
	}
	r.send[r.Rank()].Bytes, r.recv[r.Rank()].Bytes = 0, 0
	if err := r.AllToAll(ctx, bytesOf(x), r.send, bytesOf(r.received), r.recv); err != nil {
		return r.fail(ctx, err)
	}
	r.run(mine, result, len(mine))
	return nil
}

// allReduce returns a kernel that combines x over the ranks in place.
func (p *processes) allReduce(x []float32, how backend.Reduction) kernel {
	if 4*len(x)*p.Size() <= gatheredBytes {
		r := p.reduction(how, len(x))
		return func(ctx context.Context) error { return r.gathered(ctx, x) }
	}
	r := p.reduction(how, pool.CeilDiv(min(len(x), pieceBytes/4), p.Size()))
	return func(ctx context.Context) error {
		for piece := range chunks(len(x), pieceBytes/4) {
			if err := r.piece(ctx, x[piece.from:piece.to]); err != nil {
				return err
			}
		}
		return nil
	}
}

// gathered reduces all of a small x on every rank.
func (r *reduction) gathered(ctx context.Context, x []float32) error {
	n := len(x)
	for rank := range r.all {
		r.all[rank] = libmpi.Part{Offset: 4 * rank * n, Bytes: 4 * n}
	}
	mine := r.received[r.Rank()*n:][:n]
	copy(mine, x)
	if err := r.AllGather(ctx, nil, bytesOf(r.received[:r.Size()*n]), r.all); err != nil {
		return r.fail(ctx, err)
	}
	r.run(mine, x, n)
	return nil
}

// piece reduces one piece of x: each rank reduces a part, then all gather the parts.
func (r *reduction) piece(ctx context.Context, x []float32) error {
	first := func(rank int) int { return rank * len(x) / r.Size() }
	for rank := range r.all {
		r.all[rank] = libmpi.Part{Offset: 4 * first(rank), Bytes: 4 * (first(rank+1) - first(rank))}
	}
	copy(r.send, r.all)
	mine := x[first(r.Rank()):first(r.Rank()+1)]
	if err := r.exchange(ctx, x, mine, mine); err != nil {
		return err
	}
	if err := r.AllGather(ctx, nil, bytesOf(x), r.all); err != nil {
		return r.fail(ctx, err)
	}
	return nil
}

// reduceScatter returns a kernel that sums x over the ranks, of which out receives this
// rank's part. x has one part of len(out) for each rank.
func (p *processes) reduceScatter(out, x []float32) kernel {
	n, size := len(out), pieceBytes/4/p.Size()
	r := p.reduction(backend.ReduceSum, min(n, size))
	return func(ctx context.Context) error {
		for piece := range chunks(n, size) {
			for rank := range r.send {
				r.send[rank] = libmpi.Part{Offset: 4 * (rank*n + piece.from), Bytes: 4 * (piece.to - piece.from)}
			}
			mine := x[r.Rank()*n:][:n]
			if err := r.exchange(ctx, x, mine[piece.from:piece.to], out[piece.from:piece.to]); err != nil {
				return err
			}
		}
		return nil
	}
}

// allGather returns a kernel that concatenates every rank's x in out, in order of rank;
// sizes are the ranks' bytes.
func (p *processes) allGather(out, x []byte, sizes []int) kernel {
	parts, end := make([]libmpi.Part, len(sizes)), 0
	for rank, bytes := range sizes {
		parts[rank] = libmpi.Part{Offset: end, Bytes: bytes}
		end += bytes
	}
	return func(ctx context.Context) error {
		if err := p.AllGather(ctx, x, out, parts); err != nil {
			return p.fail(ctx, err)
		}
		return nil
	}
}

// allToAll returns a kernel that sends part r of x to rank r, and receives the parts of all
// ranks in out, in order of rank.
func (p *processes) allToAll(out, x []byte) kernel {
	parts, n := make([]libmpi.Part, p.Size()), len(x)/p.Size()
	for rank := range parts {
		parts[rank] = libmpi.Part{Offset: rank * n, Bytes: n}
	}
	return func(ctx context.Context) error {
		if err := p.AllToAll(ctx, x, parts, out, parts); err != nil {
			return p.fail(ctx, err)
		}
		return nil
	}
}

// span is the range [from, to) of a vector.
type span struct{ from, to int }

// chunks yields the spans of n elements, each of size elements but the last.
func chunks(n, size int) func(yield func(span) bool) {
	return func(yield func(span) bool) {
		for from := 0; from < n && yield(span{from, min(n, from+size)}); from += size {
		}
	}
}

// bytesOf returns the memory of x.
func bytesOf(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}

// subset is the transport of the processes of a group. All groups run their collectives at the same time:
// each is an all-to-all of all processes, of which the parts for other groups are empty. So the ranks of
// all groups must run the same programs, as often.
type subset struct {
	transport
	ranks []int // of the members, in order
	index int   // this rank's place

	send, recv []libmpi.Part // by rank of all
	buffer     []byte
}

// overSubset returns collectives over the processes of a group, which has so many ranks.
func (g *group) overSubset(of backend.Group, ranks int) *processes {
	if of.All() {
		return g.processes
	}
	if p := g.subsets[of]; p != nil {
		return p
	}
	s := &subset{
		transport: g.processes.transport, index: of.Index(g.Rank()),
		send: make([]libmpi.Part, g.Size()), recv: make([]libmpi.Part, g.Size()),
	}
	for i := range ranks {
		s.ranks = append(s.ranks, of.Member(g.Rank(), i))
	}
	if g.subsets == nil {
		g.subsets = map[backend.Group]*processes{}
	}
	g.subsets[of] = &processes{transport: s, pool: g.processes.pool}
	return g.subsets[of]
}

// Rank returns this rank's place among the members.
func (s *subset) Rank() int { return s.index }

// Size returns the number of members.
func (s *subset) Size() int { return len(s.ranks) }

// AllToAll is that of the members; the parts are in their order.
func (s *subset) AllToAll(ctx context.Context, send []byte, sendParts []libmpi.Part, recv []byte, recvParts []libmpi.Part) error {
	for i, rank := range s.ranks {
		s.send[rank], s.recv[rank] = sendParts[i], recvParts[i]
	}
	return s.transport.AllToAll(ctx, send, s.send, recv, s.recv)
}

// AllGather is that of the members; the parts are in their order.
func (s *subset) AllGather(ctx context.Context, send, recv []byte, parts []libmpi.Part) error {
	mine := parts[s.index]
	if send == nil { // MPI neither sends from nor receives to memory that does both
		if len(s.buffer) < mine.Bytes {
			s.buffer = make([]byte, mine.Bytes)
		}
		send = s.buffer[:mine.Bytes]
		copy(send, recv[mine.Offset:])
	}
	for i, rank := range s.ranks {
		s.send[rank], s.recv[rank] = libmpi.Part{Bytes: mine.Bytes}, parts[i]
	}
	return s.transport.AllToAll(ctx, send, s.send, recv, s.recv)
}
