package emu

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/world"
	"octet/fp8"
)

// ranks opens n devices with the same program; write gives each its data.
func (tr *trial) ranks(n int, write func(rank int, d *device)) ([]*device, []backend.Executable) {
	require.NoError(tr, tr.program.Err())
	list := openRanks(tr.T, n, 2*n)
	devices, programs := make([]*device, n), make([]backend.Executable, n)
	for rank := range n {
		d := list[rank].(*device)
		tr.Cleanup(func() { _ = d.Close() })
		x, err := d.Load(tr.program)
		require.NoError(tr, err)
		write(rank, d)
		devices[rank], programs[rank] = d, x[0]
	}
	return devices, programs
}

// openRanks opens the devices of n ranks, which share the threads.
func openRanks(t testing.TB, n, threads int) (list []backend.Backend) {
	groups := world.Local(n, 10*time.Minute)
	t.Cleanup(func() { groups[0].Fail(world.CodeFailed, errors.New("the test has ended")) })
	for _, g := range groups {
		d, err := Open("", backend.Options{Threads: threads, Group: g})
		require.NoError(t, err)
		list = append(list, d)
	}
	return list
}

// together runs f once for each of n ranks and returns their errors.
func together(n int, f func(rank int) error) []error {
	errs := make([]error, n)
	done := make(chan struct{})
	for rank := range n {
		go func() {
			errs[rank] = f(rank)
			done <- struct{}{}
		}()
	}
	for range n {
		<-done
	}
	return errs
}

// set writes values into an F32 tensor.
func (d *device) set(t *backend.Tensor, values []float32) {
	copy((&binder{device: d}).f32(t), values)
}

func TestCollectives(t *testing.T) {
	for _, n := range []int{1, 2, 3} {
		const elems = 20000
		tr := newTrial(t)
		x := tr.tensor("x", fp8.F32, nil, n*elems)
		top := tr.tensor("top", fp8.F32, nil, 5)
		part := tr.tensor("part", fp8.F32, nil, elems)
		piece := tr.tensor("piece", fp8.BF16, nil, 3)
		whole := tr.tensor("whole", fp8.BF16, nil, n*3)
		sent := tr.tensor("sent", fp8.BF16, nil, n)
		received := tr.tensor("received", fp8.BF16, nil, n)
		tr.program.Add(&backend.ReduceScatter{X: x, Out: part})
		tr.program.Add(&backend.AllReduce{X: x})
		tr.program.Add(&backend.AllReduce{X: top, Reduce: backend.ReduceMax})
		tr.program.Add(&backend.AllGather{X: piece, Out: whole})
		tr.program.Add(&backend.AllToAll{X: sent, Out: received})

		data := make([][]float32, n)
		nan, inf := float32(math.NaN()), float32(math.Inf(1))
		devices, programs := tr.ranks(n, func(rank int, d *device) {
			data[rank] = tr.noise(n * elems)
			for i := range data[rank] {
				data[rank][i] *= float32(math.Pow(1000, float64(rank))) // so that the order of the sum shows
			}
			d.set(x, data[rank])
			d.set(top, [][]float32{{-3, 2, inf, 0, -1}, {1, -5, nan, 0, 1}, {2, 2, 2, -inf, 0}}[rank])
			require.NoError(t, d.Write(piece, []byte{byte(rank), 1, 2, 3, 4, 5}))
			require.NoError(t, d.Write(sent, []byte{byte(rank), 0, byte(rank), 1, byte(rank), 2}[:2*n]))
		})
		for run := range 3 {
			for _, err := range together(n, func(rank int) error { return programs[rank].Run(t.Context()) }) {
				require.NoError(t, err)
			}
			want := slices.Clone(data[0])
			for _, other := range data[1:] {
				for i, v := range other {
					want[i] += v
				}
			}
			var gathered []byte
			exchanged := make([][]byte, n)
			for from := range n {
				gathered = append(gathered, byte(from), 1, 2, 3, 4, 5)
				for to := range n {
					exchanged[to] = append(exchanged[to], byte(from), byte(to))
				}
			}
			for rank, d := range devices {
				b := &binder{device: d}
				require.Equal(t, want, b.f32(x), "run %d: ascending order of rank", run)
				require.Equal(t, want[rank*elems:(rank+1)*elems], b.f32(part))
				require.Equal(t, gathered, d.memory[whole])
				require.Equal(t, exchanged[rank], d.memory[received])
				m := b.f32(top)
				require.Equal(t, [][]float32{{3, 2}, {3, 5}, {3, 5}}[n-1], m[:2], "magnitudes")
				require.Equal(t, n > 1, m[2] != m[2], "NaN counts as larger than infinity")
				require.Equal(t, n > 2, math.IsInf(float64(m[3]), 1))
			}
			for rank, d := range devices {
				d.set(x, data[rank])
			}
		}
	}
}

