//go:build cuda && cgo && linux

package cuda

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/csrc/standin"
	"octet/train"
)

// requireBusy requires that the device has, or has not, pending work. The stand-in works
// only while a call waits, plus one piece per query. A real GPU is not checked.
func requireBusy(t *testing.T, d backend.Backend, busy bool, what ...any) {
	t.Helper()
	idle, err := d.(*device).stream.Idle()
	require.NoError(t, err)
	if standin.Hardware() == 0 {
		require.Equal(t, busy, !idle, what...)
	}
}

// A fetch returns the bytes as of its Begin, and waits for no later work.
func TestFetch(t *testing.T) {
	standIns(t)
	const n = 64
	_, p, a, b, out := adding(1, n)
	d := openOne(t)
	_, err := d.Fetch(out)
	require.ErrorContains(t, err, "has no memory")
	list, err := d.Load(p)
	require.NoError(t, err)
	fetches := make([]backend.Fetch, 2)
	for i := range fetches {
		fetches[i], err = d.Fetch(out, a)
		require.NoError(t, err)
	}
	require.NoError(t, d.Write(b, floats(n, func(int) float32 { return 0.5 })))
	run := func(x float32, f backend.Fetch) {
		t.Helper()
		require.NoError(t, d.Write(a, floats(n, func(int) float32 { return x })))
		require.NoError(t, list[0].Run(t.Context()))
		f.Begin()
	}
	raw := make([]byte, 8*n)
	expect := func(x float32, f backend.Fetch) {
		t.Helper()
		require.NoError(t, f.End(raw))
		require.Equal(t, append(floats(n, func(int) float32 { return x + 1 }), floats(n, func(int) float32 { return x })...), raw)
	}
	run(1, fetches[0])
	run(2, fetches[1])
	expect(1, fetches[0])
	requireBusy(t, d, true, "the second run is pending")
	run(3, fetches[0])
	expect(2, fetches[1])
	requireBusy(t, d, true)
	run(4, fetches[1])
	run(5, fetches[1])
	expect(5, fetches[1])
	expect(3, fetches[0])
	requireBusy(t, d, false)

	require.ErrorContains(t, fetches[0].End(raw[:4]), "a fetch of 512 bytes got a buffer of 4")
	require.Zero(t, testing.AllocsPerRun(10, func() { fetches[0].Begin(); _ = fetches[0].End(raw) }))
	require.NoError(t, d.Close())
	require.ErrorIs(t, fetches[1].End(raw), backend.ErrClosed)
	fetches[0].Begin()
	require.ErrorIs(t, fetches[0].End(raw), backend.ErrClosed)
	_, err = d.Fetch(out)
	require.ErrorIs(t, err, backend.ErrClosed)
}

// A write waits only for the staging memory that it needs: not for a run while the
// outboxes have room, and then for the older outbox alone.
func TestOutboxesTakeTurns(t *testing.T) {
	standIns(t)
	_, p, a, b, out := adding(1, outboxBytes/4)
	d := openOne(t)
	list, err := d.Load(p)
	require.NoError(t, err)
	require.NoError(t, d.Write(b, make([]byte, b.Bytes())))
	input := func(i int) []byte { return floats(outboxBytes/4, func(j int) float32 { return float32(i + j) }) }
	fetches := make([]backend.Fetch, 7)
	for i := range fetches {
		x := input(i)
		require.NoError(t, d.Write(a, x)) // fills an outbox
		requireBusy(t, d, true, "run %d", i-1)
		clear(x)
		require.NoError(t, list[0].Run(t.Context()))
		fetches[i], err = d.Fetch(out)
		require.NoError(t, err)
		fetches[i].Begin()
	}
	raw := make([]byte, out.Bytes())
	for i, f := range fetches {
		require.NoError(t, f.End(raw))
		require.True(t, string(input(i)) == string(raw), "run %d", i) // not Equal, which would print all bytes
	}
	requireBusy(t, d, false)
}

// A step and its inputs are enqueued before the previous step's result is awaited. The
// results equal those of steps run one by one, on one GPU and on two.
func TestStepsAhead(t *testing.T) {
	for ranks, recipe := range map[int]string{1: "fp8-smooth", 2: "bf16"} {
		t.Run(fmt.Sprint(recipe, " on ", ranks), func(t *testing.T) {
			standIns(t)
			standin.Set(t, "STANDIN_GPUS", fmt.Sprint(ranks))
			c := small(recipe)
			c.Model.Layers, c.Train.HealthEvery, c.Train.Ranks, c.Train.Accumulate = 1, 0, ranks, 2
			const n = 3
			want := steps(t, c, "cuda", n)
			tm := newTeam(t, c, "cuda")
			tr := tm.ranks[0]
			for i := range n {
				r, err := tm.next(t.Context(), i < n-1)
				require.NoError(t, err)
				require.Equal(t, i < n-1, tr.UnderWay())
				requireBusy(t, tm.devices[0], i < n-1, "step %d", i+1)
				r.Elapsed, want[i].Elapsed = 0, 0
				require.Equal(t, want[i], r)
			}
			tm.sameOnAll(t)
			if ranks == 1 {
				require.Zero(t, allocs(2, func() { _, _ = tr.NextAhead(context.Background()) }))
			}
		})
	}
}

// If a device is lost with two steps enqueued, earlier results are right, and the first
// step without a result returns the error.
func TestDeviceLostWithStepsAhead(t *testing.T) {
	standin.Only(t, "only a new process can use a lost GPU again")
	c := small("bf16")
	c.Model.Layers, c.Train.HealthEvery, c.Train.Accumulate = 1, 0, 1
	var want []train.StepResult
	t.Run("whole", func(t *testing.T) {
		standIns(t)
		want = steps(t, c, "cuda", 6)
	})
	for _, at := range []string{"145", "220"} {
		t.Run(at, func(t *testing.T) {
			standIns(t) // counts launches from zero
			t.Cleanup(func() {
				gpus.Lock()
				defer gpus.Unlock()
				clear(gpus.open) // it cannot be closed
			})
			tr, _ := trainer(t, c, "cuda")
			standin.Set(t, "STANDIN_LOST", at)
			var got []train.StepResult
			var err error
			for err == nil && len(got) < 6 {
				var r train.StepResult
				if r, err = tr.NextAhead(t.Context()); err == nil {
					got = append(got, r)
				}
			}
			require.ErrorIs(t, err, backend.ErrDeviceLost)
			t.Logf("after %d steps: %v", len(got), err)
			require.Equal(t, len(got), tr.StepsDone()-1)
			for i, r := range got {
				require.Equal(t, want[i].Loss, r.Loss)
			}
			_, err = tr.Next(t.Context())
			require.ErrorIs(t, err, backend.ErrDeviceLost)
		})
	}
}
