//go:build gaudi && cgo && linux

package libsynapse

// #include "libsynapse.h"
import "C"

import "time"

// Stream is a queue of work on a device, done in order.
type Stream struct {
	d *Device
	s C.octet_syn_handle
}

// NewStream makes an empty stream, independent of all others.
func (d *Device) NewStream() (*Stream, error) {
	s := &Stream{d: d}
	if err := d.check(C.octet_syn_stream_new(d.lib.Table, d.id, &s.s)); err != nil {
		return nil, err
	}
	return s, nil
}

// Close gives the stream up. Nothing may be under way on it.
func (s *Stream) Close() error { return s.d.check(C.octet_syn_stream_free(s.d.lib.Table, s.s)) }

// Synchronize waits until everything on the stream is done, and returns the
// error that any of it may have met. It has been reported to return before the
// bytes of a CopyOut had landed: whoever reads them waits with a Fence.
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

// CopyIn copies the bytes of from that begin at offset to the device,
// asynchronously: they must not change before the stream got there.
func (s *Stream) CopyIn(to Ptr, from *Host, offset, bytes int) error {
	p, err := from.at(offset, bytes)
	if err != nil || bytes == 0 {
		return err
	}
	return s.d.check(C.octet_syn_copy_in(s.d.lib.Table, s.s, C.uint64_t(to), p, C.uint64_t(bytes)))
}

// CopyOut copies device memory to the bytes of to that begin at offset,
// asynchronously: see Synchronize and Fence for when they may be read.
func (s *Stream) CopyOut(to *Host, offset int, from Ptr, bytes int) error {
	p, err := to.at(offset, bytes)
	if err != nil || bytes == 0 {
		return err
	}
	return s.d.check(C.octet_syn_copy_out(s.d.lib.Table, s.s, p, C.uint64_t(from), C.uint64_t(bytes)))
}

// Event is a point on a stream's way.
type Event struct {
	d *Device
	e C.octet_syn_handle
}

// NewEvent makes an event that was not recorded yet.
func (d *Device) NewEvent() (*Event, error) {
	e := &Event{d: d}
	if err := d.check(C.octet_syn_event_new(d.lib.Table, d.id, &e.e)); err != nil {
		return nil, err
	}
	return e, nil
}

// Close frees the event.
func (e *Event) Close() error { return e.d.check(C.octet_syn_event_free(e.d.lib.Table, e.e)) }

// Record makes e the point that the stream reaches after what it was given.
func (e *Event) Record(s *Stream) error {
	return e.d.check(C.octet_syn_event_record(e.d.lib.Table, s.s, e.e))
}

// Elapsed waits for e and tells how long after start it was reached.
func (e *Event) Elapsed(start *Event) (time.Duration, error) {
	var ns C.uint64_t
	err := e.d.check(C.octet_syn_event_elapsed(e.d.lib.Table, start.e, e.e, &ns))
	return time.Duration(ns), err
}
