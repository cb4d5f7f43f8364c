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

	"octet/backend"
	"octet/backend/conformance"
	"octet/backend/world"
	"octet/csrc/libcuda"
	"octet/csrc/standin"
	"octet/train"
)

// The conformance cases of several ranks, up to four on stand-in GPUs: of collectives, of a
// vocabulary in parts, and of an optimizer with a sharded update.
func TestCollectives(t *testing.T) {
	standIns(t)
	standin.Set(t, "STANDIN_GPUS", "4")
	d, _, err := backend.Find("cuda")
	require.NoError(t, err)
	passed := 0
	for c := range conformance.Cases() {
		switch kind, _, _ := strings.Cut(c.Name, "/"); {
		case slices.Contains([]string{"allreduce", "reducescatter", "allgather", "alltoall", "groups"}, kind),
			strings.HasPrefix(c.Name, "crossentropy/parts/") && !strings.Contains(c.Name, "fp16"), strings.HasSuffix(c.Name, "/shard"), strings.HasSuffix(c.Name, "/split"):
			require.NoError(t, c.Run(t.Context(), d, ""), c.Name)
			passed++
		}
	}
	require.GreaterOrEqual(t, passed, 90)
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

// Ranks that exchange gradients as codes agree with emu. With a scale for each block of a row,
// with one for each tensor, and in BF16, whose sums are in order of rank, too; and with one scale
// for all ranks and rounded sums.
func TestRanksExchangeGradientCodes(t *testing.T) {
	standIns(t)
	standin.Set(t, "STANDIN_GPUS", "3")
	for _, x := range []struct {
		ranks int
		train.Precision
	}{
		{2, train.Precision{Reduce: "e4m3"}},
		{3, train.Precision{Reduce: "e4m3"}},
		{3, train.Precision{Reduce: "e5m2", ReduceGranularity: "tensor"}},
		{2, train.Precision{Reduce: "bf16"}},
		{3, train.Precision{Reduce: "e4m3", ReduceGranularity: "tensor", ReduceScale: "auto", ReduceSum: "each"}},
	} {
		c := small("fp8-delayed")
		c.Precision, c.Model.Layers, c.Train.HealthEvery, c.Train.Ranks, c.Train.ZeroStage = x.Precision, 1, 0, x.ranks, 1
		agree(t, c, steps(t, c, "emu", 3), steps(t, c, "cuda", 3))
	}
}

// At the stages of ZeRO the steps are the same bit for bit, except the last bits of the
// gradient norm. Three ranks do not divide the rows.
func TestRanksShareTheOptimizer(t *testing.T) {
	standIns(t)
	standin.Set(t, "STANDIN_GPUS", "3")
	for _, ranks := range []int{2, 3} {
		c := small("fp8-smooth")
		c.Model.Layers, c.Train.Ranks = 1, ranks
		sharingChangesNoBit(t, c)
	}
}

// Ranks of two groups share each layer and the vocabulary, as on emu.
func TestRanksShareLayers(t *testing.T) {
	standIns(t)
	standin.Set(t, "STANDIN_GPUS", "4")
	c := compared("fp8-smooth")
	c.Model.Dim, c.Model.KVHeads, c.Model.FFN, c.Train.Ranks, c.Train.Tensor = 64, 2, 64, 4, 2
	agree(t, c, steps(t, c, "emu", 3), steps(t, c, "cuda", 3))
}

// Ranks that gather the codes of weights with block scales gather the scales, too.
func TestRanksShareBlockScaledWeights(t *testing.T) {
	capable(t, 90, 130102)
	standin.Set(t, "STANDIN_GPUS", "2")
	c := compared("deepseek-v3")
	c.Model.Dim, c.Model.FFN, c.Model.Layers, c.Data.Seq, c.Train.Ranks = 256, 256, 1, 32, 2
	sharingChangesNoBit(t, c)
}

// sharingChangesNoBit requires that a few steps of one micro-batch at the stages of ZeRO equal those
// without.
func sharingChangesNoBit(t *testing.T, c train.Config) {
	t.Helper()
	c.Train.HealthEvery, c.Train.Accumulate, c.Optimizer.Clip = 0, 1, 0
	want := steps(t, c, "cuda", 3)
	for _, stage := range []int{1, 3} {
		c.Train.ZeroStage = stage
		got := steps(t, c, "cuda", 3)
		for i := range want {
			require.InEpsilon(t, want[i].GradNorm, got[i].GradNorm, 0x1p-22)
			want[i].GradNorm, want[i].Elapsed = got[i].GradNorm, got[i].Elapsed
		}
		require.Equal(t, want, got, "%d ranks, stage %d", c.Train.Ranks, stage)
	}
}

// A graph that contains a collective runs again and again without allocating. The device
// cuda:1 with two ranks uses GPUs 1 and 2.
func TestCollectivesInGraphs(t *testing.T) {
	standIns(t)
	standin.Set(t, "STANDIN_GPUS", "3")
	p := openPair(t, "1", time.Minute)
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
	launched := 0
	require.Zero(t, allocs(10, func() {
		_ = p.run[0].Run(t.Context())
		launched++
	}))
	require.NoError(t, p.each(func(rank int) error { // rank 1 joins the collectives that rank 0 launched alone
		for range launched * rank {
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
	for _, device := range []string{"cuda", "cuda:" + beside} {
		t.Run(device, func(t *testing.T) { loseADevice(t, device) })
	}
}

func loseADevice(t *testing.T, device string) {
	t.Helper()
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
	tm := newTeam(t, c, device)
	standin.Set(t, "STANDIN_LOST", "400") // in about the third step
	var err error
	for step := 0; err == nil && step < 10; step++ {
		_, err = tm.next(t.Context(), false)
	}
	require.ErrorIs(t, err, backend.ErrDeviceLost)
	require.Regexp(t, `cuda: rank [01]: .*: device lost: cu\w+ returned 700: .*; only a new process gets the GPU back, start again$`, err.Error())
	for rank, d := range tm.devices {
		require.ErrorIs(t, d.Read(tm.ranks[rank].Loss, make([]byte, 4)), backend.ErrDeviceLost, "the memory of an interrupted step is invalid")
	}
}

// The wait of a rank is the time in which its device is in a collective.
func TestWaitTime(t *testing.T) {
	standIns(t)
	standin.Set(t, "STANDIN_GPUS", "2")
	p := openPair(t, "", time.Minute)
	require.NoError(t, p.run[0].Run(t.Context()))
	require.Eventually(t, func() bool { return p.groups[0].WaitTime() > 0 }, 10*time.Second, time.Millisecond)
	require.Zero(t, p.groups[1].WaitTime())
	require.NoError(t, p.run[1].Run(t.Context()))
	for rank := range p.devices {
		_, err := p.read(rank)
		require.NoError(t, err)
	}

	m := &member{group: world.Local(2, time.Minute)[0]}
	m.names.Store(&[]string{"first", "second"})
	for mark := range uint64(5) { // 1 and 3 are in a collective
		m.sample(mark, time.Second)
	}
	require.Equal(t, 2*time.Second, m.group.WaitTime())
	require.Zero(t, testing.AllocsPerRun(10, func() { m.sample(1, time.Second) }))
}

// A rank waits for a missing rank until the timeout.
func TestMissingRank(t *testing.T) {
	standIns(t)
	standin.Set(t, "STANDIN_GPUS", "2")
	p := openPair(t, "", time.Second)
	require.NoError(t, p.run[1].Run(t.Context()))
	begin := time.Now()
	_, err := p.read(1)
	require.Greater(t, time.Since(begin), time.Second)
	p.ends(t, err, "rank 0: the other ranks waited for it for 1s; its last collective is ", "(OCTET_TIMEOUT gives more time)")

	// A rank that was recording does not use its freed communicator.
	require.ErrorIs(t, p.devices[0].(*device).runCollective(&collective{}, nil), backend.ErrDeviceLost)
}

// A device that hangs between two collectives is blamed, though its host waits for it, and though
// the rank that waits for it is at the first collective of a program that runs again.
func TestDeviceThatHangs(t *testing.T) {
	names := []string{"first", "second"}
	groups := world.Local(2, 300*time.Millisecond)
	for rank, mark := range []uint64{1, 4} { // in the first, and after the second
		m := &member{group: groups[rank]}
		m.names.Store(&names)
		m.tell(mark)
	}
	<-groups[0].Done()
	require.EqualError(t, groups[0].Err(), "rank 1: the other ranks waited for it for 300ms; its last collective is second (OCTET_TIMEOUT gives more time)")
}

// A communicator is not freed during a call, and no call begins after an abort. A call
// that hangs delays the abort only up to callTimeout.
func TestAbortWaitsForCalls(t *testing.T) {
	standIns(t)
	standin.Set(t, "STANDIN_GPUS", "2")
	p := openPair(t, "", time.Minute)
	d := p.devices[0].(*device)
	d.using.Lock() // as in runCollective
	p.groups[1].Fail(world.CodeFailed, context.Canceled)
	time.Sleep(20 * time.Millisecond)
	require.NoError(t, d.comms[0].Err(), "the communicator is not freed yet")
	select {
	case <-d.released:
	case <-time.After(time.Minute):
		t.Fatal("the communicator was not aborted during a hanging call")
	}
	d.using.Unlock()
	require.Error(t, d.comms[0].Err())
	require.ErrorIs(t, d.runCollective(&collective{}, nil), backend.ErrDeviceLost)
}

// Closing ranks destroys the communicators; those of a group that has ended are aborted. After
// closing them, the same group can open devices again, as a change of recipe does.
func TestClosingRanks(t *testing.T) {
	const destroyed, aborted = 5, 4 // error codes of the stand-in
	for _, end := range []int{destroyed, aborted} {
		t.Run(fmt.Sprint(end), func(t *testing.T) {
			standIns(t)
			standin.Set(t, "STANDIN_GPUS", "2")
			p := openPair(t, "", time.Minute)
			comm := p.devices[0].(*device).comms[0]
			require.NoError(t, p.each(func(rank int) error {
				if err := p.run[rank].Run(t.Context()); err != nil {
					return err
				}
				_, err := p.read(rank)
				return err
			}))
			if end == aborted {
				p.groups[1].Fail(world.CodeFailed, context.Canceled)
				<-p.groups[0].Done() // the news reaches rank 0 a moment later
			}
			require.NoError(t, p.each(func(rank int) error { return p.devices[rank].Close() }))
			e := (*libcuda.Error)(nil)
			require.ErrorAs(t, comm.Err(), &e)
			require.Equal(t, end, e.Code)
			err := world.Each(p.groups, func(g *world.Group) (err error) {
				p.devices[g.Rank()], err = open("", backend.Options{Group: g})
				return err
			})
			if end == aborted {
				require.ErrorIs(t, err, backend.ErrDeviceLost)
				p.devices = nil
				return
			}
			require.NoError(t, err)
		})
	}
}

func TestErrorOfNCCL(t *testing.T) {
	standIns(t)
	standin.Set(t, "STANDIN_GPUS", "2")
	p := openPair(t, "", time.Minute)
	standin.Set(t, "STANDIN_NCCL_ERROR", "6")
	require.NoError(t, p.run[1].Run(t.Context()))
	_, err := p.read(1)
	p.ends(t, err, ": its last collective is ", "NCCL in the background returned 6")
}

// Polling does not invalidate a capture.
func TestPollingLeavesACaptureValid(t *testing.T) {
	standIns(t)
	standin.Set(t, "STANDIN_GPUS", "2")
	d := openPair(t, "", time.Minute).devices[0].(*device)
	poll := func() error { return d.poll(d, d.stream) }
	_, err := d.stream.Capture(poll)
	require.ErrorContains(t, err, "cuStreamQuery returned 900")
	d.recording.Lock()
	g, err := d.stream.Capture(poll)
	d.recording.Unlock()
	require.NoError(t, err)
	require.NoError(t, g.Close())
}

// When the context of a rank ends or its observer stops it, the other rank fails.
func TestRankThatLeaves(t *testing.T) {
	for name, leave := range map[string]func(p *peers) error{
		"cancelled": func(p *peers) error {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			if err := p.run[0].Run(ctx); !errors.Is(err, context.Canceled) {
				return err
			}
			return nil
		},
		"observed": func(p *peers) error {
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
			p := openPair(t, "", time.Minute)
			require.NoError(t, p.run[1].Run(t.Context()))
			waited := make(chan error)
			go func() { _, err := p.read(1); waited <- err }()
			time.Sleep(10 * time.Millisecond)
			require.NoError(t, leave(p))
			err := <-waited
			require.ErrorIs(t, err, backend.ErrDeviceLost)
			require.ErrorContains(t, err, "device lost: rank 0: ")
		})
	}
}

// An observed run ends with its context, even while its device waits in a collective.
func TestObservedRunIsCancelled(t *testing.T) {
	standIns(t)
	standin.Set(t, "STANDIN_GPUS", "2")
	p := openPair(t, "", time.Minute)
	d := p.devices[0].(*device)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		for reached := "none"; reached == "none" && ctx.Err() == nil; time.Sleep(time.Millisecond) {
			reached = d.lastCollective()
		}
	}()
	err := p.run[0].RunObserved(ctx, func(*backend.Node, backend.Memory) error { return nil })
	p.ends(t, err, "device lost: rank 0: context canceled")
}

// Errors for machines that lack what several ranks need.
func TestMachinesUnfitForRanks(t *testing.T) {
	standin.Only(t, "the stand-in has any number of GPUs")
	standIns(t)
	for _, c := range []struct {
		device, gpus, variable, value string
		want                          string
	}{
		{"", "1", "", "", "backend cuda: unsupported: rank 1 needs GPU 1, CUDA shows 1 to this process (CUDA_VISIBLE_DEVICES chooses them): start 1 ranks on this machine, or use --backend emu"},
		{"2", "3", "", "", "rank 1 needs GPU 3, CUDA shows 3 to this process"},
		{"3", "3", "", "", "there is no GPU "},
		{"", "2", "OCTET_LIBNCCL", filepath.Join(t.TempDir(), "missing.so"), "backend cuda: no device that 2 ranks can use: NCCL cannot be loaded: "},
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
			err := world.Each(world.Local(2, time.Minute), func(g *world.Group) error {
				d, err := open(c.device, backend.Options{Group: g})
				if err == nil {
					err = d.Close()
				}
				return err
			})
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), "\n")
		})
	}
	// One rank does not need NCCL.
	t.Setenv("OCTET_LIBNCCL", filepath.Join(t.TempDir(), "missing.so"))
	openOne(t)
}
