//go:build cuda && cgo && linux

package libcuda

import (
	"errors"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/csrc/standin"
	"octet/fp8"
)

// A replayed graph has the same effect as the captured calls.
func TestGraphRepeatsWhatWasCaptured(t *testing.T) {
	d := device(t)
	s := stream(t, d)
	f := function(t, module(t, d), "axpy")
	x := upload(t, d, s, 1, 2, 3)
	direct, replayed := upload(t, d, s, 0, 0, 0), upload(t, d, s, 0, 0, 0)
	host := pin(t, d, 12)
	work := func(y Ptr) error {
		return errors.Join(
			s.UploadPinned(x, host, 0, 12),
			f.Launch(s, [3]int{3, 1, 1}, 32, 0, axpyArgs(y, x, 2, 3)),
			s.Copy(x, y, 8),
			f.Launch(s, [3]int{3, 1, 1}, 32, 0, axpyArgs(y, x, 1, 3)),
		)
	}
	g, err := s.Capture(func() error { return work(replayed) })
	require.NoError(t, err)
	require.Equal(t, []float32{0, 0, 0}, download(t, s, replayed, 3), "a capture does nothing")
	for step := range 3 {
		copy(host.Bytes, fp8.AppendFloats(nil, float32(step), 5, -1))
		require.NoError(t, work(direct))
		require.NoError(t, g.Launch(s))
		require.Equal(t, download(t, s, direct, 3), download(t, s, replayed, 3))
	}
	require.NotEqual(t, []float32{0, 0, 0}, download(t, s, replayed, 3))
	require.Zero(t, testing.AllocsPerRun(10, func() { _ = g.Launch(s) }))
	require.NoError(t, g.Close())
}

func TestCapturesThatFail(t *testing.T) {
	standin.Only(t, "the stand-in refuses calls that would invalidate later tests on a real driver")
	d := device(t)
	s := stream(t, d)
	p := upload(t, d, s, 1)
	host := make([]byte, 4)
	e, err := d.NewEvent()
	require.NoError(t, err)
	defer func() { require.NoError(t, e.Close()) }()
	module(t, d) // compiles the module that the captures load
	for what, forbidden := range map[string]func() error{
		"wait":     s.Synchronize,
		"upload":   func() error { return s.Upload(p, host) },
		"download": func() error { return s.Download(host, p) },
		"allocate": func() error { _, err := d.Alloc(1); return err },
		"free":     func() error { return d.Free(p) },
		"pin":      func() error { _, err := d.Pin(1); return err },
		"module":   func() error { _, err := d.LoadModule(axpyCubin); return err },
		"event":    func() error { _, err := e.Since(e); return err },
		"graph":    func() error { _, err := s.Capture(func() error { return nil }); return err },
	} {
		_, err := s.Capture(func() error { return errors.Join(s.Fill(p, 0, 4), forbidden()) })
		require.Contains(t, []int{900, 401}, code(err), what)
		// A caller that ignores the error gets one at the end of the capture.
		if code(err) == 900 {
			_, err = s.Capture(func() error { _ = forbidden(); return nil })
			require.Equal(t, 901, code(err), what)
		}
	}
	g, err := s.Capture(func() error { return nil })
	require.NoError(t, err)
	require.NoError(t, g.Close())
	require.Equal(t, []float32{1}, download(t, s, p, 1), "a failed capture does no work")

	own := errors.New("its own")
	_, err = s.Capture(func() error { return own })
	require.Equal(t, own, err)
}

// Without LockOSThread, a goroutine that waited could continue on another thread, where
// the capture cannot end. Wakeups by goroutines with threads of their own make that
// likely.
func TestCaptureStaysOnItsThread(t *testing.T) {
	d := device(t)
	s := stream(t, d)
	ask, answer := make(chan bool), make(chan bool)
	defer close(ask)
	for range 4 {
		go func() {
			runtime.LockOSThread() // the thread ends with the goroutine
			for range ask {
				answer <- true
			}
		}()
	}
	for range 10 {
		g, err := s.Capture(func() error {
			for range 20 {
				ask <- true
				<-answer
			}
			return nil
		})
		require.NoError(t, err)
		require.NoError(t, g.Close())
	}
}
