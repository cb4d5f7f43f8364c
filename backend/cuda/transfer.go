//go:build cuda && cgo && linux

package cuda

import (
	"errors"
	"fmt"

	"octet/backend"
	"octet/csrc/libcuda"
)

// staging is page-locked memory for copies: two outboxes for writes to the device, an
// inbox for reads, and two marks, the numbers of the collectives that the device has reached and
// that its other nodes wait for.
//
// The device reads one outbox while the host fills the other. A write waits only when
// both are full, and then for the older outbox alone.
type staging struct {
	*libcuda.Pinned
	outbox int               // the one being filled
	used   int               // bytes of it
	read   [2]*libcuda.Event // the device has read a full outbox
}

// A micro-batch takes some ten KB of an outbox, so the device has read an outbox long
// before it is needed again.
const (
	outboxBytes = 512 << 10
	inboxBytes  = 1 << 20
	inboxAt     = 2 * outboxBytes
	markAt      = inboxAt + inboxBytes
	markBytes   = 8
	joinAt      = markAt + markBytes
)

func (d *device) stage() (err error) {
	s := &d.staging
	if s.Pinned, err = d.Pin(joinAt + markBytes); err != nil {
		return err
	}
	for i := range s.read {
		if s.read[i], err = d.gpu.NewEvent(); err != nil {
			return err
		}
	}
	return nil
}

func (s *staging) close() error {
	var errs []error
	if s.Pinned != nil {
		errs = append(errs, s.Pinned.Close())
	}
	return errors.Join(append(errs, closeEvents(s.read[:]...))...)
}

// Write returns when src was copied, before the device has the bytes.
func (d *device) Write(t *backend.Tensor, src []byte) error {
	to, err := d.contiguous(t, len(src))
	if err == nil {
		err = d.upload(to, src)
	}
	return err
}

func (d *device) Read(t *backend.Tensor, dst []byte) error {
	from, err := d.contiguous(t, len(dst))
	if err == nil {
		err = d.download(dst, from)
	}
	return err
}

const (
	toDevice   = "copy to the device"
	fromDevice = "copy from the device"
)

func (d *device) upload(to libcuda.Ptr, src []byte) error {
	s := &d.staging
	for len(src) > 0 {
		if s.used == outboxBytes {
			if err := d.nextOutbox(); err != nil {
				return err
			}
		}
		at := s.outbox*outboxBytes + s.used
		n := min(len(src), outboxBytes-s.used)
		copy(s.Bytes[at:at+n], src)
		if err := d.stream.UploadPinned(to, s.Pinned, at, n); err != nil {
			return d.failure(toDevice, 0, err)
		}
		s.used += n
		to, src = to+libcuda.Ptr(n), src[n:]
	}
	return nil
}

func (d *device) nextOutbox() error {
	s := &d.staging
	if err := d.stream.Record(s.read[s.outbox]); err != nil {
		return d.failure(toDevice, 0, err)
	}
	s.outbox, s.used = 1-s.outbox, 0
	return d.await(toDevice, s.read[s.outbox])
}

func (d *device) download(dst []byte, from libcuda.Ptr) error {
	for len(dst) > 0 {
		n := min(len(dst), inboxBytes)
		if err := d.stream.DownloadPinned(d.staging.Pinned, inboxAt, from, n); err != nil {
			return d.failure(fromDevice, 0, err)
		}
		if err := d.synchronize(fromDevice); err != nil {
			return err
		}
		copy(dst, d.staging.Bytes[inboxAt:inboxAt+n])
		from, dst = from+libcuda.Ptr(n), dst[n:]
	}
	return nil
}

// synchronize waits for all work on the stream.
func (d *device) synchronize(what string) error {
	return d.wait(func() error {
		if err := d.stream.Synchronize(); err != nil {
			return d.failure(what, 0, err)
		}
		return nil
	})
}

// await waits until the device has reached e.
func (d *device) await(what string, e *libcuda.Event) error {
	return d.wait(func() error {
		if err := e.Wait(); err != nil {
			return d.failure(what, 0, err)
		}
		return nil
	})
}

// fetch has its own page-locked memory, which the next Begin overwrites.
type fetch struct {
	*device
	from  []Region
	into  *libcuda.Pinned
	there *libcuda.Event
	err   error // of Begin
}

// Fetch prepares to read persistent tensors without waiting for later work.
func (d *device) Fetch(tensors ...*backend.Tensor) (backend.Fetch, error) {
	f, bytes := &fetch{device: d}, int64(0)
	for _, t := range tensors {
		at, err := d.contiguous(t, int(t.Bytes()))
		if err != nil {
			return nil, err
		}
		f.from = append(f.from, Region{at, t.Bytes()})
		bytes += t.Bytes()
	}
	d.fetches = append(d.fetches, f) // so that Close frees it even after an error below
	var err error
	if f.into, err = d.Pin(int(bytes)); err != nil {
		return nil, d.failure("lock host memory", 0, err)
	}
	if f.there, err = d.gpu.NewEvent(); err != nil {
		return nil, d.failure("make an event", 0, err)
	}
	return f, nil
}

func (f *fetch) Begin() {
	f.err = f.begin()
}

func (f *fetch) begin() error {
	if f.stream == nil {
		return backend.ErrClosed
	}
	at := 0
	for _, r := range f.from {
		if err := f.stream.DownloadPinned(f.into, at, r.At, int(r.Bytes)); err != nil {
			return f.failure(fromDevice, 0, err)
		}
		at += int(r.Bytes)
	}
	if err := f.stream.Record(f.there); err != nil {
		return f.failure(fromDevice, 0, err)
	}
	return nil
}

func (f *fetch) End(dst []byte) error {
	switch {
	case f.err != nil:
		return f.err
	case f.stream == nil:
		return backend.ErrClosed
	case len(dst) != len(f.into.Bytes):
		return fmt.Errorf("cuda: a fetch of %d bytes got a buffer of %d", len(f.into.Bytes), len(dst))
	}
	if err := f.await(fromDevice, f.there); err != nil {
		return err
	}
	copy(dst, f.into.Bytes)
	return nil
}

func (f *fetch) close() error {
	var errs []error
	if f.into != nil {
		errs = append(errs, f.into.Close())
	}
	return errors.Join(append(errs, closeEvents(f.there))...)
}

// closeEvents closes the events that are not nil.
func closeEvents(events ...*libcuda.Event) error {
	var errs []error
	for _, e := range events {
		if e != nil {
			errs = append(errs, e.Close())
		}
	}
	return errors.Join(errs...)
}
