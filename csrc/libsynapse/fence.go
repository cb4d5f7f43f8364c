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

// Fence waits until the bytes of CopyOut have arrived in host memory.
// synStreamSynchronize has been reported to return earlier. But a stream works in order,
// and a device's writes reach the host in order: once a word that was copied out later
// has arrived, the bytes before it have, too.
type Fence struct {
	d *Device

	mu       sync.Mutex
	word     Ptr
	host     *Host
	sequence byte
}

const fenceBytes = 4

// fenceTimeout is how long the word may take to arrive after synStreamSynchronize.
const fenceTimeout = 10 * time.Second

// NewFence returns a fence for all streams of the device.
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

// Wait synchronizes the stream, and returns when everything copied out on it can be read.
func (f *Fence) Wait(s *Stream) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sequence++
	if err := s.Fill(f.word, f.sequence, fenceBytes); err != nil {
		return err
	}
	if err := s.CopyOut(f.host, 0, f.word, fenceBytes); err != nil {
		return err
	}
	if err := s.Synchronize(); err != nil {
		return err
	}
	landed := (*uint32)(unsafe.Pointer(unsafe.SliceData(f.host.bytes)))
	want := uint32(f.sequence) * 0x01010101
	for deadline := time.Now().Add(fenceTimeout); atomic.LoadUint32(landed) != want; time.Sleep(10 * time.Microsecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("bytes that the device copied out did not arrive within %v after the stream was done", fenceTimeout)
		}
	}
	return nil
}

// Close frees the fence.
func (f *Fence) Close() error { return errors.Join(f.host.Close(), f.d.Free(f.word)) }
