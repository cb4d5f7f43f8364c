//go:build cuda && cgo && linux

package libcuda

// #include "libcuda.h"
import "C"

import "runtime"

// Graph is recorded work of a stream, which one launch repeats: the same
// kernels with the same arguments.
type Graph struct {
	d *Device
	g C.octet_handle
}

// Capture makes a graph of what record gives to the stream, none of which is
// done now. While it records, nothing may wait for the stream, and memory may
// neither be allocated nor freed: such a call fails, and the capture with it.
func (s *Stream) Capture(record func() error) (*Graph, error) {
	// A capture has to end on the thread where it began.
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
	if err != nil { // it is why the end may have failed, too
		return nil, err
	}
	if end != nil {
		return nil, end
	}
	return g, nil
}

// Launch puts the graph's work on a stream.
func (g *Graph) Launch(s *Stream) error { return g.d.check(C.octet_graph_launch(&g.d.c, g.g, s.s)) }

// Close frees the graph.
func (g *Graph) Close() error { return g.d.check(C.octet_graph_free(&g.d.c, g.g)) }
