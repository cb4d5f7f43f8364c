//go:build cuda && cgo && linux

package cuda

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"octet/backend"
	"octet/backend/conformance"
	"octet/csrc/libcuda"
	"octet/csrc/standin"
	"octet/fp8"
)

// The conformance cases of collectives, with up to three ranks on stand-in GPUs, and
// those of an optimizer with a sharded update.
func TestCollectives(t *testing.T) {
	standIns(t)
	standin.Set(t, "STANDIN_GPUS", "3")
	d, _, err := backend.Find("cuda")
	require.NoError(t, err)
	passed := 0
	for c := range conformance.Cases() {
		switch kind, _, _ := strings.Cut(c.Name, "/"); {
		case slices.Contains([]string{"allreduce", "reducescatter", "allgather"}, kind), strings.HasSuffix(c.Name, "/shard"):
			require.NoError(t, c.Run(t.Context(), d, ""))
			passed++
		}
	}
	require.GreaterOrEqual(t, passed, 30)
}

// Two ranks on the stand-ins and two on emu see the same batches and agree on gradients,
// maxima and losses.
func TestRanksAgreeWithEmu(t *testing.T) {
	standIns(t)
	standin.Set(t, "STANDIN_GPUS", "2")
	c := small("fp8-smooth") // has every kind of collective that a step has
	c.Model.Layers, c.Train.HealthEvery, c.Train.Ranks = 1, 0, 2
	agree(t, c, steps(t, c, "emu", 5), steps(t, c, "cuda", 5))
}

// With ZeRO stage 1 the steps are the same bit for bit, except the last bits of the
// gradient norm. Three ranks do not divide the rows.
func TestRanksShareTheOptimizer(t *testing.T) {
	standIns(t)
	standin.Set(t, "STANDIN_GPUS", "3")
	for _, ranks := range []int{2, 3} {
		c := small("fp8-smooth")
		c.Model.Layers, c.Train.HealthEvery, c.Train.Ranks, c.Optimizer.Clip = 1, 0, ranks, 0
		want := steps(t, c, "cuda", 3)
		c.Train.ZeroStage = 1
		got := steps(t, c, "cuda", 3)
		for i := range want {
			require.InEpsilon(t, want[i].GradNorm, got[i].GradNorm, 0x1p-22)
			want[i].GradNorm, want[i].Elapsed = got[i].GradNorm, got[i].Elapsed
		}
		require.Equal(t, want, got, "%d ranks", ranks)
	}
}

// pair is two ranks, each with a program that all-reduces x.
type pair struct {
	devices []backend.Backend
	x       [2]*backend.Tensor
	run     [2]backend.Executable
}

func openPair(t *testing.T, device string) *pair {
	t.Helper()
	standin.Only(t, "NCCL does not report a missing rank")
	devices, err := open(device, backend.Options{Ranks: 2})
	require.NoError(t, err)
	p := &pair{devices: devices}
	t.Cleanup(func() {
		for _, d := range p.devices {
			require.NoError(t, d.Close())
		}
	})
	for i, d := range devices {
		v := backend.NewVars()
		p.x[i] = v.Tensor(backend.Stash, "x", fp8.F32, 4)
		program := v.Program("meeting")
		program.Add(&backend.Add{A: p.x[i], B: p.x[i], Out: []backend.Cast{{Out: v.Tensor(backend.Stash, "twice", fp8.F32, 4)}}})
		program.Add(&backend.AllReduce{X: p.x[i]})
		list, err := d.Load(program)
		require.NoError(t, err)
		p.run[i] = list[0]
	}
	return p
}

func (p *pair) write(t *testing.T, rank int, x float32) {
	t.Helper()
	require.NoError(t, p.devices[rank].Write(p.x[rank], floats(4, func(int) float32 { return x })))
}

func (p *pair) read(rank int) (float32, error) {
	raw, x := make([]byte, 16), make([]float32, 4)
	err := p.devices[rank].Read(p.x[rank], raw)
	fp8.F32.Decode(x, raw)
	return x[3], err
}

// each runs f for both ranks at once.
func (p *pair) each(f func(rank int) error) error {
	var g errgroup.Group
	for rank := range p.devices {
		g.Go(func() error { return f(rank) })
	}
	return g.Wait()
}