func TestCollectivesOfOtherSizesAreRefused(t *testing.T) {
	vars := backend.NewVars()
	x, y := vars.Tensor(backend.Output, "x", fp8.F32, 4), vars.Tensor(backend.Output, "y", fp8.F32, 4)
	odd := vars.Tensor(backend.Output, "odd", fp8.F32, 3)
	list := openRanks(t, 2, 2)
	for what, op := range map[string]backend.Op{
		"X must have 2 times the elements of Out": &backend.ReduceScatter{X: x, Out: y},
		"Out must have 2 times the bytes of X":    &backend.AllGather{X: x, Out: y},
		"has no equal parts for 2 ranks":          &backend.AllToAll{X: odd, Out: odd},
	} {
		p := vars.Program("refused")
		p.Add(op)
		require.NoError(t, p.Err())
		_, err := list[0].Load(p)
		require.ErrorContains(t, err, what)
	}
	for _, d := range list {
		require.NoError(t, d.Close())
	}
}

// If a rank stops, all current and later waits of the other ranks fail with its error.
func TestRankStops(t *testing.T) {
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	expired, stop := context.WithTimeout(context.Background(), time.Millisecond)
	defer stop()
	for name, c := range map[string]struct {
		stop func(d *device, x backend.Executable) error
	}{
		"cancelled": {
			func(_ *device, x backend.Executable) error { return x.Run(cancelled) },
		},
		"expired": {
			func(_ *device, x backend.Executable) error { return x.Run(expired) },
		},
		"failed": {
			func(d *device, _ backend.Executable) error {
				d.group.Fail(world.CodeFailed, errors.New("its program failed"))
				return nil
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			vars := backend.NewVars()
			x := vars.Tensor(backend.Output, "x", fp8.F32, 4)
			list := openRanks(t, 3, 3)
			programs := make([]backend.Executable, 3)
			for rank, d := range list {
				defer d.Close()
				p := vars.Program("p")
				p.Add(&backend.AllReduce{X: x})
				loaded, err := d.Load(p)
				require.NoError(t, err)
				programs[rank] = loaded[0]
			}
			errs := together(3, func(rank int) error {
				switch rank {
				case 0:
					return c.stop(list[0].(*device), programs[0])
				case 1: // this rank starts after the group has ended
					time.Sleep(5 * time.Millisecond)
				}
				return programs[rank].Run(context.Background())
			})
			if name != "failed" {
				require.True(t, errors.Is(errs[0], context.Canceled) || errors.Is(errs[0], context.DeadlineExceeded), errs[0])
			}
			again := together(3, func(rank int) error {
				return programs[rank].Run(context.Background())
			})
			for _, err := range append(errs[1:], again...) {
				require.ErrorIs(t, err, backend.ErrDeviceLost)
				require.ErrorContains(t, err, "device lost: rank 0: ")
			}
		})
	}
}

