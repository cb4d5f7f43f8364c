//go:build cuda && gorgonia && cgo && linux

package gorgonia

import (
	"errors"
	"fmt"
	"strconv"
	"unsafe"

	"gorgonia.org/cu"

	"octet/backend"
	"octet/backend/cuda"
	"octet/csrc/libcuda"
)

// Open returns a backend cuda that works in the context and on the stream.
//
// External maps names of variables to memory of the context, in the variable's format,
// row-major, contiguous and aligned to 256 bytes. Load does not clear it, and programs
// read and write it in place. See cuda.Adopt for other conditions. Stream and memory must
// outlive the backend, and Close must precede the context's. Do not call Open from a
// function that ctx.Do runs: it waits for ctx.Do itself.
func Open(ctx cu.Context, stream cu.Stream, external map[string]cu.DevicePtr) (backend.Backend, error) {
	if stream == cu.NoStream {
		return nil, errors.New("backend cuda for gorgonia: CUDA cannot record the default stream: create one with MakeStream(cu.NonBlocking)")
	}
	d, err := Device(ctx)
	if err != nil {
		return nil, err
	}
	regions := map[string]cuda.Region{}
	for name, p := range external {
		if regions[name], err = region(ctx, p); err != nil {
			return nil, fmt.Errorf("backend cuda for gorgonia: the external memory of %s, %v: %w", name, p, err)
		}
	}
	return cuda.Adopt(d, Stream(d, stream), regions)
}

// Device returns the GPU of a context, in that context. It keeps the context reachable,
// so that the garbage collector's finalizer does not destroy it; Close leaves it open.
func Device(ctx cu.Context) (*libcuda.Device, error) {
	c := ctx.CUDAContext()
	// cu exposes its handle only by String, as 0x….
	handle, err := strconv.ParseUint(c.String(), 0, 64)
	if err != nil {
		return nil, fmt.Errorf("the handle of the CUDA context %v: %w", c, err)
	}
	return libcuda.Adopt(uintptr(handle), ctx)
}

// Stream returns a stream of the device's context. Close leaves it open.
func Stream(d *libcuda.Device, s cu.Stream) *libcuda.Stream {
	return d.AdoptStream(uintptr(unsafe.Pointer(s.C())))
}

// region returns the memory from p to the end of its allocation.
func region(ctx cu.Context, p cu.DevicePtr) (r cuda.Region, err error) {
	err = ctx.Do(func() error {
		size, base, err := p.AddressRange()
		r = cuda.Region{At: libcuda.Ptr(p), Bytes: size - int64(p-base)}
		return err
	})
	return r, err
}
