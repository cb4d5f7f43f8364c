//go:build cuda && cgo && linux

package libcuda

// #include "libcuda.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// Comm is one rank's handle of an NCCL communicator.
//
// Its collectives are work of the rank's stream, asynchronous, and may be captured. A
// collective completes when all ranks have enqueued the same collective, of the same
// size, in the same order. Until then the stream waits, and so may the call, because NCCL
// connects two GPUs on first use. Either all ranks capture a collective or none, and the
// same holds for every launch of its graph (NCCL user guide, Using NCCL with CUDA
// Graphs). Each rank needs its own thread.
type Comm struct {
	Library

	d    *Device
	lib  nccl
	comm C.octet_handle

	ranks int
}

// oldestNCCL is the first version whose calls can be captured.
const oldestNCCL = 20900

// UniqueID loads NCCL and returns the id of a new communicator, which rank 0 makes and all ranks
// pass to NewComm. cudaVersion is that of the driver.
func UniqueID(cudaVersion int) ([]byte, error) {
	c, err := loadComm(cudaVersion)
	if err != nil {
		return nil, err
	}
	var id [C.OCTET_NCCL_ID]C.char
	if err := c.check(C.octet_nccl_id(c.lib.Table, &id[0])); err != nil {
		return nil, err
	}
	return C.GoBytes(unsafe.Pointer(&id[0]), C.OCTET_NCCL_ID), nil
}

// NewComm returns the communicator of a rank. It returns when all ranks have called it, with
// different devices, which must not be adopted.
func NewComm(d *Device, id []byte, rank, ranks int) (*Comm, error) {
	c, err := loadComm(d.Version)
	if err != nil {
		return nil, err
	}
	if len(id) != C.OCTET_NCCL_ID {
		return nil, fmt.Errorf("NCCL's unique id has %d bytes: expected %d", len(id), C.OCTET_NCCL_ID)
	}
	if d.ordinal < 0 {
		return nil, fmt.Errorf("rank %d has an adopted context: NCCL needs the primary context, which Open uses", rank)
	}
	c.d, c.ranks = d, ranks
	return c, c.check(C.octet_comm_new(&d.c, c.lib.Table, (*C.char)(unsafe.Pointer(&id[0])), C.int(rank), C.int(ranks), &c.comm))
}

// loadComm loads NCCL.
func loadComm(cudaVersion int) (*Comm, error) {
	lib, err := openNCCL(cudaVersion)
	if err != nil {
		return nil, err
	}
	c := &Comm{Library: Library{lib.Path, ncclVersion(lib)}, lib: lib}
	if int(C.octet_nccl_version(lib.Table)) < oldestNCCL {
		return nil, fmt.Errorf("%s is NCCL %s: 2.9 or later is needed", c.Path, c.Version)
	}
	return c, nil
}

// check returns the error of a status. An entry may have failed in the driver, before it
// called NCCL.
func (c *Comm) check(s C.octet_status) error {
	if s.code == 0 {
		return nil
	}
	if e := (&Error{Call: C.GoString(s.call)}); e.driver() {
		return c.d.check(s)
	}
	return failed(s, func(code C.int) *C.char { return C.octet_nccl_text(c.lib.Table, code) })
}

// Err returns an asynchronous error of NCCL. After it no collective completes, and the
// communicator must be aborted.
func (c *Comm) Err() error { return c.check(C.octet_comm_error(&c.d.c, c.lib.Table, c.comm)) }

// Destroy frees an idle communicator: no stream has its work, and the graphs with its
// calls are closed. It returns when all ranks have called it, so each rank needs its own
// goroutine.
func (c *Comm) Destroy() error { return c.check(C.octet_comm_destroy(&c.d.c, c.lib.Table, c.comm)) }

// Abort ends the communicator: its pending work on streams ends with undefined results,
// and the communicator must not be used again. It may be called while another goroutine
// waits in a call. It returns when all ranks have called it and closed the graphs with
// calls of this communicator, so each rank needs its own goroutine.
func (c *Comm) Abort() error { return c.check(C.octet_comm_abort(&c.d.c, c.lib.Table, c.comm)) }

// AllReduceSum sums n FP32 values at x over the ranks, in place: bit for bit the same on
// all ranks, in an order that NCCL chooses.
func (c *Comm) AllReduceSum(s *Stream, x Ptr, n int) error {
	return c.collective(s, C.OCTET_SUM_F32, x, x, n)
}

// AllReduceMax computes the maxima of n int32 values at x over the ranks, in place.
func (c *Comm) AllReduceMax(s *Stream, x Ptr, n int) error {
	return c.collective(s, C.OCTET_MAX_I32, x, x, n)
}

// ReduceScatterSum sums ranks·n FP32 values at from over the ranks; rank r gets the r-th
// n of the sums.
func (c *Comm) ReduceScatterSum(s *Stream, to, from Ptr, n int) error {
	return c.collective(s, C.OCTET_SCATTER_SUM_F32, from, to, n)
}

// AllGather concatenates n bytes of each rank, in rank order.
func (c *Comm) AllGather(s *Stream, to, from Ptr, n int) error {
	return c.collective(s, C.OCTET_GATHER, from, to, n)
}

// AllToAll sends the r-th n bytes at from to rank r, and concatenates the n bytes from each
// rank, in rank order.
func (c *Comm) AllToAll(s *Stream, to, from Ptr, n int) error {
	return c.check(C.octet_all_to_all(&c.d.c, c.lib.Table, c.comm, s.s, C.int(c.ranks), C.uint64_t(from), C.uint64_t(to), C.size_t(n)))
}

func (c *Comm) collective(s *Stream, what uint32, from, to Ptr, n int) error {
	return c.check(C.octet_collective(&c.d.c, c.lib.Table, c.comm, s.s, what, C.uint64_t(from), C.uint64_t(to), C.size_t(n)))
}