// All ranks get what the observer of one rank finds, without waiting for that rank.
func TestFindingOfOneRank(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		list := openRanks(t, 2, 2)
		var found [2]*backend.NonFinite
		errs := together(2, func(rank int) (err error) {
			vars := backend.NewVars()
			p, x := vars.Program("p"), vars.Tensor(backend.Output, "x", fp8.F32, 4)
			p.Scope("layer").Add(&backend.Fill{Out: x, Value: []float32{float32(math.Inf(1)), 1}[rank]})
			p.Add(&backend.AllReduce{X: x})
			loaded, err := list[rank].Load(p)
			if err != nil {
				return err
			}
			begin := time.Now()
			found[rank], err = backend.FindNonFinite(t.Context(), loaded[0])
			if time.Since(begin) > 0 {
				return errors.New("a rank waited")
			}
			return errors.Join(err, list[rank].Close())
		})
		require.Equal(t, make([]error, 2), errs)
		require.Equal(t, "layer: fill", found[0].Node.Path())
		require.Same(t, found[0], found[1])
	})
}

// A rank's wait is the time in which it waits for the others in collectives, not that of its own
// ops.
func TestWaitTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		groups := world.Local(2, 10*time.Minute)
		errs := together(2, func(rank int) error {
			d, err := Open("", backend.Options{Threads: 2, Group: groups[rank]})
			if err != nil {
				return err
			}
			vars := backend.NewVars()
			p, x := vars.Program("p"), vars.Tensor(backend.Output, "x", fp8.F32, 4)
			p.Add(&backend.AllReduce{X: x})
			loaded, err := d.Load(p)
			if err != nil {
				return err
			}
			for step := range 3 { // rank 0 waits 4 s in all, rank 1 waits 1 s
				time.Sleep([][]time.Duration{{0, 1, 2}, {3, 0, 3}}[rank][step] * time.Second)
				if err := loaded[0].Run(t.Context()); err != nil {
					return err
				}
			}
			return errors.Join(d.Close(), groups[rank].Leave(t.Context()))
		})
		require.Equal(t, make([]error, 2), errs)
		require.Equal(t, 4*time.Second, groups[0].WaitTime())
		require.Equal(t, time.Second, groups[1].WaitTime())
	})
}

// A group of one rank stays usable after a cancelled run.
func TestOneRankStaysUsable(t *testing.T) {
	tr := newTrial(t)
	tr.program.Add(&backend.AllReduce{X: tr.tensor("x", fp8.F32, nil, 4)})
	_, x := tr.load(1)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, x.Run(cancelled), context.Canceled)
	require.NoError(t, x.Run(t.Context()))
}

// Waiting for a rank that hangs or has returned times out, with an error that names the
// rank and its last collective.
func TestRankThatNeverComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		devices, first, second := groupOfThree(t)
		start := time.Now()
		for rank, err := range together(3, func(rank int) error {
			if err := first[rank].Run(t.Context()); err != nil || rank == 1 {
				return err
			}
			return second[rank].Run(t.Context())
		}) {
			if rank == 1 {
				require.NoError(t, err)
				continue
			}
			require.EqualError(t, err, "second: allreduce: device lost: rank 1: the other ranks waited for it for 10m0s; its last collective is first: allreduce (OCTET_TIMEOUT gives more time)")
			require.ErrorIs(t, err, backend.ErrDeviceLost)
		}
		require.GreaterOrEqual(t, time.Since(start), 10*time.Minute)
		require.Less(t, time.Since(start), 12*time.Minute)
		require.ErrorIs(t, first[1].Run(t.Context()), backend.ErrDeviceLost, "the group has ended")
		for _, d := range devices {
			require.NoError(t, d.Close())
		}
	})
}

// Ops that take hours in total cause no timeout while each finishes in time.
func TestSlowRank(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		devices, _, second := groupOfThree(t)
		for _, err := range together(3, func(rank int) error {
			if rank != 1 {
				return second[rank].Run(t.Context())
			}
			return second[rank].RunObserved(t.Context(), func(*backend.Node, backend.Memory) error {
				time.Sleep(9 * time.Minute)
				return nil
			})
		}) {
			require.NoError(t, err)
		}
		for _, d := range devices {
			require.NoError(t, d.Close())
		}
	})
}

