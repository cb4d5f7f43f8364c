package world

import (
	"cmp"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
)

// hub connects the members of a world. It runs in the process of rank 0, which is a member
// like the others. One goroutine handles all messages, in run.
type hub struct {
	timing   timing
	members  []*member // by rank
	events   chan event
	finished chan struct{} // closed when all members were told the end
	stalled  int           // beats without progress of any member
	began    time.Time
}

// member is the hub's side of a rank's connection.
type member struct {
	host string
	conn link
	out  chan message

	parts     [lanes]*message // of the exchanges in progress
	silent    int             // beats since the last message
	step, ops int64
	last      string // the last collective that it reached
	waits     bool   // in it
	moved     bool   // since the last beat of the hub
	left      bool
	closed    bool         // its connection
	heard     atomic.Int64 // when its last message came, in ns since the hub began
}

// event is a message of a member, or the end of its connection.
type event struct {
	rank int
	message
	err error
}

// queue is the number of messages that the hub holds for a member that does not read.
const queue = 64

// newHub starts a hub over connections, by rank.
func newHub(t timing, hosts []string, conns []link) *hub {
	h := &hub{timing: t, events: make(chan event, len(conns)), finished: make(chan struct{}), began: time.Now()}
	for rank, c := range conns {
		m := &member{host: hosts[rank], conn: c, out: make(chan message, queue)}
		h.members = append(h.members, m)
		go m.write()
		go h.read(rank, c)
	}
	go h.run()
	return h
}

// write sends the member's messages. A failed write closes the connection, which ends read.
func (m *member) write() {
	for message := range m.out {
		if m.conn.send(message) != nil {
			m.conn.close()
		}
	}
}

// read forwards a member's messages to run, until the connection or the hub ends.
func (h *hub) read(rank int, c link) {
	for {
		m, err := c.receive()
		select {
		case h.events <- event{rank, m, err}:
		case <-h.finished:
			return
		}
		if err != nil {
			return
		}
	}
}

// run handles the messages of all members until the group ends.
func (h *hub) run() {
	ticker := time.NewTicker(h.timing.beat)
	defer ticker.Stop()
	for _, m := range h.members {
		m.post(message{Kind: joined})
	}
	var lost *Lost
	for over := false; !over; {
		select {
		case e := <-h.events:
			over, lost = h.handle(e)
		case <-ticker.C:
			lost = h.tick()
			over = lost != nil
		}
	}
	for _, m := range h.members {
		if lost != nil {
			m.post(message{Kind: ended, Lost: lost})
		}
		close(m.out)
	}
	h.drain()
	for _, m := range h.members {
		m.conn.close()
	}
	close(h.finished)
}

// drain reads until all members have closed their connections: a connection that the hub
// closes first could lose the last message.
func (h *hub) drain() {
	limit := time.After(h.timing.limit())
	for slices.ContainsFunc(h.members, func(m *member) bool { return !m.closed }) {
		select {
		case e := <-h.events:
			h.members[e.rank].closed = e.err != nil
		case <-limit:
			return
		}
	}
}

// post queues a message for the member.
func (m *member) post(x message) (ok bool) {
	select {
	case m.out <- x:
		return true
	default:
		return false
	}
}

// handle handles a message. over says that the group ended; lost is nil if all members left.
func (h *hub) handle(e event) (over bool, lost *Lost) {
	m := h.members[e.rank]
	m.closed = e.err != nil
	switch {
	case e.err != nil && m.left:
		return false, nil
	case e.err != nil:
		return true, h.gone(e.rank, closedCause)
	}
	m.silent = 0
	m.heard.Store(int64(time.Since(h.began)))
	switch e.Kind {
	case alive:
		m.moved = m.moved || m.step != e.Step || m.ops != e.Ops
		m.step, m.ops, m.last, m.waits = e.Step, e.Ops, e.What, e.Waiting
	case part:
		if e.Lane >= lanes {
			return true, h.lost(e.rank, "it sends messages of another version")
		}
		given := e.message // a copy: a beat allocates nothing
		m.parts[e.Lane], m.moved = &given, true
		m.step, m.ops = e.Step, e.Ops
		if e.Lane == training {
			m.last = e.What
		}
		return h.gather(e.Lane)
	case failed:
		lost = h.lost(e.rank, e.Lost.Cause)
		lost.Code, lost.err = e.Lost.Code, e.Lost.err
		return true, lost
	case left:
		m.left = true
		for _, other := range h.members {
			if !other.left {
				return false, nil
			}
		}
		return true, nil
	}
	return false, nil
}

