//go:build cuda && cgo && linux

package cuda

import (
	"octet/backend"
	"octet/csrc/libcuda"
)

// This file runs collectives beside the nodes that do not depend on them, on a stream of their own,
// in the order of the program. Events order both streams, in a captured graph and outside of one.

// joins says what a program waits for on the compute stream. Collectives count from 1.
type joins struct {
	before []int // by node: it waits for this collective and those before it; 0: for none
	rest   int   // the end of the program waits for this collective; 0: all have been waited for
}

// joinsOf returns what a program waits for. It leaves out waits that an earlier one implies.
func joinsOf(nodes []*backend.Node) joins {
	j := joins{before: backend.CollectivesBefore(nodes)}
	waited, issued := 0, 0
	for i, n := range nodes {
		if n.IsCollective() {
			issued++
		}
		if j.before[i] <= waited {
			j.before[i] = 0
		}
		waited = max(waited, j.before[i])
	}
	if issued > waited {
		j.rest = issued
	}
	return j
}

// overlap is the state of a program whose collectives run beside its other nodes.
type overlap struct {
	joins
	issued *libcuda.Event   // what the compute stream has got before a collective
	done   []*libcuda.Event // by collective; nil where nothing waits for it
	marks  []uint64         // by collective: the address of its marks, 0 without other ranks
}

// prepareOverlap makes the events of a program, at most one for each collective and one more.
func (x *executable) prepareOverlap() (err error) {
	if x.commStream == nil {
		return nil
	}
	o := &overlap{joins: joinsOf(x.nodes)}
	x.overlap = o // so that close frees its events also after an error
	for i, n := range x.nodes {
		if n.IsCollective() {
			o.done = append(o.done, nil)
			o.marks = append(o.marks, markOf(x.calls[i]))
		}
	}
	if len(o.done) == 0 {
		x.overlap = nil
		return nil
	}
	for _, number := range append([]int{o.rest}, o.before...) {
		if number > 0 {
			if o.done[number-1], err = x.gpu.NewOrder(); err != nil {
				return x.failure(x.what, 0, err)
			}
		}
	}
	if o.issued, err = x.gpu.NewOrder(); err != nil {
		return x.failure(x.what, 0, err)
	}
	return nil
}

// markOf returns the address of the marks of a node's collective, 0 if it exchanges nothing.
func markOf(calls []readyCall) uint64 {
	for _, c := range calls {
		if c.collective != nil && c.collective.ranks > 1 {
			return c.collective.mark
		}
	}
	return 0
}

func (o *overlap) close() error {
	if o == nil {
		return nil
	}
	return closeEvents(append(o.done, o.issued)...)
}

// issueBeside enqueues all calls, those of collectives on the stream of their own. The compute
// stream has waited for all collectives in the end, so the streams are one for the work before and after
// the program.
func (x *executable) issueBeside() error {
	number := 0
	for i, n := range x.nodes {
		collective := n.IsCollective()
		if collective {
			number++
			if err := x.fork(i, number); err != nil {
				return err
			}
		}
		if err := x.join(n.Path(), x.overlap.before[i]); err != nil {
			return err
		}
		if collective {
			continue
		}
		if err := x.issue(i, x.stream); err != nil {
			return err
		}
	}
	return x.join(x.what, x.overlap.rest)
}

// fork enqueues collective number, node i, after what the compute stream has got so far.
func (x *executable) fork(i, number int) error {
	err := x.stream.Record(x.overlap.issued)
	if err == nil {
		err = x.commStream.WaitFor(x.overlap.issued)
	}
	if err != nil {
		return x.failure(x.nodes[i].Path(), 0, err)
	}
	if err := x.issue(i, x.commStream); err != nil {
		return err
	}
	if done := x.overlap.done[number-1]; done != nil {
		if err := x.commStream.Record(done); err != nil {
			return x.failure(x.nodes[i].Path(), 0, err)
		}
	}
	return nil
}

// join makes the compute stream wait for a collective, and so for those before it. The device tells
// the host that it waits by the marks of the collective, at another place than the collective does.
func (x *executable) join(what string, number int) error {
	if number == 0 {
		return nil
	}
	mark := x.overlap.marks[number-1]
	var err error
	if mark > 0 {
		err = x.sendMark(x.stream, joinAt, mark)
	}
	if err == nil {
		err = x.stream.WaitFor(x.overlap.done[number-1])
	}
	if err == nil && mark > 0 {
		err = x.sendMark(x.stream, joinAt, mark+markBytes)
	}
	if err != nil {
		return x.failure(what, 0, err)
	}
	return nil
}