// ends requires that the group has ended for both ranks, with a one-line error that
// contains words.
func (p *pair) ends(t *testing.T, err error, words ...string) {
	t.Helper()
	for rank := range p.devices {
		_, read := p.read(rank)
		for _, err := range []error{err, read, p.run[rank].Run(t.Context())} {
			require.ErrorIs(t, err, backend.ErrDeviceLost)
			require.NotContains(t, err.Error(), "\n")
			for _, w := range words {
				require.ErrorContains(t, err, w)
			}
		}
	}
}

// A graph that contains a collective runs again and again without allocating. The device
// cuda:1 with two ranks uses GPUs 1 and 2.
func TestCollectivesInGraphs(t *testing.T) {
	standIns(t)
	standin.Set(t, "STANDIN_GPUS", "3")
	p := openPair(t, "1")
	require.Contains(t, p.devices[0].Spec().Device, "Stand-in 1")
	require.Contains(t, p.devices[1].Spec().Device, "Stand-in 2")
	require.Contains(t, p.devices[0].Spec().Arithmetic, "+nccl2.30.7")
	for _, x := range []float32{1, 3, 5} {
		p.write(t, 0, x)
		p.write(t, 1, 2*x)
		require.NoError(t, p.each(func(rank int) error { return p.run[rank].Run(t.Context()) }))
		for rank := range p.devices { // one after the other: everything is enqueued already
			got, err := p.read(rank)
			require.NoError(t, err)
			require.Equal(t, 3*x, got)
		}
	}
	require.NoError(t, p.each(func(rank int) error {
		return p.run[rank].RunObserved(t.Context(), func(n *backend.Node, m backend.Memory) error {
			_, err := m.Read(p.x[rank])
			return err
		})
	}))
	got, err := p.read(1)
	require.NoError(t, err)
	require.Equal(t, float32(30), got)
	require.Zero(t, testing.AllocsPerRun(10, func() { _ = p.run[0].Run(t.Context()) }))
	require.NoError(t, p.each(func(rank int) error { // rank 1 joins the collectives that rank 0 launched alone
		for range 11 * rank {
			if err := p.run[rank].Run(t.Context()); err != nil {
				return err
			}
		}
		_, err := p.read(rank)
		return err
	}))
}

// When one rank loses its device, the other ranks fail instead of waiting forever, even
// if no call uses the failed rank.
func TestOneRankLosesItsDevice(t *testing.T) {
	standin.Only(t, "only a new process can use a lost GPU again")
	standIns(t)
	standin.Set(t, "STANDIN_GPUS", "2")
	t.Cleanup(func() {
		gpus.Lock()
		defer gpus.Unlock()
		clear(gpus.open) // one of them cannot be closed
	})
	c := small("bf16")
	c.Model.Layers, c.Train.HealthEvery, c.Train.Ranks = 1, 0, 2
	tr, devices := trainer(t, c, "cuda")
	standin.Set(t, "STANDIN_LOST", "400") // in about the third step
	var err error
	for step := 0; err == nil && step < 10; step++ {
		_, err = tr.Next(t.Context())
	}
	require.ErrorIs(t, err, backend.ErrDeviceLost)
	require.Regexp(t, `^cuda: rank [01]: .*: device lost: cu\w+ returned 700: .*; only a new process gets the GPU back, start again$`, err.Error())
	for _, d := range devices {
		require.ErrorIs(t, d.Read(tr.Loss, make([]byte, 4)), backend.ErrDeviceLost, "the memory of an interrupted step is invalid")
	}
}

// A rank waits for a missing rank until the timeout.
func TestMissingRank(t *testing.T) {
	standIns(t)
	standin.Set(t, "STANDIN_GPUS", "2")
	t.Setenv("OCTET_TIMEOUT", "1s")
	p := openPair(t, "")
	require.NoError(t, p.run[1].Run(t.Context()))
	begin := time.Now()
	_, err := p.read(1)
	require.Greater(t, time.Since(begin), watchEvery, "about six ticks fit in the timeout") // a tick after a late one may be short
	p.ends(t, err, "rank 1", "waited 1s", "its last collective is allreduce of x:fp32[4]", "OCTET_TIMEOUT")

	// A rank that was recording does not use its freed communicator.
	require.ErrorIs(t, p.devices[0].(*device).runCollective(&collective{}), backend.ErrDeviceLost)
}

