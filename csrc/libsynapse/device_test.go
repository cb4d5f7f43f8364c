//go:build gaudi && cgo && linux

package libsynapse

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/csrc/standin"
)

// device opens a device of a new stand-in, which reports leaks at the end.
func device(t *testing.T) *Device {
	t.Setenv("OCTET_LIBSYNAPSE", standin.Build(t, "libsynapse"))
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

func host(t *testing.T, d *Device, bytes int) *Host {
	h, err := d.Host(bytes)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Close()) })
	return h
}

// name returns the vendor's name of an error's status, "" for other errors.
func name(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Name()
	}
	return ""
}

func TestDeviceDescribesItself(t *testing.T) {
	d := device(t)
	require.Equal(t, "gaudi2", d.Model())
	require.Equal(t, Gaudi2, d.Type)
	require.Equal(t, 128, d.Align)
	require.Equal(t, "1.24.0-standin", d.Driver)
	require.Equal(t, "0000:00:00.0", d.Bus)
	require.NotEmpty(t, d.Name)
	require.Equal(t, "synDeviceType(2)", DeviceType(2).String())
}

func TestDeviceOfTheThirdGeneration(t *testing.T) {
	t.Setenv("STANDIN_GAUDI2", "0")
	t.Setenv("STANDIN_GAUDI3", "2")
	t.Setenv("OCTET_LIBSYNAPSE", standin.Build(t, "libsynapse"))
	d, err := Open(1)
	require.NoError(t, err)
	require.Equal(t, "gaudi3", d.Model())
	require.Equal(t, 256, d.Align)
	require.Equal(t, "0000:01:00.0", d.Bus)
	require.NoError(t, d.Close())
}

func TestOpenErrors(t *testing.T) {
	t.Setenv("OCTET_LIBSYNAPSE", standin.Build(t, "libsynapse"))
	_, err := Open(5)
	require.ErrorContains(t, err, "acquire the Gaudi with module number 5: synDeviceAcquireByModuleId returned ")
	require.ErrorContains(t, err, "hl-smi lists the devices and the processes that hold them")

	d, err := Open(-1)
	require.NoError(t, err)
	_, err = Open(-1)
	require.EqualError(t, err, "acquire a free Gaudi: synDeviceAcquireByDeviceType returned 20 (synDeviceAlreadyAcquired): "+
		"Device already acquired; this process already has one, and SynapseAI gives a process only one")
	require.NoError(t, d.Close())
	d, err = Open(0) // a released device can be acquired again
	require.NoError(t, err)
	require.NoError(t, d.Close())
	require.Equal(t, "synNoDeviceFound", name(d.Close()))
}

func TestMemory(t *testing.T) {
	d := device(t)
	p := alloc(t, d, 1000)
	require.Zero(t, int(p)%d.Align)
	free, total, err := d.Memory()
	require.NoError(t, err)
	require.Equal(t, uint64(96<<30), total)
	require.Equal(t, total-1000, free)
	require.Equal(t, "synInvalidArgument", name(d.Free(p+1)))
	_, err = d.Alloc(0)
	require.Equal(t, "synInvalidArgument", name(err))
	_, err = d.Host(0)
	require.EqualError(t, err, "0 bytes of host memory mapped for the device: synHostMalloc returned 1 (synInvalidArgument): Invalid argument")
	require.Equal(t, make([]byte, 100), host(t, d, 100).Bytes())
}

func TestOutOfMemory(t *testing.T) {
	d := device(t)
	t.Setenv("STANDIN_OOM", "1000")
	alloc(t, d, 600)
	_, err := d.Alloc(500)
	require.EqualError(t, err, "500 bytes of device memory: synDeviceMalloc returned 4 (synOutOfDeviceMemory): Out of Device memory (OOM)")
	var e *Error
	require.ErrorAs(t, err, &e)
	require.True(t, e.OutOfMemory())
}

