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

// Open makes a backend cuda that works in the context and on the stream.
//
// A home is where a variable is, by its name: memory of the context, in the
// variable's format, row-major and without gaps, aligned to 256 bytes. What is
// there stays there when variables are bound, and programs read and write it in
// place. See cuda.Adopt for what else holds; stream and homes have to outlive
// the backend, and its Close has to come before the context's. Not to be called
// by a function that ctx.Do runs: it waits for ctx.Do itself.
func Open(ctx cu.Context, stream cu.Stream, homes map[string]cu.DevicePtr) (backend.Backend, error) {
	if stream == cu.NoStream {
		return nil, errors.New("backend cuda for gorgonia: the default stream cannot be recorded: make one with MakeStream(cu.NonBlocking)")
	}
	d, err := Device(ctx)
	if err != nil {
		return nil, err
	}
	regions := map[string]cuda.Region{}
	for name, p := range homes {
		if regions[name], err = region(ctx, p); err != nil {
			return nil, fmt.Errorf("backend cuda for gorgonia: the home of %s, %v: %w", name, p, err)
		}
	}
	return cuda.Adopt(d, Stream(d, stream), regions)
}

// Device is the GPU of a context, in that context. It keeps the context from the
// garbage collector, whose finalizer would destroy it; Close leaves it as it is.
func Device(ctx cu.Context) (*libcuda.Device, error) {
	c := ctx.CUDAContext()
	// The one way by which cu shows its handle: String prints it as 0x….
	handle, err := strconv.ParseUint(c.String(), 0, 64)
	if err != nil {
		return nil, fmt.Errorf("the handle of the CUDA context %v: %w", c, err)
	}
	return libcuda.Adopt(uintptr(handle), ctx)
}

// Stream is a stream of the device's context. Close leaves it as it is.
func Stream(d *libcuda.Device, s cu.Stream) *libcuda.Stream {
	return d.AdoptStream(uintptr(unsafe.Pointer(s.C())))
}

// region is the memory from p to the end of its allocation.
func region(ctx cu.Context, p cu.DevicePtr) (r cuda.Region, err error) {
	err = ctx.Do(func() error {
		size, base, err := p.AddressRange()
		r = cuda.Region{At: libcuda.Ptr(p), Bytes: size - int64(p-base)}
		return err
	})
	return r, err
}
