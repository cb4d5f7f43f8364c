//go:build gaudi && cgo && linux

package libsynapse

// #include "libsynapse.h"
// #include "api.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// Comm is a communicator of HCCL, whose functions are in SynapseAI's library: one device
// in each of several processes. Every rank has to call the same functions in the same
// order. Collectives run asynchronously on the given stream.
type Comm struct {
	d *Device
	c C.octet_syn_handle

	ranks int
}

// UniqueID returns the id of a new communicator. One rank calls it, with its device open,
// and passes it to all others.
func UniqueID() ([]byte, error) {
	lib, err := startSynapse()
	if err != nil {
		return nil, err
	}
	if err := hasHCCL(lib); err != nil {
		return nil, err
	}
	id := make([]byte, C.OCTET_UNIQUE_ID)
	return id, hcclError(lib, C.octet_syn_unique_id(lib.Table, unsafe.Pointer(unsafe.SliceData(id))))
}

func hasHCCL(lib synapse) error {
	if len(lib.Missing) > 0 {
		return fmt.Errorf("%s has no %s: this SynapseAI has no HCCL, which several devices need", lib.Path, lib.Missing[0])
	}
	return nil
}

func hcclError(lib synapse, s C.octet_syn_status) error {
	return statusError(s, func(code C.int) string { return C.GoString(C.octet_hccl_text(lib.Table, code)) })
}

// NewComm joins the communicator with this id as one of its ranks, and returns when all
// ranks have joined.
func (d *Device) NewComm(id []byte, ranks, rank int) (*Comm, error) {
	if len(id) != C.OCTET_UNIQUE_ID {
		return nil, fmt.Errorf("an HCCL id has %d bytes, want %d", len(id), C.OCTET_UNIQUE_ID)
	}
	if rank < 0 || rank >= ranks {
		return nil, fmt.Errorf("rank %d is not one of %d", rank, ranks)
	}
	if err := hasHCCL(d.lib); err != nil {
		return nil, err
	}
	c := &Comm{d: d, ranks: ranks}
	err := c.check(C.octet_syn_comm_new(d.lib.Table, unsafe.Pointer(unsafe.SliceData(id)), C.int(ranks), C.int(rank), &c.c))
	if err != nil {
		return nil, fmt.Errorf("rank %d of %d: %w", rank, ranks, err)
	}
	return c, nil
}

// Close leaves the communicator after the pending collectives. Call it before the
// device's Close.
func (c *Comm) Close() error { return c.check(C.octet_syn_comm_free(c.d.lib.Table, c.c)) }

func (c *Comm) check(s C.octet_syn_status) error { return hcclError(c.d.lib, s) }

// hcclTypes are the types that HCCL computes with (its documentation). Data of other
// types can be moved as one of these.
var hcclTypes = map[DataType]C.int{
	I32: C.hcclInt32, U32: C.hcclUint32, F16: C.hcclFloat16, F32: C.hcclFloat32, BF16: C.hcclBfloat16,
}

var hcclOps = map[Reduction]C.int{Sum: C.hcclSum, Max: C.hcclMax}

func hcclType(t DataType) (C.int, error) {
	c, ok := hcclTypes[t]
	if !ok {
		return 0, fmt.Errorf("HCCL does not support %s, only f32, bf16, f16, i32 and u32", t)
	}
	return c, nil
}

// AllReduce replaces count elements at p, on every rank, by the reduction over all ranks.
// The summation order is HCCL's.
func (c *Comm) AllReduce(s *Stream, p Ptr, count int, t DataType, op Reduction) error {
	kind, err := hcclType(t)
	if err != nil {
		return err
	}
	return c.check(C.octet_syn_all_reduce(c.d.lib.Table, c.c, s.s, C.uint64_t(p), C.uint64_t(count), kind, hcclOps[op]))
}

// ReduceScatter reduces ranks·count elements at from over all ranks, and stores count of
// them at to on each rank: those from index rank·count on.
func (c *Comm) ReduceScatter(s *Stream, to, from Ptr, count int, t DataType, op Reduction) error {
	kind, err := hcclType(t)
	if err != nil {
		return err
	}
	return c.check(C.octet_syn_reduce_scatter(c.d.lib.Table, c.c, s.s, C.uint64_t(to), C.uint64_t(from), C.uint64_t(count), kind, hcclOps[op]))
}

// AllGather concatenates the count elements that each rank has at from, in the order of
// ranks, at to on every rank.
func (c *Comm) AllGather(s *Stream, to, from Ptr, count int, t DataType) error {
	kind, err := hcclType(t)
	if err != nil {
		return err
	}
	return c.check(C.octet_syn_all_gather(c.d.lib.Table, c.c, s.s, C.uint64_t(to), C.uint64_t(from), C.uint64_t(count), kind))
}

// AllToAll sends the r-th count elements at from to rank r, and stores those from each rank at to,
// in the order of ranks.
func (c *Comm) AllToAll(s *Stream, to, from Ptr, count int, t DataType) error {
	kind, err := hcclType(t)
	if err != nil {
		return err
	}
	return c.check(C.octet_syn_all_to_all(c.d.lib.Table, c.c, s.s, C.uint64_t(to), C.uint64_t(from), C.uint64_t(count*c.ranks), kind))
}

// Broadcast replaces the count elements at p, on every rank, by those of rank root.
func (c *Comm) Broadcast(s *Stream, p Ptr, count int, t DataType, root int) error {
	kind, err := hcclType(t)
	if err != nil {
		return err
	}
	return c.check(C.octet_syn_broadcast(c.d.lib.Table, c.c, s.s, C.uint64_t(p), C.uint64_t(count), kind, C.int(root)))
}
