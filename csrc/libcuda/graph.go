//go:build cuda && cgo && linux

package libcuda

// #include "libcuda.h"
import "C"

import "runtime"

// Graph is recorded work of a stream. A launch repeats it: the same kernels with the same
// arguments.
type Graph struct {
	d *Device
	g C.octet_handle
}

// Capture returns a graph of the work that record enqueues, without running it. During
// the capture no call may wait for the stream, allocate or free memory: such a call
// fails, and the capture with it.
func (s *Stream) Capture(record func() error) (*Graph, error) {
	// A capture must end on the thread where it began.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := s.d.check(C.octet_capture_begin(&s.d.c, s.s)); err != nil {
		return nil, err
	}
	g := &Graph{d: s.d}
	err, discard := record(), C.int(0)
	if err != nil {
		discard = 1
	}
	end := s.d.check(C.octet_capture_end(&s.d.c, s.s, discard, &g.g))
	if err != nil { // the cause of an error in end
		return nil, err
	}
	if end != nil {
		return nil, end
	}
	return g, nil
}

// Launch enqueues the graph's work.
func (g *Graph) Launch(s *Stream) error { return g.d.check(C.octet_graph_launch(&g.d.c, g.g, s.s)) }

// Close frees the graph.
func (g *Graph) Close() error { return g.d.check(C.octet_graph_free(&g.d.c, g.g)) }