// The failure of a rank ends the group, though no context ends.
func TestRankThatFails(t *testing.T) {
	vars := backend.NewVars()
	x, cache := vars.Tensor(backend.Output, "x", fp8.F32, 4, 1), vars.Tensor(backend.Output, "cache", fp8.F32, 4, 1)
	control := vars.Tensor(backend.Input, "step.control", fp8.I32, backend.ControlWords)
	list := openRanks(t, 3, 3)
	errs := together(3, func(rank int) error {
		p := vars.Program("p")
		if rank == 1 {
			p.Add(&backend.CacheWrite{X: x, Control: control, Cache: cache, Batch: 1}) // beyond its end
		} else {
			p.Add(&backend.AllReduce{X: x})
		}
		loaded, err := list[rank].Load(p)
		if err == nil {
			err = list[rank].Write(control, backend.Control{Position: int32(rank % 2)}.AppendTo(nil))
		}
		if err != nil {
			return err
		}
		return loaded[0].Run(t.Context())
	})
	require.ErrorContains(t, errs[1], "do not fit into the 4 positions")
	for _, rank := range []int{0, 2} {
		require.ErrorIs(t, errs[rank], backend.ErrDeviceLost)
		require.ErrorContains(t, errs[rank], "device lost: rank 1: ")
	}
	for _, d := range list {
		require.NoError(t, d.Close())
	}
}

// groupOfThree returns three ranks with two programs: an all-reduce, and twenty ops followed
// by an all-reduce.
func groupOfThree(t *testing.T) (list []backend.Backend, first, second []backend.Executable) {
	list = openRanks(t, 3, 3)
	vars := backend.NewVars()
	x := vars.Tensor(backend.Output, "x", fp8.F32, 4)
	for _, d := range list {
		p, q := vars.Program("p"), vars.Program("q")
		p.Scope("first").Add(&backend.AllReduce{X: x})
		for range 20 {
			q.Add(&backend.Fill{Out: x})
		}
		q.Scope("second").Add(&backend.AllReduce{X: x})
		loaded, err := d.Load(p, q)
		require.NoError(t, err)
		first, second = append(first, loaded[0]), append(second, loaded[1])
	}
	return list, first, second
}

func TestDifferentPrograms(t *testing.T) {
	vars := backend.NewVars()
	x := vars.Tensor(backend.Output, "x", fp8.F32, 4)
	y := vars.Tensor(backend.Output, "y", fp8.F32, 8)
	list := openRanks(t, 2, 2)
	errs := together(2, func(rank int) error {
		defer list[rank].Close()
		p := vars.Program("p")
		p.Add(&backend.AllReduce{X: []*backend.Tensor{x, y}[rank]})
		loaded, err := list[rank].Load(p)
		if err != nil {
			return err
		}
		return loaded[0].Run(t.Context())
	})
	for _, err := range errs {
		require.ErrorContains(t, err, "rank 0 is at allreduce (sum) of 4, rank 1 at allreduce (sum) of 8")
	}
}

// Many short barriers in a row: a token left from one would release a rank early from the
// next.
func TestBarriersInARow(t *testing.T) {
	const n = 3
	worlds := world.Local(n, time.Minute)
	what := "a round"
	var at [n]int // written by its rank only, read by others between two waits
	for _, err := range together(n, func(rank int) error {
		all, err := newGroup(worlds[rank])
		if err != nil {
			return err
		}
		g, err := all.members(backend.Group{})
		if err != nil {
			return err
		}
		for round := range 2000 {
			at[rank] = round
			if err := g.wait(t.Context(), &what); err != nil {
				return err
			}
			for _, other := range at {
				if other != round {
					return errors.New("a rank is in another round")
				}
			}
			if err := g.wait(t.Context(), &what); err != nil {
				return err
			}
		}
		return nil
	}) {
		require.NoError(t, err)
	}
}

func TestCollectivesAllocateNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	tr := newTrial(t)
	x := tr.tensor("x", fp8.F32, nil, 100)
	tr.program.Add(&backend.AllReduce{X: x})
	_, programs := tr.ranks(2, func(int, *device) {})
	const runs = 5
	done := make(chan error)
	go func() {
		for range runs + 1 {
			_ = programs[1].Run(context.Background())
		}
		done <- nil
	}()
	require.Zero(t, testing.AllocsPerRun(runs, func() { _ = programs[0].Run(context.Background()) }))
	<-done
}
