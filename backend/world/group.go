package world

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Group is the membership of one rank in a world. Its methods may be called from any
// goroutine. A nil Group is that of a run with one rank: it exchanges data with itself and
// never ends.
//
// A group that ended stays so: every call returns the same error, of type [*Lost], on every
// rank. A group ends if a rank fails, if its process ends, hangs or loses its network, and if no
// rank runs an op within the timeout while some rank waits.
type Group struct {
	place  Place
	conn   link
	hub    *hub    // of rank 0, or of a world in one process; else nil
	shared *shared // of a world in one process; else nil
	timing timing

	step, ops  atomic.Int64
	collective atomic.Pointer[string] // the last one that this rank reached; nil: none
	waiting    atomic.Bool            // in it
	waited     atomic.Int64           // ns, see WaitTime

	lanes [lanes]exchanges

	mu     sync.Mutex
	silent int // ticks since rank 0's last message
	err    error
	done   chan struct{} // closed when err is set, or the group was left
}

// exchanges are the exchanges of one lane.
type exchanges struct {
	one      sync.Mutex    // held during an exchange
	gathered chan [][]byte // its result
}

// timing are the intervals of a world; tests shorten them.
type timing struct {
	beat   time.Duration // between two signs of life
	silent int           // beats without a sign of life after which a rank is lost
	stall  int           // beats without progress after which a rank that others wait for is lost
}

// limit is how long a rank may give no sign of life.
func (t timing) limit() time.Duration { return time.Duration(t.silent) * t.beat }

// Causes of a [Lost].
const closedCause = "its connection closed: the process ended, or the network failed"

func (t timing) silentCause() string { return fmt.Sprintf("no sign of life for %v", t.limit()) }

// Lost is the error of a group that ended. It is the same on all ranks.
type Lost struct {
	Rank  int    // the rank that was lost
	Host  string // of its process
	Step  int64  // that the rank was in, from 1; 0: before the first
	Cause string
	Code  int  // the exit status for the processes of all ranks
	Gone  bool // the rank could not say so itself: its process ended, hangs, or has no network

	err error // of which Cause is the text, if the rank is of this process
}

// Unwrap returns the error that a rank of this process gave to Fail; nil for other ranks.
func (l *Lost) Unwrap() error { return l.err }

func (l *Lost) Error() string {
	text := fmt.Sprintf("rank %d", l.Rank)
	if l.Host != "" {
		text += " on " + l.Host
	}
	if l.Step > 0 {
		text += fmt.Sprintf(", in step %d", l.Step)
	}
	return text + ": " + l.Cause
}

// Exit statuses of [Lost].
const (
	CodeFailed = 1 // starting all ranks again may help
	CodeInput  = 2 // it will not: a configuration or a file is wrong
)

// errLeft is the error of calls after Leave.
var errLeft = errors.New("this rank has left the group")

// newGroup returns a member that talks to the hub over a connection.
func newGroup(p Place, c link, t timing) *Group {
	g := &Group{place: p, conn: c, timing: t, done: make(chan struct{})}
	for i := range g.lanes {
		g.lanes[i].gathered = make(chan [][]byte, 1)
	}
	go g.read()
	go g.beat()
	return g
}

// Place returns the place of the group's rank.
func (g *Group) Place() Place {
	if g == nil {
		return Place{Size: 1}
	}
	return g.place
}

// Rank returns the rank, from 0.
func (g *Group) Rank() int { return g.Place().Rank }

// Size returns the number of ranks.
func (g *Group) Size() int { return g.Place().Size }

// Done is closed when the group ends, or after Leave.
func (g *Group) Done() <-chan struct{} {
	if g == nil {
		return nil
	}
	return g.done
}

// lost returns why the group ended because of a rank; nil if it did not.
func (g *Group) lost() *Lost {
	lost, _ := errors.AsType[*Lost](g.Err())
	return lost
}

