//go:build cuda && cgo && linux

package cuda

import (
	"cmp"
	"fmt"
	"slices"

	"octet/backend"
	"octet/csrc/libcuda"
)

// Region is memory of a device that somebody else owns.
type Region struct {
	At    libcuda.Ptr
	Bytes int64
}

// Adopt makes a backend that works in a context and on a stream of another part
// of this process (libcuda.Adopt, AdoptStream). The stream orders what both do:
// a Run comes after what was put there before it and before what is put there
// later, and nothing has to wait.
//
// A home is where a variable is, by its name: memory of the other part's, in the
// variable's format, row-major and without gaps, aligned to 256 bytes. Bind
// leaves the bytes there as they are, and takes no memory for that variable:
// what reads and writes it does so there, and nothing is copied. Homes have to
// outlive the backend.
//
// The second Run of a program records it: meanwhile nobody else may use the
// stream, nor the default stream, unless the stream was made non-blocking.
//
// Close takes cuBLASLt and all kernels off the device and closes d and s, which
// leaves adopted ones as they are: the context can be ended after it.
func Adopt(d *libcuda.Device, s *libcuda.Stream, homes map[string]Region) (backend.Backend, error) {
	if err := fit(d.Version, d.GPU, "the context's GPU"); err != nil {
		return nil, fmt.Errorf("backend cuda: %w", err)
	}
	g, err := newGPU(d)
	if err != nil {
		return nil, fmt.Errorf("backend cuda: %w", err)
	}
	b, err := (&device{gpu: g, stream: s, adopted: true, given: homes}).start()
	if err != nil {
		return nil, err
	}
	return b, nil
}

// place finds the variables that have homes.
func place(vars *backend.Vars, homes map[string]Region) (map[*backend.Tensor]libcuda.Ptr, error) {
	type home struct {
		t        *backend.Tensor
		from, to uint64
	}
	var list []home
	for name, r := range homes {
		t := vars.Lookup(name)
		switch {
		case t == nil:
			return nil, fmt.Errorf("cuda: a home was given to %s, and there is no variable of that name", name)
		case r.At == 0 || r.At%align != 0:
			return nil, fmt.Errorf("cuda: the home of %s is at %#x: it must be aligned to %d bytes", t, uint64(r.At), align)
		case r.Bytes < t.Bytes():
			return nil, fmt.Errorf("cuda: the home of %s has %d bytes, the variable %d", t, r.Bytes, t.Bytes())
		}
		list = append(list, home{t, uint64(r.At), uint64(r.At) + uint64(t.Bytes())})
	}
	slices.SortFunc(list, func(a, b home) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.t.Name, b.t.Name)) })
	at := map[*backend.Tensor]libcuda.Ptr{}
	for i, h := range list {
		if i > 0 && list[i-1].to > h.from {
			return nil, fmt.Errorf("cuda: the homes of %s and %s overlap", list[i-1].t, h.t)
		}
		at[h.t] = libcuda.Ptr(h.from)
	}
	return at, nil
}
