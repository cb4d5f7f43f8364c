//go:build cuda && cgo && linux

package libcuda

// #include "libcuda.h"
import "C"

import (
	"errors"
	"fmt"
)

// Comm is one rank's end of a communicator of NCCL: a GPU that meets others.
//
// What it is asked for is work of the rank's stream, asynchronous like all of
// it, and may be captured. It is done when all ranks asked for the same, of the
// same size, in the same order: until then the stream waits, and so may the
// call, since NCCL connects two GPUs when they first meet. A capture has to take
// place on all ranks or on none, and every launch of its graph too (NCCL user
// guide, Using NCCL with CUDA Graphs). The ranks need threads of their own.
type Comm struct {
	Library

	d    *Device
	lib  nccl
	comm C.octet_handle
}

// oldestNCCL is the first whose calls can be captured.
const oldestNCCL = 20900

// NewComms loads NCCL and makes a communicator over devices of this process, all
// different and none adopted: their order is that of the ranks.
func NewComms(devices []*Device) ([]*Comm, error) {
	if len(devices) == 0 {
		return nil, errors.New("a communicator of no devices")
	}
	lib, err := openNCCL(devices[0].Version)
	if err != nil {
		return nil, err
	}
	library := Library{lib.Path, ncclVersion(lib)}
	if int(C.octet_nccl_version(lib.Table)) < oldestNCCL {
		return nil, fmt.Errorf("%s is NCCL %s: 2.9 or later is needed", library.Path, library.Version)
	}
	ordinals, handles := make([]C.int, len(devices)), make([]C.octet_handle, len(devices))
	for i, d := range devices {
		if d.ordinal < 0 {
			return nil, fmt.Errorf("rank %d has an adopted context: NCCL works in those that Open takes", i)
		}
		ordinals[i] = C.int(d.ordinal)
	}
	status := C.octet_comms_new(lib.Table, C.int(len(devices)), &ordinals[0], &handles[0])
	list := make([]*Comm, len(devices))
	for i, d := range devices {
		list[i] = &Comm{library, d, lib, handles[i]}
	}
	return list, list[0].check(status)
}

// check knows that an entry may have failed in the driver, before it came to
// NCCL.
func (c *Comm) check(s C.octet_status) error {
	if s.code == 0 {
		return nil
	}
	if e := (&Error{Call: C.GoString(s.call)}); e.driver() {
		return c.d.check(s)
	}
	return failed(s, func(code C.int) *C.char { return C.octet_nccl_text(c.lib.Table, code) })
}

// Err is an error that NCCL met in the background, after which the ranks will
// not meet: Abort is all that is left.
func (c *Comm) Err() error { return c.check(C.octet_comm_error(&c.d.c, c.lib.Table, c.comm)) }

// Destroy frees the communicator of ranks that parted in order: nothing of it is
// left on any stream, and the graphs that hold its calls were closed. It comes
// back when all ranks destroy theirs: so each from a goroutine of its own.
func (c *Comm) Destroy() error { return c.check(C.octet_comm_destroy(&c.d.c, c.lib.Table, c.comm)) }

// Abort gives the communicator up: what streams wait for ends, with anything as
// its result, and nothing else may be asked of it. It may be called while another
// goroutine is in a call that waits. It comes back when the graphs that hold
// calls of this communicator were closed, on all ranks, and when all of them
// abort: so each from a goroutine of its own.
func (c *Comm) Abort() error { return c.check(C.octet_comm_abort(&c.d.c, c.lib.Table, c.comm)) }

// AllReduceSum adds up n FP32 numbers at x over the ranks, in place: bit for bit
// the same on all, in an order that NCCL chooses.
func (c *Comm) AllReduceSum(s *Stream, x Ptr, n int) error {
	return c.meet(s, C.OCTET_SUM_F32, x, x, n, 0)
}

// AllReduceMax takes the maxima of n int32 at x over the ranks, in place.
func (c *Comm) AllReduceMax(s *Stream, x Ptr, n int) error {
	return c.meet(s, C.OCTET_MAX_I32, x, x, n, 0)
}

// ReduceScatterSum adds up ranks·n FP32 numbers at from; rank r gets the r-th n
// of them.
func (c *Comm) ReduceScatterSum(s *Stream, to, from Ptr, n int) error {
	return c.meet(s, C.OCTET_SCATTER_SUM_F32, from, to, n, 0)
}

// AllGather puts n bytes of each rank one behind the other.
func (c *Comm) AllGather(s *Stream, to, from Ptr, n int) error {
	return c.meet(s, C.OCTET_GATHER, from, to, n, 0)
}

// Send hands n bytes to rank peer, and waits for its Recv.
func (c *Comm) Send(s *Stream, from Ptr, n, peer int) error {
	return c.meet(s, C.OCTET_SEND, from, 0, n, peer)
}

// Recv takes what rank peer sends.
func (c *Comm) Recv(s *Stream, to Ptr, n, peer int) error {
	return c.meet(s, C.OCTET_RECV, 0, to, n, peer)
}

func (c *Comm) meet(s *Stream, what uint32, from, to Ptr, n, peer int) error {
	return c.check(C.octet_meet(&c.d.c, c.lib.Table, c.comm, s.s, what, C.uint64_t(from), C.uint64_t(to), C.size_t(n), C.int(peer)))
}
