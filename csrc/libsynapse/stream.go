//go:build gaudi && cgo && linux

package libsynapse

// #include "libsynapse.h"
import "C"

import "time"

// Stream is a queue of work that a device runs in order.
type Stream struct {
	d *Device
	s C.octet_syn_handle
}

// NewStream returns an empty stream, independent of all others.
func (d *Device) NewStream() (*Stream, error) {
	s := &Stream{d: d}
	if err := d.check(C.octet_syn_stream_new(d.lib.Table, d.id, &s.s)); err != nil {
		return nil, err
	}
	return s, nil
}

// Close destroys the stream. No work may be pending on it.
func (s *Stream) Close() error { return s.d.check(C.octet_syn_stream_free(s.d.lib.Table, s.s)) }

// Synchronize waits until all work on the stream is done, and returns its error. It has
// been reported to return before the bytes of a CopyOut have arrived: use a Fence before
// reading them.
func (s *Stream) Synchronize() error { return s.d.check(C.octet_syn_stream_wait(s.d.lib.Table, s.s)) }

// Fill sets bytes of device memory, asynchronously.
func (s *Stream) Fill(to Ptr, value byte, bytes int) error {
	if bytes == 0 {
		return nil
	}
	return s.d.check(C.octet_syn_fill(s.d.lib.Table, s.s, C.uint64_t(to), C.uint8_t(value), C.uint64_t(bytes)))
}

// Copy copies within device memory, asynchronously.
func (s *Stream) Copy(to, from Ptr, bytes int) error {
	if bytes == 0 {
		return nil
	}
	return s.d.check(C.octet_syn_copy(s.d.lib.Table, s.s, C.uint64_t(to), C.uint64_t(from), C.uint64_t(bytes)))
}

// CopyIn copies bytes of from, starting at offset, to the device, asynchronously: they
// must not change before the stream has read them.
func (s *Stream) CopyIn(to Ptr, from *Host, offset, bytes int) error {
	p, err := from.at(offset, bytes)
	if err != nil || bytes == 0 {
		return err
	}
	return s.d.check(C.octet_syn_copy_in(s.d.lib.Table, s.s, C.uint64_t(to), p, C.uint64_t(bytes)))
}

// CopyOut copies device memory to bytes of to, starting at offset, asynchronously: wait
// with a Fence before reading them.
func (s *Stream) CopyOut(to *Host, offset int, from Ptr, bytes int) error {
	p, err := to.at(offset, bytes)
	if err != nil || bytes == 0 {
		return err
	}
	return s.d.check(C.octet_syn_copy_out(s.d.lib.Table, s.s, p, C.uint64_t(from), C.uint64_t(bytes)))
}

// Event is a point in a stream's work.
type Event struct {
	d *Device
	e C.octet_syn_handle
}

// NewEvent returns an unrecorded event.
func (d *Device) NewEvent() (*Event, error) {
	e := &Event{d: d}
	if err := d.check(C.octet_syn_event_new(d.lib.Table, d.id, &e.e)); err != nil {
		return nil, err
	}
	return e, nil
}

// Close frees the event.
func (e *Event) Close() error { return e.d.check(C.octet_syn_event_free(e.d.lib.Table, e.e)) }

// Record records e on a stream, after the work submitted so far.
func (e *Event) Record(s *Stream) error {
	return e.d.check(C.octet_syn_event_record(e.d.lib.Table, s.s, e.e))
}

// Elapsed waits for e and returns the time from start to e.
func (e *Event) Elapsed(start *Event) (time.Duration, error) {
	var ns C.uint64_t
	err := e.d.check(C.octet_syn_event_elapsed(e.d.lib.Table, start.e, e.e, &ns))
	return time.Duration(ns), err
}