// gather answers all members once each has given its part.
func (h *hub) gather(in lane) (over bool, lost *Lost) {
	answer := message{Kind: parts, Lane: in}
	for rank, m := range h.members {
		given := m.parts[in]
		if given == nil {
			return false, nil
		}
		if first := h.members[0].parts[in].What; given.What != first {
			return true, h.lost(rank, fmt.Sprintf("the ranks run different programs: rank 0 is in %s, rank %d in %s", first, rank, given.What))
		}
		answer.Parts = append(answer.Parts, given.Data)
	}
	for rank, m := range h.members {
		m.parts[in] = nil
		if !m.post(answer) {
			return true, h.lost(rank, "it does not read its messages")
		}
	}
	return false, nil
}

// tick sends signs of life and returns the rank that gives none, or that stalls the others;
// nil if all is well.
func (h *hub) tick() *Lost {
	moved, waiting, slowest := false, 0, -1
	last := 0 // of all members
	for rank, m := range h.members {
		if m.left {
			continue
		}
		if m.silent++; m.silent > h.timing.silent {
			return h.gone(rank, h.timing.silentCause())
		}
		if !m.post(message{Kind: alive}) {
			return h.lost(rank, "it does not read its messages")
		}
		moved, m.moved = moved || m.moved, false
		if h.members[last].after(m) {
			last = rank
		}
		switch {
		case m.waits || m.parts[training] != nil:
			waiting++
		case slowest < 0 || h.members[slowest].after(m):
			slowest = rank
		}
	}
	if moved || waiting == 0 {
		h.stalled = 0
		return nil
	}
	if h.stalled++; h.stalled <= h.timing.stall {
		return nil
	}
	waited := time.Duration(h.timing.stall) * h.timing.beat
	if slowest < 0 {
		return h.lost(last, h.allWait(h.members[last], waited))
	}
	return h.lost(slowest, fmt.Sprintf("the other ranks waited for it for %v; its last collective is %s (%s gives more time)",
		waited, cmp.Or(h.members[slowest].last, "none"), TimeoutVariable))
}

// allWait returns the cause if all members wait, m behind the others. If all are in one
// collective, which devices run while the hosts wait for them, no program differs.
func (h *hub) allWait(m *member, waited time.Duration) string {
	for _, other := range h.members {
		if !other.left && other.last != m.last {
			return fmt.Sprintf("all ranks waited for %v, this one in %s: their programs differ", waited, m.last)
		}
	}
	return fmt.Sprintf("all ranks waited for %v in %s, which does not complete: a device hangs, or the network between the devices failed (%s gives more time)",
		waited, m.last, TimeoutVariable)
}

// after reports whether m has come further than other.
func (m *member) after(other *member) bool {
	return m.step > other.step || m.step == other.step && m.ops > other.ops
}

// gone returns the error of a rank that cannot tell it.
func (h *hub) gone(rank int, cause string) *Lost {
	lost := h.lost(rank, cause)
	lost.Gone = true
	return lost
}

// lost returns the error of a rank.
func (h *hub) lost(rank int, cause string) *Lost {
	m := h.members[rank]
	return &Lost{Rank: rank, Host: m.host, Step: m.step, Cause: cause, Code: CodeFailed}
}

// Host returns the host of a rank's process, empty if the rank is in this one. Only rank 0 knows
// it.
func (g *Group) Host(rank int) string {
	if g == nil || g.hub == nil {
		return ""
	}
	return g.hub.members[rank].host
}

// Silence returns the time since rank 0 got a message of a rank. Each rank sends one a second.
// Other ranks do not know it, and return 0.
func (g *Group) Silence(rank int) time.Duration {
	if g == nil || g.hub == nil {
		return 0
	}
	return time.Since(g.hub.began) - time.Duration(g.hub.members[rank].heard.Load())
}
