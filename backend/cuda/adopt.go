//go:build cuda && cgo && linux

package cuda

import (
	"cmp"
	"fmt"
	"slices"

	"octet/backend"
	"octet/csrc/libcuda"
)

// Region is device memory that its user does not own.
type Region struct {
	At    libcuda.Ptr
	Bytes int64
}

// Adopt returns a backend that works in an existing context and on an existing stream of
// this process (libcuda.Adopt, AdoptStream). The stream orders the work of both: a Run
// comes after the work that was enqueued before it and before the work that is enqueued
// later, without synchronization.
//
// External maps names of variables to device memory that other code owns, in the
// variable's format, row-major, contiguous and aligned to 256 bytes. Load allocates
// nothing for these variables and does not clear them; programs read and write them in
// place. The regions must outlive the backend.
//
// The second Run of a program records its graph. Until it returns, no other code may use
// the stream, nor the default stream unless the stream was created non-blocking.
//
// Close destroys cuBLASLt's handle, unloads all kernels and closes d and s, which leaves
// an adopted context and stream intact. After it the context can be destroyed.
func Adopt(d *libcuda.Device, s *libcuda.Stream, external map[string]Region) (backend.Backend, error) {
	if err := fit(d.Version, d.GPU, "the context's GPU"); err != nil {
		return nil, fmt.Errorf("backend cuda: %w", err)
	}
	g, err := newGPU(d)
	if err != nil {
		return nil, fmt.Errorf("backend cuda: %w", err)
	}
	b, err := (&device{gpu: g, stream: s, adopted: true, external: external}).start()
	if err != nil {
		return nil, err
	}
	return b, nil
}

// place returns the addresses of the variables that live in external memory.
func place(vars *backend.Vars, external map[string]Region) (map[*backend.Tensor]libcuda.Ptr, error) {
	type region struct {
		t        *backend.Tensor
		from, to uint64
	}
	var list []region
	for name, r := range external {
		t := vars.Lookup(name)
		switch {
		case t == nil:
			return nil, fmt.Errorf("cuda: external memory was given for %s, but there is no variable of that name", name)
		case r.At == 0 || r.At%align != 0:
			return nil, fmt.Errorf("cuda: the external memory of %s is at %#x, align it to %d bytes", t, uint64(r.At), align)
		case r.Bytes < t.Bytes():
			return nil, fmt.Errorf("cuda: the external memory of %s has %d bytes, the variable needs %d", t, r.Bytes, t.Bytes())
		}
		list = append(list, region{t, uint64(r.At), uint64(r.At) + uint64(t.Bytes())})
	}
	slices.SortFunc(list, func(a, b region) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.t.Name, b.t.Name)) })
	at := map[*backend.Tensor]libcuda.Ptr{}
	for i, h := range list {
		if i > 0 && list[i-1].to > h.from {
			return nil, fmt.Errorf("cuda: the external memory of %s and %s overlaps", list[i-1].t, h.t)
		}
		at[h.t] = libcuda.Ptr(h.from)
	}
	return at, nil
}