// A communicator is not freed during a call, and no call begins after an abort. A call
// that hangs delays the abort only up to callTimeout.
func TestAbortWaitsForCalls(t *testing.T) {
	standIns(t)
	standin.Set(t, "STANDIN_GPUS", "2")
	d := openPair(t, "").devices[0].(*device)
	d.group.calls[0].Lock() // as in runCollective
	d.group.leave(1, context.Canceled)
	time.Sleep(20 * time.Millisecond)
	require.NoError(t, d.comm.Err(), "the communicator is not freed yet")
	select {
	case <-d.group.released:
	case <-time.After(time.Minute):
		t.Fatal("the communicator was not aborted during a hanging call")
	}
	d.group.calls[0].Unlock()
	require.Error(t, d.comm.Err())
	require.ErrorIs(t, d.runCollective(&collective{}), backend.ErrDeviceLost)
}

// Closing idle ranks destroys the communicators; closing a rank with work on its stream
// aborts them.
func TestClosingRanks(t *testing.T) {
	const destroyed, aborted = 5, 4 // error codes of the stand-in
	for left, end := range map[int]int{0: destroyed, 1: aborted} {
		t.Run(fmt.Sprint(left), func(t *testing.T) {
			standIns(t)
			standin.Set(t, "STANDIN_GPUS", "2")
			p := openPair(t, "")
			comm := p.devices[0].(*device).comm
			require.NoError(t, p.each(func(rank int) error {
				if err := p.run[rank].Run(t.Context()); err != nil {
					return err
				}
				_, err := p.read(rank)
				return err
			}))
			for range left {
				require.NoError(t, p.run[1].Run(t.Context()))
			}
			for _, d := range p.devices {
				require.NoError(t, d.Close())
			}
			e := (*libcuda.Error)(nil)
			require.ErrorAs(t, comm.Err(), &e)
			require.Equal(t, end, e.Code)
		})
	}
}

func TestErrorOfNCCL(t *testing.T) {
	standIns(t)
	standin.Set(t, "STANDIN_GPUS", "2")
	p := openPair(t, "")
	standin.Set(t, "STANDIN_NCCL_ERROR", "6")
	require.NoError(t, p.run[1].Run(t.Context()))
	_, err := p.read(1)
	p.ends(t, err, "rank 0: its last collective is ", "NCCL in the background returned 6")
}

// Polling does not invalidate a capture.
func TestPollingLeavesACaptureValid(t *testing.T) {
	standIns(t)
	standin.Set(t, "STANDIN_GPUS", "2")
	d := openPair(t, "").devices[0].(*device)
	_, err := d.stream.Capture(d.poll)
	require.ErrorContains(t, err, "cuStreamQuery returned 900")
	d.recording.Lock()
	g, err := d.stream.Capture(d.poll)
	d.recording.Unlock()
	require.NoError(t, err)
	require.NoError(t, g.Close())
}

// When a rank is closed, its context ends or its observer stops it, the other rank fails.
func TestRankThatLeaves(t *testing.T) {
	for name, leave := range map[string]func(p *pair) error{
		"closed": func(p *pair) error { return p.devices[0].Close() },
		"cancelled": func(p *pair) error {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			if err := p.run[0].Run(ctx); !errors.Is(err, context.Canceled) {
				return err
			}
			return nil
		},
		"observed": func(p *pair) error {
			stop := errors.New("enough")
			err := p.run[0].RunObserved(context.Background(), func(*backend.Node, backend.Memory) error { return stop })
			if !errors.Is(err, stop) {
				return err
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			standIns(t)
			standin.Set(t, "STANDIN_GPUS", "2")
			p := openPair(t, "")
			require.NoError(t, p.run[1].Run(t.Context()))
			waited := make(chan error)
			go func() { _, err := p.read(1); waited <- err }()
			time.Sleep(10 * time.Millisecond)
			require.NoError(t, leave(p))
			err := <-waited
			require.ErrorIs(t, err, backend.ErrDeviceLost)
			require.ErrorContains(t, err, "rank 0 left the group")
			if name == "closed" {
				p.devices = p.devices[1:] // for the cleanup
			}
		})
	}
}

