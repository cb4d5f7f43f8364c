//go:build cuda && cgo && linux

package libcuda

// #cgo noescape octet_upload
// #cgo nocallback octet_upload
// #cgo noescape octet_download
// #cgo nocallback octet_download
// #include "libcuda.h"
import "C"

import (
	"fmt"
	"time"
	"unsafe"
)

// Stream is a queue of work on a device, executed in order.
type Stream struct {
	d       *Device
	s       C.octet_handle
	adopted bool // created by other code, which destroys it
}

// NewStream returns an empty stream, independent of all others.
func (d *Device) NewStream() (*Stream, error) {
	s := &Stream{d: d}
	return s, d.check(C.octet_stream_new(&d.c, &s.s))
}

// AdoptStream returns a Stream for an existing CUstream of the device's context; 0 is the
// default stream, which cannot be captured. Close leaves it intact.
func (d *Device) AdoptStream(stream uintptr) *Stream {
	return &Stream{d: d, s: C.octet_handle(stream), adopted: true}
}

// Close destroys the stream; its pending work still completes.
func (s *Stream) Close() error {
	if s.adopted {
		return nil
	}
	return s.d.check(C.octet_stream_free(&s.d.c, s.s))
}

// Synchronize waits for all work of the stream and returns its error, if any.
func (s *Stream) Synchronize() error { return s.d.check(C.octet_stream_wait(&s.d.c, s.s)) }

// Idle reports, without waiting, whether all work of the stream is done, and returns its
// error, if any. During a Capture of the stream, in any goroutine, the call invalidates
// the capture.
func (s *Stream) Idle() (bool, error) {
	var idle C.int
	err := s.d.check(C.octet_stream_query(&s.d.c, s.s, &idle))
	return idle != 0, err
}

// Fill sets bytes of device memory, asynchronously.
func (s *Stream) Fill(to Ptr, value byte, bytes int) error {
	return s.d.check(C.octet_fill(&s.d.c, s.s, C.uint64_t(to), C.uint8_t(value), C.size_t(bytes)))
}

// Copy copies within device memory, asynchronously.
func (s *Stream) Copy(to, from Ptr, bytes int) error {
	return s.d.check(C.octet_copy(&s.d.c, s.s, C.uint64_t(to), C.uint64_t(from), C.size_t(bytes)))
}

// Upload copies host memory to the device after the stream's pending work, and waits.
func (s *Stream) Upload(to Ptr, from []byte) error { return s.upload(to, from, 1) }

// Download copies device memory to the host after the stream's pending work, and waits.
func (s *Stream) Download(to []byte, from Ptr) error { return s.download(to, from, 1) }

// UploadPinned copies bytes of from, beginning at offset, asynchronously: they must not
// change before the stream has executed the copy.
func (s *Stream) UploadPinned(to Ptr, from *Pinned, offset, bytes int) error {
	b, err := from.slice(offset, bytes)
	if err != nil {
		return err
	}
	return s.upload(to, b, 0)
}

// DownloadPinned copies to bytes of to, beginning at offset, asynchronously: they may be
// read after a Synchronize, or after the Wait for a later Event.
func (s *Stream) DownloadPinned(to *Pinned, offset int, from Ptr, bytes int) error {
	b, err := to.slice(offset, bytes)
	if err != nil {
		return err
	}
	return s.download(b, from, 0)
}

func (p *Pinned) slice(offset, bytes int) ([]byte, error) {
	if offset < 0 || bytes < 0 || offset > len(p.Bytes)-bytes {
		return nil, fmt.Errorf("copy %d bytes at offset %d of %d bytes of page-locked memory", bytes, offset, len(p.Bytes))
	}
	return p.Bytes[offset : offset+bytes], nil
}

func (s *Stream) upload(to Ptr, from []byte, wait C.int) error {
	return s.d.check(C.octet_upload(&s.d.c, s.s, C.uint64_t(to), unsafe.Pointer(unsafe.SliceData(from)), C.size_t(len(from)), wait))
}

func (s *Stream) download(to []byte, from Ptr, wait C.int) error {
	return s.d.check(C.octet_download(&s.d.c, s.s, unsafe.Pointer(unsafe.SliceData(to)), C.uint64_t(from), C.size_t(len(to)), wait))
}

// Event marks a position in a stream.
type Event struct {
	d *Device
	e C.octet_handle
}

// NewEvent returns an event that is not recorded.
func (d *Device) NewEvent() (*Event, error) { return d.newEvent(1) }

// NewOrder returns an event without a time, which only orders streams. It takes less time to
// record, and Since fails.
func (d *Device) NewOrder() (*Event, error) { return d.newEvent(0) }

func (d *Device) newEvent(timing C.int) (*Event, error) {
	e := &Event{d: d}
	if err := d.check(C.octet_event_new(&d.c, timing, &e.e)); err != nil {
		return nil, err
	}
	return e, nil
}

// Close frees the event.
func (e *Event) Close() error { return e.d.check(C.octet_event_free(&e.d.c, e.e)) }

// Record enqueues e after the stream's pending work.
func (s *Stream) Record(e *Event) error { return s.d.check(C.octet_event_record(&s.d.c, s.s, e.e)) }

// WaitFor makes later work of s wait for the last Record of e, on any stream of the device. It
// returns at once. For an event that is not recorded it does nothing.
//
// In a Capture of the stream of that Record, s takes part in the capture until it ends. All its
// work must come before the end of the captured stream: that stream must wait for an event
// which s records after it. An event of a capture cannot be used outside before it is recorded
// again.
func (s *Stream) WaitFor(e *Event) error {
	return s.d.check(C.octet_stream_wait_event(&s.d.c, s.s, e.e))
}

// Wait waits until the stream has reached e, and returns an error of the work before e,
// if any. Work after e may still be pending. For an event that is not recorded it returns
// at once.
func (e *Event) Wait() error { return e.d.check(C.octet_event_wait(&e.d.c, e.e)) }

// Since waits for e and returns the time from start to e, with a resolution of half a
// microsecond.
func (e *Event) Since(start *Event) (time.Duration, error) {
	var ms C.float
	err := e.d.check(C.octet_event_elapsed(&e.d.c, start.e, e.e, &ms))
	return time.Duration(float64(ms) * float64(time.Millisecond)), err
}