// Copies read their source when the stream reaches them, and have not arrived before a
// wait.
func TestCopiesAreAsynchronous(t *testing.T) {
	d := device(t)
	s := stream(t, d)
	a, b := alloc(t, d, 64), alloc(t, d, 64)
	from, to := host(t, d, 64), host(t, d, 64)
	require.NoError(t, s.CopyOut(to, 0, a, 64))
	require.NoError(t, s.Synchronize())
	require.Equal(t, bytes.Repeat([]byte{0xff}, 64), to.Bytes(), "fresh memory")

	clear(to.Bytes())
	copy(from.Bytes()[8:], "early bytes 1234")
	require.NoError(t, s.Fill(a, 7, 64))
	require.NoError(t, s.CopyIn(a+3, from, 8, 16))
	require.NoError(t, s.Copy(b+1, a+2, 50))
	require.NoError(t, s.CopyOut(to, 4, b+1, 20))
	require.Equal(t, make([]byte, 64), to.Bytes())
	copy(from.Bytes()[8:], "later")
	require.NoError(t, s.Synchronize())
	require.Equal(t, "\x00\x00\x00\x00\x07later bytes 1234\x07\x07\x07\x00", string(to.Bytes()[:25]))

	for _, err := range []error{s.Fill(a, 0, 0), s.Copy(b, a, 0), s.CopyIn(a, from, 64, 0), s.CopyOut(to, 0, a, 0)} {
		require.NoError(t, err, "an empty copy")
	}
	require.EqualError(t, s.CopyIn(a, from, 49, 16), "16 bytes at offset 49 exceed the 64 bytes of host memory")
	require.Error(t, s.CopyOut(to, -1, a, 1))
	require.Error(t, s.CopyOut(to, 0, a, -1))
	require.Equal(t, "synMappingNotFound", name(s.Copy(b, a+40, 40)), "beyond the end")
	require.Equal(t, "synMappingNotFound", name(s.Fill(a+64, 0, 1)))
}

// The stand-in's copies arrive some time after the stream is done, as has been reported
// of the real library.
func TestFenceWaitsForBytesToLand(t *testing.T) {
	d := device(t)
	t.Setenv("STANDIN_LATE", "30")
	s := stream(t, d)
	f, err := d.NewFence()
	require.NoError(t, err)
	for turn := range 3 {
		require.NoError(t, f.Wait(s))
		require.Equal(t, bytes.Repeat([]byte{byte(turn + 1)}, fenceBytes), f.host.Bytes()[:fenceBytes])
	}
	require.NoError(t, f.Close())
}

func TestEvents(t *testing.T) {
	d := device(t)
	s := stream(t, d)
	p := alloc(t, d, 1<<20)
	var events [2]*Event
	for i := range events {
		e, err := d.NewEvent()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, e.Close()) })
		events[i] = e
	}
	_, err := events[1].Elapsed(events[0])
	require.Error(t, err, "the event is not recorded")
	require.NoError(t, events[0].Record(s))
	require.NoError(t, s.Fill(p, 1, 1<<20))
	require.NoError(t, events[1].Record(s))
	took, err := events[1].Elapsed(events[0])
	require.NoError(t, err)
	require.Positive(t, took)
}

func TestCallsDoNotAllocate(t *testing.T) {
	d := device(t)
	s := stream(t, d)
	p, h := alloc(t, d, 64), host(t, d, 64)
	f, err := d.NewFence()
	require.NoError(t, err)
	r := recipe(t, d, double(), "doubling")
	sections := []Ptr{alloc(t, d, 128), alloc(t, d, 128)}
	workspace := alloc(t, d, max(1, int(r.Workspace())))
	require.Zero(t, testing.AllocsPerRun(10, func() {
		_ = s.Fill(p, 0, 64)
		_ = s.CopyIn(p, h, 0, 64)
		_ = s.CopyOut(h, 0, p, 64)
		_ = s.Fill(sections[0], 0, 128)
		_ = r.Launch(s, sections, workspace)
		_ = f.Wait(s)
	}))
	require.NoError(t, f.Close())
}

// The stand-in detects mistakes; otherwise the other tests would prove nothing.
func TestStandInDetectsMistakes(t *testing.T) {
	t.Setenv("OCTET_LIBSYNAPSE", standin.Build(t, "libsynapse"))
	d, err := Open(0)
	require.NoError(t, err)
	_, err = d.Alloc(1)
	require.NoError(t, err)
	require.Error(t, d.Close(), "a leak")
}

// TestMain sets GC_KERNEL_PATH: the stand-in only checks the file's name.
func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "libsynapse")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		path := filepath.Join(dir, "libtpc_kernels.so")
		if err := errors.Join(os.WriteFile(path, nil, 0o666), os.Setenv("GC_KERNEL_PATH", path)); err != nil {
			panic(err)
		}
		return m.Run()
	}())
}