// An observed run ends with its context, even while its device waits in a collective.
func TestObservedRunIsCancelled(t *testing.T) {
	standIns(t)
	standin.Set(t, "STANDIN_GPUS", "2")
	p := openPair(t, "")
	d := p.devices[0].(*device)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		for reached := "none"; reached == "none" && ctx.Err() == nil; time.Sleep(time.Millisecond) {
			d.group.mu.Lock()
			reached = d.lastCollective()
			d.group.mu.Unlock()
		}
	}()
	err := p.run[0].RunObserved(ctx, func(*backend.Node, backend.Memory) error { return nil })
	p.ends(t, err, "rank 0 left the group", "context canceled")
}

// If a group ends during a call of one rank, the call returns the reason.
func TestGroupEndsDuringACall(t *testing.T) {
	g := &group{ranks: make([]*device, 2), waits: make([]wait, 2), open: 2, released: make(chan struct{})}
	require.NoError(t, g.during(0, "load kernels", func() error { return nil }))
	own := errors.New("no memory")
	require.Equal(t, own, g.during(0, "load kernels", func() error { return own }))
	err := g.during(0, "load kernels", func() error {
		g.leave(1, context.Canceled)
		return nil
	})
	require.ErrorIs(t, err, backend.ErrDeviceLost)
	require.ErrorContains(t, err, "rank 1 left the group")
	require.Equal(t, wait{}, g.waits[0])
}

// Communicators that NCCL returns after the group has ended are aborted, and no device
// gets one.
func TestCommunicatorsForAnEndedGroup(t *testing.T) {
	standIns(t)
	standin.Set(t, "STANDIN_GPUS", "2")
	var devices []*device
	var gpus []*libcuda.Device
	for i := range 2 {
		d, err := openDevice(i, options{}, nil)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, d.Close()) })
		devices, gpus = append(devices, d), append(gpus, d.gpu.Device)
	}
	comms, err := libcuda.NewComms(gpus)
	require.NoError(t, err)
	g, err := newGroup(2, nil)
	require.NoError(t, err)
	t.Cleanup(g.dissolve)
	g.leave(0, context.DeadlineExceeded)
	require.ErrorIs(t, g.join(devices, comms), backend.ErrDeviceLost)
	for rank, c := range comms {
		require.Error(t, c.Err(), "rank %d: the communicator is not aborted", rank)
		require.Nil(t, devices[rank].group)
		require.Nil(t, g.ranks[rank])
	}
}

// Errors for machines that lack what several ranks need.
func TestMachinesUnfitForRanks(t *testing.T) {
	standin.Only(t, "the stand-in has any number of GPUs")
	standIns(t)
	for _, c := range []struct {
		device, gpus, variable, value string
		want                          string
	}{
		{"", "1", "", "", "backend cuda: unsupported: 2 ranks need GPUs 0 to 1, CUDA shows 1 to this process (CUDA_VISIBLE_DEVICES chooses them): set train.ranks = 1, or use --backend emu"},
		{"2", "3", "", "", "2 ranks need GPUs 2 to 3, CUDA shows 3 to this process"},
		{"3", "3", "", "", "there is no GPU 3, CUDA shows 3"},
		{"", "2", "OCTET_LIBNCCL", filepath.Join(t.TempDir(), "missing.so"), "backend cuda: no device that 2 ranks can use: NCCL cannot be loaded: "},
		{"", "2", "OCTET_TIMEOUT", "soon", `OCTET_TIMEOUT is "soon": a duration such as 10m`},
		{"", "2", "STANDIN_NCCL", "2804", "2.9 or later"},
		{"", "2", "STANDIN_CAPABILITY", "80", "compute capability 8.0"},
	} {
		t.Run(c.want, func(t *testing.T) {
			standin.Set(t, "STANDIN_GPUS", c.gpus)
			if c.variable != "" {
				standin.Set(t, c.variable, c.value)
			}
			if c.variable == "STANDIN_CAPABILITY" {
				require.NoError(t, forgetGPUs())
			}
			_, err := open(c.device, backend.Options{Ranks: 2})
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), "\n")
		})
	}
	// One rank does not need NCCL.
	t.Setenv("OCTET_LIBNCCL", filepath.Join(t.TempDir(), "missing.so"))
	openOne(t)
}