// Err returns why the group ended; nil while it works.
func (g *Group) Err() error {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

// AtStep records that this rank begins a step, from 1.
func (g *Group) AtStep(step int) {
	if g == nil {
		return
	}
	g.ops.Store(0)
	g.step.Store(int64(step))
}

// RanOp records that this rank ran an op. It costs an atomic addition.
func (g *Group) RanOp() {
	if g != nil {
		g.ops.Add(1)
	}
}

// AtOp records how far this rank is in its step: the number of an op, for devices whose hosts do
// not see each op.
func (g *Group) AtOp(n int) {
	if g != nil {
		g.ops.Store(int64(n))
	}
}

// Waits records that this rank waits for the others in a collective, until Continues. A rank
// that waits is not blamed for a stall.
func (g *Group) Waits(collective *string) {
	if g == nil {
		return
	}
	g.collective.Store(collective)
	g.waiting.Store(true)
}

// Continues records that this rank no longer waits.
func (g *Group) Continues() {
	if g != nil {
		g.waiting.Store(false)
	}
}

// AddWait records that this rank spent d in collectives. It costs an atomic addition.
func (g *Group) AddWait(d time.Duration) {
	if g != nil {
		g.waited.Add(int64(d))
	}
}

// WaitTime returns how long this rank has been in collectives, as its backend measured it: the
// wait for the other ranks, and the transfer where a library does both. It is 0 on a backend that
// does not call AddWait.
func (g *Group) WaitTime() time.Duration {
	if g == nil {
		return 0
	}
	return time.Duration(g.waited.Load())
}

// maxData is the maximum size of a rank's data in a message, in bytes. More data takes several
// round trips.
const maxData = 64 << 10

// Exchange returns the data of all ranks, by rank. All ranks must call it with the same what,
// which names it in errors. It is for small control data: everything goes through rank 0.
func (g *Group) Exchange(ctx context.Context, what string, mine []byte) ([][]byte, error) {
	if g == nil {
		return [][]byte{mine}, nil
	}
	if err := g.Err(); err != nil {
		return nil, err
	}
	g.Waits(&what)
	defer g.Continues()
	return g.exchange(ctx, training, what, mine)
}

// ExchangeInBackground is Exchange beside the training: both can run at the same time, and a
// rank that waits in it does not count as waiting.
func (g *Group) ExchangeInBackground(ctx context.Context, what string, mine []byte) ([][]byte, error) {
	if g == nil {
		return [][]byte{mine}, nil
	}
	return g.exchange(ctx, background, what, mine)
}

func (g *Group) exchange(ctx context.Context, in lane, what string, mine []byte) ([][]byte, error) {
	x := &g.lanes[in]
	x.one.Lock()
	defer x.one.Unlock()
	first, err := g.round(ctx, x, in, what, mine[:min(len(mine), maxData)])
	if err != nil || !slices.ContainsFunc(first, isFull) {
		return first, err
	}
	all := make([][]byte, len(first)) // ranks of one process share the parts
	for parts := first; ; {
		for rank, part := range parts {
			all[rank] = append(all[rank], part...)
		}
		if !slices.ContainsFunc(parts, isFull) {
			return all, nil
		}
		mine = mine[min(len(mine), maxData):]
		if parts, err = g.round(ctx, x, in, what, mine[:min(len(mine), maxData)]); err != nil {
			return nil, err
		}
	}
}

// Connect runs connect, a call of a library that waits for the other ranks, such as
// ncclCommInitRank, and that nothing ends if one of them is lost. If the group ends before
// connect returns, Connect returns why, and connect stays in the background until the process
// ends. what names the call in errors.
func (g *Group) Connect(what string, connect func() error) error {
	g.Waits(&what)
	defer g.Continues()
	connected := make(chan error, 1)
	go func() { connected <- connect() }()
	select {
	case err := <-connected:
		return err
	case <-g.Done():
	}
	select {
	case err := <-connected: // it returned in the meantime
		return err
	default:
		return g.Err()
	}
}

// isFull reports whether more data may follow a part.
func isFull(part []byte) bool { return len(part) == maxData }

// round exchanges one message of each rank.
func (g *Group) round(ctx context.Context, x *exchanges, in lane, what string, mine []byte) ([][]byte, error) {
	if err := g.Err(); err != nil {
		return nil, err
	}
	if err := g.send(message{Kind: part, Step: g.step.Load(), Ops: g.ops.Load(), What: what, Lane: in, Data: mine}); err != nil {
		return nil, err
	}
	select {
	case parts := <-x.gathered:
		return parts, nil
	case <-g.done:
		select {
		case parts := <-x.gathered: // complete before the group ended
			return parts, nil
		default:
			return nil, g.Err()
		}
	case <-ctx.Done():
		g.Fail(CodeFailed, fmt.Errorf("it stopped waiting in %s: %w", what, context.Cause(ctx)))
		return nil, ctx.Err()
	}
}

// Fail ends the group because of this rank. code is the exit status for all processes. It
// returns when the other ranks were told, or cannot be.
func (g *Group) Fail(code int, cause error) {
	if g == nil {
		return
	}
	if g.Err() != nil {
		g.flush(farewell) // this process may be about to end
		return
	}
	if err := g.send(message{Kind: failed, Lost: &Lost{Cause: cause.Error(), Code: code, err: cause}}); err == nil {
		select { // the hub answers with the error of all ranks
		case <-g.done:
		case <-time.After(g.timing.limit()):
		}
	}
	g.end(&Lost{Rank: g.place.Rank, Step: g.step.Load(), Cause: cause.Error(), Code: code, err: cause})
	g.flush(g.timing.limit())
}

// Leave ends the membership once all ranks have called it.
func (g *Group) Leave(ctx context.Context) error {
	if g == nil {
		return nil
	}
	_, err := g.Exchange(ctx, "the end of the run", nil)
	if err == nil {
		err = g.send(message{Kind: left})
	}
	if err == nil {
		g.end(errLeft)
	}
	g.flush(g.timing.limit())
	return err
}

// farewell is how long rank 0 waits for the other ranks to learn how the group ended. A rank that
// hangs does not.
const farewell = time.Second

// flush waits until the hub of this process has told all ranks how the group ended.
func (g *Group) flush(limit time.Duration) {
	if g.hub != nil && g.place.Rank == 0 {
		select {
		case <-g.hub.finished:
		case <-time.After(limit):
		}
	}
}

// end ends the membership; the first call counts.
func (g *Group) end(why error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil {
		g.err = why
		close(g.done)
		g.conn.close()
	}
}

// send sends a message to the hub. If that fails, read finds out why, and send returns it.
func (g *Group) send(m message) error {
	if err := g.conn.send(m); err != nil {
		g.conn.close()
		<-g.done
		return g.Err()
	}
	return nil
}

// read handles the messages of the hub until the group ends.
func (g *Group) read() {
	for {
		m, err := g.conn.receive()
		if err != nil {
			g.end(&Lost{Rank: 0, Cause: closedCause, Code: CodeFailed, Gone: true})
			return
		}
		g.mu.Lock()
		g.silent = 0
		g.mu.Unlock()
		switch m.Kind {
		case parts:
			g.lanes[m.Lane].gathered <- m.Parts
		case ended:
			g.end(m.Lost)
			return
		}
	}
}

// beat sends signs of life, and watches those of rank 0. It counts ticks instead of time, so
// that a suspended machine blames no rank.
func (g *Group) beat() {
	ticker := time.NewTicker(g.timing.beat)
	defer ticker.Stop()
	for {
		select {
		case <-g.done:
			return
		case <-ticker.C:
		}
		g.mu.Lock()
		g.silent++
		silent := g.silent > g.timing.silent
		g.mu.Unlock()
		if silent {
			g.end(&Lost{Rank: 0, Cause: g.timing.silentCause(), Code: CodeFailed, Gone: true})
			return
		}
		m := message{Kind: alive, Step: g.step.Load(), Ops: g.ops.Load(), Waiting: g.waiting.Load()}
		if what := g.collective.Load(); what != nil {
			m.What = *what
		}
		if g.send(m) != nil {
			return
		}
	}
}
