package prepare

import (
	"context"
	"errors"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
)

// pipeline holds what its stages share.
type pipeline struct {
	*Options
	sources []source

	toWork, toWrite chan *batch // the same batches
	free            sync.Pool
	room            *semaphore.Weighted
	inFlight, peak  atomic.Int64 // bytes
}

// runPipeline reads, encodes and writes what is left.
func runPipeline(ctx context.Context, o *Options, w *writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	p := &pipeline{
		Options: o, sources: w.sources,
		toWork: make(chan *batch, 2*o.Threads), toWrite: make(chan *batch, 4*o.Threads),
		room: semaphore.NewWeighted(o.limits.inFlight),
	}
	var group sync.WaitGroup
	group.Go(func() {
		defer close(p.toWork)
		defer close(p.toWrite)
		r := &reader{Options: o, ctx: ctx, sources: p.sources, fresh: p.fresh, send: func(b *batch) error { return p.send(ctx, b) }}
		if err := r.run(w.state.Next); err != nil {
			cancel(err) // the pipeline ends already
		}
	})
	for range o.Threads {
		group.Go(func() { p.work(ctx) })
	}
	err := p.write(ctx, w)
	cancel(err)
	for range p.toWrite { // the reader may wait
	}
	group.Wait()
	if w.peak = p.peak.Load(); err == nil {
		return nil
	}
	return err
}

func (p *pipeline) fresh() *batch {
	b, _ := p.free.Get().(*batch)
	if b == nil {
		b = &batch{}
	}
	*b = batch{items: b.items[:0], bytes: b.bytes[:0], ends: b.ends[:0], encoded: b.encoded[:0], ids: b.ids[:0], mask: b.mask[:0], ready: make(chan struct{})}
	return b
}

// keepBytes is how large a buffer may be that is used again. Batches are much smaller, unless they have
// a long document.
const keepBytes = 8 << 20

// recycle makes a batch available, unless a long document has made it large.
func (p *pipeline) recycle(b *batch) {
	p.inFlight.Add(-b.size)
	p.room.Release(b.size)
	if cap(b.bytes) <= keepBytes && cap(b.ids) <= 4*keepBytes {
		p.free.Put(b)
		return
	}
	*b = batch{}
	debug.FreeOSMemory() // several such batches would wait for the collector
}

// send passes a batch to the workers and the writer when there is room for it.
func (p *pipeline) send(ctx context.Context, b *batch) error {
	size := min(int64(len(b.bytes)), p.limits.inFlight)
	if err := p.room.Acquire(ctx, size); err != nil {
		return err
	}
	b.size = size
	p.peak.Store(max(p.peak.Load(), p.inFlight.Add(size)))
	for _, to := range []chan *batch{p.toWrite, p.toWork} {
		select {
		case to <- b:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// work encodes batches. An error ends the batch at its item.
func (p *pipeline) work(ctx context.Context) {
	w := newWorker(p.Options)
	for b := range p.toWork {
		if ctx.Err() == nil {
			p.encode(w, b)
		}
		close(b.ready)
	}
}

func (p *pipeline) encode(w *worker, b *batch) {
	for i := range b.items {
		it := &b.items[i]
		before := len(b.encoded)
		if err := w.encode(b, it); err != nil {
			b.items, b.err = b.items[:i], badInput("%s: %w", placeOf(p.sources, it.next), err)
			return
		}
		it.documents = len(b.encoded) - before
	}
}

// write writes batches in the order of the sources.
func (p *pipeline) write(ctx context.Context, w *writer) error {
	for {
		var b *batch
		var ok bool
		select {
		case b, ok = <-p.toWrite:
		case <-ctx.Done():
		}
		if ok {
			select {
			case <-b.ready:
			case <-ctx.Done():
			}
		}
		if ctx.Err() != nil {
			return w.interrupted(context.Cause(ctx))
		}
		if !ok {
			return nil
		}
		if err := w.batch(b); err != nil {
			return err
		}
		if _, bad := errors.AsType[*InputError](b.err); b.err != nil && !bad {
			return w.interrupted(b.err)
		}
		if b.err != nil {
			return b.err
		}
		if p.Progress != nil {
			p.Progress(b.done, b.all)
		}
		p.recycle(b)
	}
}
