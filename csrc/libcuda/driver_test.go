//go:build cuda && cgo && linux

package libcuda

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/csrc/standin"
)

// device opens a GPU and closes it after the test. A stand-in's Close fails if anything
// leaked; a real driver does not check.
func device(t *testing.T) *Device {
	standin.Load(t, "libcuda")
	d, err := Open(0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

func stream(t *testing.T, d *Device) *Stream {
	s, err := d.NewStream()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func alloc(t *testing.T, d *Device, bytes int) Ptr {
	p, err := d.Alloc(bytes)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Free(p)) })
	return p
}

func pin(t *testing.T, d *Device, bytes int) *Pinned {
	p, err := d.Pin(bytes)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// code returns the code of an Error, 0 for any other error.
func code(err error) int {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}

func TestDeviceDescribesItself(t *testing.T) {
	standin.Only(t, "the properties of a real GPU are not known")
	d := device(t)
	require.Equal(t, GPU{Name: "Stand-in 0", Bus: "0000:10:00.0", Major: 9, Memory: 80 << 30, Processors: 132, Shared: 227 << 10}, d.GPU)
	require.Equal(t, 13000, d.Version)
	require.Equal(t, "sm_90a", d.Arch())
	require.Equal(t, "sm_89", GPU{Major: 8, Minor: 9}.Arch())
}

func TestNoSuchDevice(t *testing.T) {
	device(t)
	_, err := Open(1000)
	require.ErrorContains(t, err, "cuDeviceGet returned 101: ")
}

// An owner and an adopting Device share memory and streams, and Close of the adopting one
// leaves the context open.
func TestAdopt(t *testing.T) {
	owner := device(t)
	adopted, err := Adopt(uintptr(owner.c.context), owner)
	require.NoError(t, err)
	require.Equal(t, owner.GPU, adopted.GPU)
	require.Equal(t, owner.Version, adopted.Version)

	theirs := stream(t, owner)
	s := adopted.AdoptStream(uintptr(theirs.s))
	p := alloc(t, owner, 16)
	require.NoError(t, theirs.Fill(p, 3, 16))
	require.NoError(t, s.Fill(p+8, 5, 8))
	got := make([]byte, 16)
	require.NoError(t, s.Download(got, p), "one stream, in order")
	require.Equal(t, "\x03\x03\x03\x03\x03\x03\x03\x03\x05\x05\x05\x05\x05\x05\x05\x05", string(got))

	require.NoError(t, s.Close())
	require.NoError(t, adopted.Close())
	require.NoError(t, theirs.Synchronize(), "Close of an adopting device leaves the context open")

	_, err = Adopt(0, nil)
	require.EqualError(t, err, "adopt a CUDA context: it is null")
}

func TestAdoptInvalidContext(t *testing.T) {
	standin.Only(t, "a real driver may dereference an invalid pointer")
	owner := device(t)
	_, err := Adopt(12345, owner)
	require.EqualError(t, err, "adopt a CUDA context: cuCtxSetCurrent returned 201: stand-in error")
}

func TestMemory(t *testing.T) {
	d := device(t)
	p := alloc(t, d, 1000)
	require.Zero(t, p%256)
	free, total, err := d.Memory()
	require.NoError(t, err)
	require.LessOrEqual(t, free, total-1000)
	require.Equal(t, 1, code(d.Free(p+1)))
	_, err = d.Alloc(0)
	require.Equal(t, 1, code(err))
}

func TestMemoryIsCounted(t *testing.T) {
	standin.Only(t, "real drivers allocate whole pages")
	d := device(t)
	alloc(t, d, 1000)
	free, total, err := d.Memory()
	require.NoError(t, err)
	require.Equal(t, uint64(80<<30), total)
	require.Equal(t, total-1000, free)
	require.Equal(t, make([]byte, 100), pin(t, d, 100).Bytes)
}

func TestOutOfMemory(t *testing.T) {
	d := device(t)
	standin.Set(t, "STANDIN_OOM", "1000")
	alloc(t, d, 600)
	_, err := d.Alloc(500)
	require.EqualError(t, err, "500 bytes of device memory: cuMemAlloc_v2 returned 2: out of memory")
	var e *Error
	require.ErrorAs(t, err, &e)
	require.True(t, e.OutOfMemory())
}

func TestCopies(t *testing.T) {
	d := device(t)
	s := stream(t, d)
	a, b := alloc(t, d, 64), alloc(t, d, 64)
	got := make([]byte, 64)
	data := []byte("FP8 trains large language models, in Go")
	require.NoError(t, s.Fill(a, 7, 64))
	require.NoError(t, s.Upload(a+3, data))
	require.NoError(t, s.Copy(b, a+1, 50))
	require.NoError(t, s.Download(got[:50], b))
	want := append(append([]byte{7, 7}, data...), bytes.Repeat([]byte{7}, 50-2-len(data))...)
	require.Equal(t, want, got[:50])

	// Empty copies succeed without a call of the driver, which may refuse them.
	require.NoError(t, s.Upload(a, nil))
	require.NoError(t, s.Download(nil, a))
	require.NoError(t, s.Copy(b, a, 0))
	require.NoError(t, s.Fill(a, 7, 0))
}

func TestCopiesOfStrangeMemory(t *testing.T) {
	standin.Only(t, "a real driver leaves fresh memory undefined and checks whole pages")
	d := device(t)
	s := stream(t, d)
	a, b := alloc(t, d, 64), alloc(t, d, 64)
	got := make([]byte, 64)
	require.NoError(t, s.Download(got, a))
	require.Equal(t, bytes.Repeat([]byte{0xff}, 64), got, "fresh memory")
	require.Equal(t, 1, code(s.Upload(a+30, got)), "beyond the end")
	require.Equal(t, 1, code(s.Copy(b, a+40, 40)))
}

// Copies of page-locked memory happen when the stream executes them: the bytes of that
// moment are copied, and none arrive without a wait.
func TestPinnedCopiesAreAsynchronous(t *testing.T) {
	standin.Only(t, "the timing of a real GPU is not known")
	d := device(t)
	s := stream(t, d)
	p, from, to := alloc(t, d, 16), pin(t, d, 32), pin(t, d, 32)
	copy(from.Bytes[8:], "early bytes 1234")
	require.NoError(t, s.UploadPinned(p, from, 8, 16))
	require.NoError(t, s.DownloadPinned(to, 4, p, 16))
	require.Equal(t, make([]byte, 32), to.Bytes)
	copy(from.Bytes[8:], "later")
	require.NoError(t, s.Synchronize())
	require.Equal(t, "later bytes 1234", string(to.Bytes[4:20]))

	require.EqualError(t, s.UploadPinned(p, from, 20, 16), "copy 16 bytes at offset 20 of 32 bytes of page-locked memory")
	require.Error(t, s.DownloadPinned(to, -1, p, 1))
	require.Error(t, s.DownloadPinned(to, 0, p, -1))
}

func TestEvents(t *testing.T) {
	d := device(t)
	s := stream(t, d)
	p := alloc(t, d, 1<<20)
	var events [2]*Event
	for i := range events {
		e, err := d.NewEvent()
		require.NoError(t, err)
		defer func() { require.NoError(t, e.Close()) }()
		events[i] = e
	}
	_, err := events[1].Since(events[0])
	require.Equal(t, 400, code(err), "never recorded")
	require.NoError(t, s.Record(events[0]))
	require.NoError(t, s.Fill(p, 1, 1<<20))
	require.NoError(t, s.Record(events[1]))
	took, err := events[1].Since(events[0])
	require.NoError(t, err)
	require.Positive(t, took)
	back, err := events[0].Since(events[1])
	require.NoError(t, err)
	require.InDelta(t, took, -back, float64(time.Microsecond))
}

// Wait leaves work after the event pending, and waits for the latest position at which
// the event was recorded.
func TestWaitForAnEvent(t *testing.T) {
	standin.Only(t, "a real GPU works without a wait")
	d := device(t)
	s := stream(t, d)
	p := alloc(t, d, 4)
	e, err := d.NewEvent()
	require.NoError(t, err)
	defer func() { require.NoError(t, e.Close()) }()
	require.NoError(t, e.Wait(), "never recorded")
	host := pin(t, d, 4)
	shown := func(value byte) {
		t.Helper()
		require.NoError(t, s.Fill(p, value, 4))
		require.NoError(t, s.DownloadPinned(host, 0, p, 4))
	}
	shown(1)
	require.NoError(t, s.Record(e))
	shown(2)
	require.NoError(t, e.Wait())
	require.Equal(t, []byte{1, 1, 1, 1}, host.Bytes)
	require.NoError(t, s.Record(e))
	shown(3)
	require.NoError(t, s.Record(e))
	shown(4)
	require.NoError(t, e.Wait())
	require.Equal(t, []byte{3, 3, 3, 3}, host.Bytes)
	require.NoError(t, s.Synchronize())
	require.Equal(t, []byte{4, 4, 4, 4}, host.Bytes)
}

// The stand-in detects mistakes; without that, the other tests would prove little.
func TestMistakesAreDetected(t *testing.T) {
	standin.Only(t, "a real driver may dereference an invalid pointer")
	t.Run("a leak", func(t *testing.T) {
		standin.Load(t, "libcuda")
		d, err := Open(0)
		require.NoError(t, err)
		_, err = d.Alloc(1)
		require.NoError(t, err)
		require.Equal(t, 708, code(d.Close()))
	})
	t.Run("freed twice", func(t *testing.T) {
		d := device(t)
		p, err := d.Alloc(1)
		require.NoError(t, err)
		require.NoError(t, d.Free(p))
		require.Equal(t, 1, code(d.Free(p)))
		s, err := d.NewStream()
		require.NoError(t, err)
		require.NoError(t, s.Close())
		require.Equal(t, 400, code(s.Close()))
		g, err := stream(t, d).Capture(func() error { return nil })
		require.NoError(t, err)
		require.NoError(t, g.Close())
		require.Equal(t, 400, code(g.Close()))
	})
	t.Run("used after Close", func(t *testing.T) {
		standin.Load(t, "libcuda")
		d, err := Open(0)
		require.NoError(t, err)
		require.NoError(t, d.Close())
		_, err = d.NewStream()
		require.Equal(t, 201, code(err))
	})
}

func TestCallsDoNotAllocate(t *testing.T) {
	d := device(t)
	s := stream(t, d)
	p, host := alloc(t, d, 64), make([]byte, 64)
	require.Zero(t, testing.AllocsPerRun(10, func() {
		_ = s.Fill(p, 0, 64)
		_ = s.Upload(p, host)
		_ = s.Download(host, p)
		_ = s.Synchronize()
	}))
}
