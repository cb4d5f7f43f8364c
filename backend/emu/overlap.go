package emu

import (
	"context"
	"slices"
	"sync"
	"time"

	"octet/backend"
)

// This file runs collectives between processes beside the compute nodes that do not depend on them. One
// goroutine runs all collectives of a device, in the order of the program. A node waits for those that it
// depends on (backend.CollectivesBefore).

// overlaps is false in benchmarks of collectives that run alone.
var overlaps = true

// exchanger runs collectives in order.
type exchanger struct {
	jobs chan exchange

	mu      sync.Mutex
	changed sync.Cond
	given   int // since the begin of the program
	done    int
	err     error // the first one; later collectives are skipped
}

type exchange struct {
	ctx context.Context
	run kernel
}

func newExchanger() *exchanger {
	// Programs have more collectives than this, but a rank far ahead gains nothing.
	x := &exchanger{jobs: make(chan exchange, 16)}
	x.changed.L = &x.mu
	go x.loop()
	return x
}

func (x *exchanger) loop() {
	for job := range x.jobs {
		x.mu.Lock()
		err := x.err
		x.mu.Unlock()
		if err == nil {
			err = job.run(job.ctx)
		}
		x.mu.Lock()
		x.done++
		x.err = err
		x.changed.Broadcast()
		x.mu.Unlock()
	}
}

func (x *exchanger) close() { close(x.jobs) }

// begin starts the count of a program's collectives.
func (x *exchanger) begin() { x.given, x.done, x.err = 0, 0, nil }

// give hands a collective over; it returns before the collective has run.
func (x *exchanger) give(ctx context.Context, run kernel) {
	x.given++
	x.jobs <- exchange{ctx, run}
}

// wait returns when n collectives of the program have run, and the first error of any. what names the
// last of the n.
func (x *exchanger) wait(g *group, n int, what *string) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.done >= n {
		return x.err
	}
	g.Waits(what)
	begin := time.Now()
	for x.done < n {
		x.changed.Wait()
	}
	g.AddWait(time.Since(begin))
	g.Continues()
	return x.err
}

// waits returns, for each launch, how many collectives must have run before it: see
// backend.CollectivesBefore. A launch of several nodes has no collective.
func waits(nodes []*backend.Node, launches []launch) []int {
	list, before := make([]int, len(launches)), backend.CollectivesBefore(nodes)
	for i, l := range launches {
		list[i] = slices.Max(before[l.first : l.end+1])
	}
	return list
}

// runBeside is Run with collectives beside the compute nodes.
func (x *executable) runBeside(ctx context.Context) error {
	b := x.binder
	e := b.exchanger
	b.beside = true
	defer func() { b.beside = false }()
	e.begin()
	for i, l := range x.launches {
		n, err := x.nodes[l.first], error(nil)
		if n.IsCollective() {
			e.give(ctx, l.run)
		}
		if number := x.waits[i]; number > 0 {
			err = e.wait(b.group, number, &x.paths[number-1])
		}
		if err == nil && !n.IsCollective() {
			err = l.run(ctx)
		}
		if err != nil {
			err = x.failed(l.first, err)
			_ = x.settle() // they fail with the group, and use its memory until then
			return err
		}
		for range l.end + 1 - l.first {
			b.group.RanOp()
		}
	}
	if err := x.settle(); err != nil {
		return x.failed(len(x.nodes)-1, err)
	}
	return nil
}

// settle waits for all collectives that were handed over.
func (x *executable) settle() error {
	e := x.binder.exchanger
	if e.given == 0 {
		return nil
	}
	return e.wait(x.binder.group, e.given, &x.paths[e.given-1])
}
