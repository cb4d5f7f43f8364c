//go:build gaudi && cgo && linux

package libsynapse

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// Fence tells when the bytes of CopyOut have landed in host memory. A
// synStreamSynchronize that returned is no proof, it has been reported; but a
// stream works in order, and writes of a device reach the host in order, so
// what was copied out is there as soon as a word that was copied out after it
// is.
type Fence struct {
	d *Device

	mu   sync.Mutex
	word Ptr
	host *Host
	turn byte
}

const fenceBytes = 4

// fencePatience is how long the word may take to land after the stream said
// that it was done.
const fencePatience = 10 * time.Second

// NewFence makes a fence, for all streams of the device.
func (d *Device) NewFence() (*Fence, error) {
	f := &Fence{d: d}
	var err error
	if f.word, err = d.Alloc(d.Align); err != nil {
		return nil, err
	}
	if f.host, err = d.Host(d.Align); err != nil {
		return nil, errors.Join(err, d.Free(f.word))
	}
	return f, nil
}

// Wait is Synchronize, and returns when everything that was copied out on the
// stream before can be read.
func (f *Fence) Wait(s *Stream) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.turn++
	if err := s.Fill(f.word, f.turn, fenceBytes); err != nil {
		return err
	}
	if err := s.CopyOut(f.host, 0, f.word, fenceBytes); err != nil {
		return err
	}
	if err := s.Synchronize(); err != nil {
		return err
	}
	landed := (*uint32)(unsafe.Pointer(unsafe.SliceData(f.host.bytes)))
	want := uint32(f.turn) * 0x01010101
	for deadline := time.Now().Add(fencePatience); atomic.LoadUint32(landed) != want; time.Sleep(10 * time.Microsecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("bytes that the device copied out had not arrived %v after the stream was done", fencePatience)
		}
	}
	return nil
}

// Close frees the fence.
func (f *Fence) Close() error { return errors.Join(f.host.Close(), f.d.Free(f.word)) }
