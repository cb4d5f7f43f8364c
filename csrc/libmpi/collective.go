//go:build mpi && cgo && linux

package libmpi

// #include "libmpi.h"
import "C"

import (
	"context"
	"fmt"
	"runtime"
	"time"
	"unsafe"
)

type kind uint8

const (
	bcast kind = iota
	allToAll
	allGather
	finalize
)

func (k kind) String() string {
	return [...]string{"the broadcast", "the all-to-all", "the all-gather", "MPI_Finalize"}[k]
}

// call is a call of MPI by its thread.
type call struct {
	kind                 kind
	send, recv           []byte // bcast: recv
	sendParts, recvParts []Part
	root                 int
}

// Bcast copies the buffer of rank root to the buffers of all ranks, which have the same
// size. ctx ends the wait for other ranks; the error is its cause, and the World stops.
func (w *World) Bcast(ctx context.Context, buffer []byte, root int) error {
	if root < 0 || root >= w.size {
		return fmt.Errorf("broadcast from rank %d: ranks are 0 to %d", root, w.size-1)
	}
	return w.run(ctx, call{kind: bcast, recv: buffer, root: root})
}

// AllToAll copies part j of send on rank i to part i of recv on rank j, for all i and j.
// Both parts have the same size, which may be 0. send and recv do not overlap. ctx is as
// for Bcast.
func (w *World) AllToAll(ctx context.Context, send []byte, sendParts []Part, recv []byte, recvParts []Part) error {
	for _, err := range []error{w.fit("send", send, sendParts), w.fit("receive", recv, recvParts)} {
		if err != nil {
			return fmt.Errorf("all-to-all: %w", err)
		}
	}
	return w.run(ctx, call{kind: allToAll, send: send, sendParts: sendParts, recv: recv, recvParts: recvParts})
}

// AllGather copies send of rank i to part i of recv on all ranks, for all i. parts are the
// same on all ranks. If send is nil, on all ranks, each rank's part is in its recv already;
// otherwise send and recv do not overlap. ctx is as for Bcast.
func (w *World) AllGather(ctx context.Context, send, recv []byte, parts []Part) error {
	if err := w.fit("receive", recv, parts); err != nil {
		return fmt.Errorf("all-gather: %w", err)
	}
	if mine := parts[w.rank].Bytes; send != nil && len(send) != mine {
		return fmt.Errorf("all-gather: rank %d sends %d bytes, but its part has %d", w.rank, len(send), mine)
	}
	return w.run(ctx, call{kind: allGather, send: send, recv: recv, recvParts: parts})
}

// fit returns an error unless a buffer has one part for each rank.
func (w *World) fit(name string, buffer []byte, parts []Part) error {
	if len(parts) != w.size {
		return fmt.Errorf("%d parts of the %s buffer for %d ranks", len(parts), name, w.size)
	}
	for rank, p := range parts {
		if p.Offset < 0 || p.Bytes < 0 || p.Offset > len(buffer)-p.Bytes {
			return fmt.Errorf("the part of rank %d, %d bytes at %d, is outside the %s buffer of %d bytes", rank, p.Bytes, p.Offset, name, len(buffer))
		}
	}
	return nil
}

// pins are the buffers of the pending operation. They stay pinned if it never completes,
// because MPI may still write to them. Only the thread that calls MPI uses pins; a variable
// of the package never reaches the collector, which panics for pinned memory.
var pins runtime.Pinner

// slice is how long the thread waits before it checks whether the World stopped.
const slice = time.Millisecond

// perform runs a call on the thread. An operation that never completes ends when the World
// stops or aborts.
func (w *World) perform(c *call) error {
	if c.kind == finalize {
		err := check(w.lib, C.octet_mpi_finalize(w.c))
		finalized.Store(err == nil)
		return err
	}
	send, recv := pin(c.send), pin(c.recv)
	var err error
	switch c.kind {
	case bcast:
		err = check(w.lib, C.octet_mpi_bcast(w.c, recv, C.int64_t(len(c.recv)), C.int(c.root)))
	case allToAll:
		w.set(w.c.send_counts, w.c.send_offsets, c.sendParts)
		w.set(w.c.recv_counts, w.c.recv_offsets, c.recvParts)
		err = check(w.lib, C.octet_mpi_alltoall(w.c, send, recv))
	default:
		w.set(w.c.recv_counts, w.c.recv_offsets, c.recvParts)
		if c.send != nil && send == nil {
			send = unsafe.Pointer(w.c) // of 0 bytes; nil means that this part is in recv
		}
		err = check(w.lib, C.octet_mpi_allgather(w.c, send, C.int64_t(len(c.send)), recv))
	}
	for err == nil {
		err = check(w.lib, C.octet_mpi_wait(w.c, C.int64_t(slice)))
		if err == nil && w.c.done != 0 {
			pins.Unpin()
			return nil
		}
		select {
		case <-w.stopped:
			err = w.Err()
		case code := <-w.aborts:
			w.abort(code)
		default:
		}
	}
	return err
}

// pin returns the address of a buffer, which the garbage collector then neither frees nor
// moves; nil for an empty buffer.
func pin(buffer []byte) unsafe.Pointer {
	if len(buffer) == 0 {
		return nil
	}
	pins.Pin(&buffer[0])
	return unsafe.Pointer(&buffer[0])
}

// set writes parts to the world's lists.
func (w *World) set(counts, offsets *C.int64_t, parts []Part) {
	c, o := unsafe.Slice(counts, w.size), unsafe.Slice(offsets, w.size)
	for rank, p := range parts {
		c[rank], o[rank] = C.int64_t(p.Bytes), C.int64_t(p.Offset)
	}
}
