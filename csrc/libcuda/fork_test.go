//go:build cuda && cgo && linux

package libcuda

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/csrc/standin"
)

func order(t *testing.T, d *Device) *Event {
	t.Helper()
	e, err := d.NewOrder()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	return e
}

// forked is work on two streams: y += 2·x beside the fill of z, then y += z. Its waits can be left
// out.
type forked struct {
	main, side   *Stream
	fork, join   *Event
	f            *Function
	x, y, z      Ptr
	forks, joins bool
}

func newForked(t *testing.T, d *Device) *forked {
	t.Helper()
	w := &forked{main: stream(t, d), side: stream(t, d), fork: order(t, d), join: order(t, d), f: function(t, module(t, d), "axpy"), forks: true, joins: true}
	w.x, w.y, w.z = upload(t, d, w.main, 1, 2, 3), upload(t, d, w.main, 0, 0, 0), upload(t, d, w.main, 0, 0, 0)
	return w
}

func (w *forked) issue() error {
	axpy := func(s *Stream, y, x Ptr, a float64) error {
		return w.f.Launch(s, [3]int{3, 1, 1}, 32, 0, axpyArgs(y, x, a, 3))
	}
	err := errors.Join(w.main.Fill(w.y, 0, 12), axpy(w.main, w.y, w.x, 2), w.main.Record(w.fork))
	if w.forks {
		err = errors.Join(err, w.side.WaitFor(w.fork))
	}
	err = errors.Join(err, w.side.Copy(w.z, w.y, 12), w.side.Record(w.join))
	if w.joins {
		err = errors.Join(err, w.main.WaitFor(w.join))
	}
	return errors.Join(err, axpy(w.main, w.y, w.z, 1))
}

// Streams that wait for each other's events give the result of one stream, called directly and by
// a graph that is launched again. Without one of the waits, a result is wrong.
func TestStreamsWaitForEvents(t *testing.T) {
	d := device(t)
	w := newForked(t, d)
	want := []float32{4, 8, 12}
	for _, early := range []string{"0", "1"} {
		standin.Set(t, "STANDIN_EARLY", early)
		for range 2 { // the events are recorded again
			require.NoError(t, w.issue())
			require.Equal(t, want, download(t, w.main, w.y, 3))
		}
		g, err := w.main.Capture(w.issue)
		require.NoError(t, err)
		for range 3 {
			require.NoError(t, errors.Join(w.main.Fill(w.y, 0, 12), w.main.Fill(w.z, 0, 12)))
			require.NoError(t, g.Launch(w.main))
			require.Equal(t, want, download(t, w.main, w.y, 3))
		}
		require.NoError(t, g.Launch(w.main)) // closing it waits for the launch
		require.NoError(t, g.Close())
		require.NoError(t, w.issue())
		require.Equal(t, want, download(t, w.main, w.y, 3), "the events of a capture are recorded again")
	}
	require.Zero(t, testing.AllocsPerRun(10, func() { _ = errors.Join(w.main.Record(w.fork), w.side.WaitFor(w.fork)) }))
	_, err := w.fork.Since(w.fork)
	require.Error(t, err, "it has no time")

	if standin.Hardware() > 0 {
		return // a GPU may be fast enough without the wait
	}
	for early, omitted := range map[string]*bool{"0": &w.joins, "1": &w.forks} {
		standin.Set(t, "STANDIN_EARLY", early)
		require.NoError(t, errors.Join(w.main.Fill(w.y, 0, 12), w.main.Fill(w.z, 0, 12), w.main.Synchronize()))
		*omitted = false
		require.NoError(t, w.issue())
		require.NotEqual(t, want, download(t, w.main, w.y, 3))
		require.NoError(t, w.side.Synchronize())
		*omitted = true
	}
}

// A stream may wait for an event of another one that was not recorded, and records of an event do not
// change earlier waits for it.
func TestWaitsForEarlierRecords(t *testing.T) {
	d := device(t)
	a, b, e := stream(t, d), stream(t, d), order(t, d)
	x := upload(t, d, a, 1)
	require.NoError(t, b.WaitFor(e))
	require.NoError(t, b.Synchronize())
	require.NoError(t, errors.Join(a.Fill(x, 0, 4), a.Record(e), b.WaitFor(e), b.Record(e), a.WaitFor(e)))
	require.Equal(t, []float32{0}, download(t, b, x, 1))
	require.NoError(t, a.Synchronize())
}

// Captures that CUDA refuses leave all streams usable.
func TestForksThatFail(t *testing.T) {
	standin.Only(t, "the stand-in refuses calls that would invalidate later tests on a real driver")
	d := device(t)
	w, other := newForked(t, d), stream(t, d)
	stale, apart := order(t, d), order(t, d)
	g, err := w.main.Capture(func() error { return w.main.Record(stale) })
	require.NoError(t, err)
	require.NoError(t, g.Close())
	require.NoError(t, other.Record(apart))
	fork := func() error { return errors.Join(w.main.Record(w.fork), w.side.WaitFor(w.fork)) }
	for what, c := range map[string]struct {
		issue     func() error
		call, end int // error codes
	}{
		"not joined":            {func() error { return errors.Join(fork(), w.side.Fill(w.z, 0, 12)) }, 0, 904},
		"work after the join":   {func() error { return errors.Join(w.issue(), w.side.Fill(w.z, 0, 12)) }, 0, 904},
		"waits only":            {fork, 0, 0},
		"query of a fork":       {func() error { err := fork(); _, idle := w.side.Idle(); return errors.Join(err, idle) }, 900, 901},
		"event not captured":    {func() error { return w.main.WaitFor(apart) }, 905, 901},
		"event that is stale":   {func() error { return w.main.WaitFor(stale) }, 907, 901},
		"fork that waits for":   {func() error { return errors.Join(fork(), w.side.WaitFor(apart)) }, 905, 901},
		"another capture":       {func() error { return errors.Join(fork(), again(w.side)) }, 401, 0},
		"two that join a graph": {func() error { return merge(w.main, other) }, 902, 901},
	} {
		g, err := w.main.Capture(func() error {
			require.Equal(t, c.call, code(c.issue()), what)
			return nil
		})
		require.Equal(t, c.end, code(err), what)
		if err == nil {
			require.NoError(t, g.Close())
		}
		require.NoError(t, w.issue(), what)
		require.Equal(t, []float32{4, 8, 12}, download(t, w.main, w.y, 3), what)
	}
	require.Equal(t, 907, code(w.main.WaitFor(stale)), "outside of its capture")
}

// again begins another capture.
func again(s *Stream) error {
	_, err := s.Capture(func() error { return nil })
	return err
}

// merge makes a second capture wait for an event of the first.
func merge(first, second *Stream) error {
	e, err := first.d.NewOrder()
	if err != nil {
		return err
	}
	var merged error
	_, ended := second.Capture(func() error {
		merged = errors.Join(first.Record(e), second.WaitFor(e))
		return nil
	})
	if code(ended) != 901 {
		return ended
	}
	return errors.Join(merged, e.Close())
}
