//go:build mpi && cgo && linux

package emu_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"octet/backend"
	"octet/backend/emu"
	"octet/backend/world"
	"octet/csrc/standin"
	"octet/data"
	"octet/train"
)

// joinOverMPI returns the group of a process that RunRanks started.
func joinOverMPI(t testing.TB) *world.Group {
	t.Helper()
	place, found, err := world.FromEnv(os.LookupEnv)
	require.NoError(t, err)
	require.True(t, found)
	var o world.Options
	o.Timeout = time.Minute
	place.Address, o.Secret, o.Listener, err = emu.Rendezvous(t.Context(), place)
	require.NoError(t, err)
	o.Place = place
	g, err := world.Join(t.Context(), o)
	require.NoError(t, err)
	return g
}

// smallRun is the configuration of a run of some ranks.
func smallRun(ranks int, recipe string, stage int) train.Config {
	c := train.Default()
	c.Recipe = recipe
	c.Model.Layers, c.Model.Dim, c.Model.Heads, c.Model.KVHeads, c.Model.FFN = 2, 32, 2, 1, 48
	c.Data.Seq, c.Train.MicroBatch = 32, 4
	c.Train.Ranks, c.Train.ZeroStage = ranks, stage
	return c
}

// sharing is c with layers that several ranks share.
func sharing(c train.Config, tensor int) train.Config {
	c.Model.KVHeads, c.Model.FFN, c.Train.Tensor = 2, 64, tensor
	return c
}

// rank is a trainer of one rank and its device.
type rank struct {
	*train.Trainer
	device backend.Backend
}

func (r *rank) open(g *world.Group) (err error) {
	r.device, err = backend.Open("emu", backend.Options{Group: g})
	return err
}

// newRank returns a trainer with its first weights.
func newRank(t testing.TB, c train.Config, g *world.Group) (*rank, error) {
	r := new(rank)
	if err := r.open(g); err != nil {
		return nil, err
	}
	t.Cleanup(func() { require.NoError(t, r.device.Close()) })
	job, err := train.NewJob(c, r.device.Spec())
	if err != nil {
		return nil, err
	}
	text := data.Text(strings.Repeat("for err := range errs { if err != nil { return err } } ", 1000))
	val := text[:3*c.Train.MicroBatch*c.Data.Seq+1] // three batches
	if r.Trainer, err = train.NewTrainer(job, &data.Corpus{Train: text, Val: val}, r.device, g); err != nil {
		return nil, err
	}
	r.Reopen = func() (backend.Backend, error) {
		err := errors.Join(r.device.Close(), r.open(g))
		return r.device, err
	}
	return r, r.Init(t.Context())
}

// steps returns the results of some steps, and the weights after them, as text.
func (r *rank) steps(t testing.TB, n int) (string, error) {
	var b strings.Builder
	for range n {
		result, err := r.Next(t.Context())
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "step %d: %x %x\n", result.Step, result.Loss, result.GradNorm)
	}
	for _, p := range r.Model.Params {
		x, err := r.Weights(p)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "%s: %x\n", p.Name, x)
	}
	return b.String(), nil
}

// Ranks that are processes train with the bits of ranks in one process, across a change of recipe,
// which opens the devices again. MPI outlives the devices.
func TestRecipeChangesOverMPI(t *testing.T) {
	for name, c := range map[string]train.Config{
		"zero_stage=1": smallRun(4, "bf16", 1), "tensor_parallel=2 zero_stage=3": sharing(smallRun(4, "bf16", 3), 2),
	} {
		t.Run(name, func(t *testing.T) {
			if !standin.InRank() {
				standin.Succeeded(t, standin.RunRanks(t, 4))
				return
			}
			c.Precision.Schedule = []train.RecipeChange{{Step: 2, Recipe: "fp8-delayed"}, {Step: 4, Recipe: "fp8-smooth"}}
			want := make([]string, 4)
			require.NoError(t, world.Each(world.Local(4, time.Minute), func(g *world.Group) error {
				r, err := newRank(t, c, g)
				if err == nil {
					want[g.Rank()], err = r.steps(t, 6)
				}
				return err
			}))
			g := joinOverMPI(t)
			r, err := newRank(t, c, g)
			require.NoError(t, err)
			got, err := r.steps(t, 6)
			require.NoError(t, err)
			require.True(t, want[g.Rank()] == got, "the bits differ") // not require.Equal, which would print them
			require.NoError(t, g.Leave(t.Context()))
		})
	}
}

// Two groups that share layers evaluate three batches: the one without the last takes part in its
// collectives.
func TestEvaluationOverMPI(t *testing.T) {
	if !standin.InRank() {
		standin.Succeeded(t, standin.RunRanks(t, 4))
		return
	}
	g := joinOverMPI(t)
	r, err := newRank(t, sharing(smallRun(4, "bf16", 0), 2), g)
	require.NoError(t, err)
	loss, err := r.Evaluate(t.Context())
	require.NoError(t, err)
	require.Positive(t, loss)
	require.NoError(t, g.Leave(t.Context()))
}

// A step sends the bytes of the plan, and its collectives count as wait.
func TestBytesOverMPI(t *testing.T) {
	for name, x := range map[string]struct {
		stage, kinds int
		reduce       string
		tensor       int
	}{
		"zero_stage=0": {0, 1, "", 1}, "zero_stage=1": {1, 3, "", 1}, "zero_stage=3": {3, 3, "", 1}, "reduce=e4m3": {1, 4, "e4m3", 1},
		"tensor_parallel=2": {0, 3, "", 2}, "tensor_parallel=2 zero_stage=3": {3, 4, "", 2},
	} {
		t.Run(name, func(t *testing.T) {
			n := 2 * x.tensor
			if !standin.InRank() {
				standin.Succeeded(t, standin.RunRanks(t, n))
				return
			}
			g := joinOverMPI(t)
			c := smallRun(n, "fp8-delayed", x.stage)
			if c.Precision.Reduce = x.reduce; x.tensor > 1 {
				c = sharing(c, x.tensor)
			}
			r, err := newRank(t, c, g)
			require.NoError(t, err)
			_, err = r.Next(t.Context()) // and the calibration
			require.NoError(t, err)
			counter, ok := r.device.(interface{ BytesSent() int64 })
			require.True(t, ok)
			before, waited := counter.BytesSent(), g.WaitTime()
			_, err = r.Next(t.Context())
			require.NoError(t, err)
			want, kinds := int64(0), map[string]bool{}
			for _, p := range []*backend.Program{r.Micro[train.Variant{First: true, Last: true}], r.Update} {
				for _, node := range p.Nodes() {
					op, whole, group := backend.Exchanged(node.Op)
					if whole == nil {
						continue
					}
					ranks, err := group.Ranks(n)
					require.NoError(t, err)
					n := int64(ranks)
					sent := whole.Bytes() * (n - 1) / n
					if kinds[op] = true; op == "all-reduce" {
						if sent *= 2; n*whole.Bytes() <= 64<<10 { // gathered
							sent = whole.Bytes() * (n - 1)
						}
					}
					want += sent
				}
			}
			require.Len(t, kinds, x.kinds)
			require.Equal(t, want, counter.BytesSent()-before)
			require.Greater(t, g.WaitTime(), waited)
			require.NoError(t, g.Leave(t.Context()))
		})
	}
}

// Ranks with different programs fail with the first collective that differs, since MPI would not
// notice.
func TestDifferentProgramsOverMPI(t *testing.T) {
	if !standin.InRank() {
		standin.Succeeded(t, standin.RunRanks(t, 3))
		return
	}
	g := joinOverMPI(t)
	c := smallRun(3, "bf16", 0)
	if g.Rank() == 2 {
		c.Model.FFN += 16
	}
	_, err := newRank(t, c, g)
	lost, ok := errors.AsType[*world.Lost](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, 2, lost.Rank)
	require.Regexp(t, `its programs differ: collective \d+ is .*\.mlp.*\[(32, 64|64, 32)\].*, that of rank 0 is .*\.mlp.*\[(32, 48|48, 32)\]`, lost.Cause)
	require.NoError(t, g.Leave(t.Context()))
}

// Ranks divide the processors that they share, and no others.
func TestProcessorsOverMPI(t *testing.T) {
	all := runtime.GOMAXPROCS(0)
	if all < 2 || all < runtime.NumCPU() {
		t.Skip("needs two processors")
	}
	if !standin.InRank() {
		standin.Succeeded(t, standin.RunRanks(t, 2))
		return
	}
	threads := func(g *world.Group) int {
		d, err := backend.Open("emu", backend.Options{Group: g})
		require.NoError(t, err)
		defer func() { require.NoError(t, d.Close()) }()
		return d.Spec().Threads
	}
	g := joinOverMPI(t)
	require.Equal(t, all/2, threads(g))
	// A launcher binds each rank to other processors.
	var allowed, mine unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(os.Getpid(), &allowed))
	for cpu, seen := 0, 0; seen < 2; cpu++ {
		if allowed.IsSet(cpu) {
			if seen == g.Rank() {
				mine.Set(cpu)
			}
			seen++
		}
	}
	require.NoError(t, unix.SchedSetaffinity(os.Getpid(), &mine))
	require.Equal(t, all, threads(g)) // Go counted the processors before
	require.NoError(t, g.Leave(t.Context()))
}

// A launcher and MPI that disagree are an error before ranks wait for each other: the processes of
// another MPI's launcher are worlds of one rank.
func TestLauncherThatDiffersOverMPI(t *testing.T) {
	if !standin.InRank() {
		standin.Succeeded(t, standin.RunRanks(t, 2))
		return
	}
	place, _, err := world.FromEnv(os.LookupEnv)
	require.NoError(t, err)
	place.Size = 3
	_, _, _, err = emu.Rendezvous(t.Context(), place)
	require.ErrorContains(t, err, fmt.Sprintf("rank %d of 3 by MPI (PMI), but MPI says rank %[1]d of 2", place.Rank))
}

// A rank that is lost before it initializes MPI ends those that wait for it there.
func TestRankLostBeforeInitOverMPI(t *testing.T) {
	if standin.RealMPI() {
		t.Skip("mpiexec ends the other ranks")
	}
	if !standin.InRank() {
		address, listener, err := world.Loopback()
		require.NoError(t, err)
		if listener != nil {
			require.NoError(t, listener.Close())
		}
		_, port, err := net.SplitHostPort(address)
		require.NoError(t, err)
		standin.Succeeded(t, standin.RunRanks(t, 2, "MASTER_ADDR=127.0.0.1", "MASTER_PORT="+port))
		return
	}
	place, _, err := world.FromEnv(os.LookupEnv)
	require.NoError(t, err)
	g, err := world.Join(t.Context(), world.Options{Place: place, Timeout: time.Minute})
	require.NoError(t, err)
	cause := errors.New("no more memory")
	if g.Rank() == 1 {
		g.Fail(world.CodeFailed, cause)
		return
	}
	_, err = backend.Open("emu", backend.Options{Group: g})
	require.ErrorContains(t, err, "rank 1")
	require.ErrorContains(t, err, cause.Error())
}

// BenchmarkStepOverMPI measures steps of the model small by two ranks, as processes and as
// goroutines of one process. Steps of both kinds alternate, each rank has one thread, and the
// figures are medians.
//
//	OCTET_TEST_MPIEXEC=mpiexec OCTET_LIBMPI=libmpi_abi.so.1 go test -tags mpi -run - -bench StepOverMPI ./backend/emu
func BenchmarkStepOverMPI(b *testing.B) {
	if !standin.InRank() {
		standin.LogFigures(b, standin.RunRanks(b, 2))
		return
	}
	const ranks, pairs = 2, 17
	c, err := train.Preset("small")
	require.NoError(b, err)
	c.Recipe, c.Train.Ranks, c.Train.ZeroStage = "fp8-delayed", ranks, 1
	require.NoError(b, c.Resolve())
	g := joinOverMPI(b)
	mine, err := newRank(b, c, g)
	require.NoError(b, err)
	var goroutines []*rank // of rank 0's process
	groups := world.Local(ranks, time.Minute)
	if g.Rank() == 0 {
		goroutines = make([]*rank, ranks)
		require.NoError(b, world.Each(groups, func(g *world.Group) (err error) {
			goroutines[g.Rank()], err = newRank(b, c, g)
			return err
		}))
	}
	var processes, inProcess []time.Duration
	var ratios []float64
	barrier := func() {
		_, err := g.Exchange(b.Context(), "the next measurement", nil)
		require.NoError(b, err)
	}
	for i := range pairs + 2 {
		barrier()
		start := time.Now()
		_, err := mine.Next(b.Context())
		require.NoError(b, err)
		one := time.Since(start)
		barrier()
		if g.Rank() > 0 {
			continue
		}
		start = time.Now()
		require.NoError(b, world.Each(groups, func(g *world.Group) error {
			_, err := goroutines[g.Rank()].Next(b.Context())
			return err
		}))
		other := time.Since(start)
		if i >= 2 { // after the calibration
			processes, inProcess = append(processes, one), append(inProcess, other)
			ratios = append(ratios, float64(one)/float64(other))
		}
	}
	barrier()
	if g.Rank() == 0 {
		slices.Sort(processes)
		slices.Sort(inProcess)
		slices.Sort(ratios)
		standin.Figure("step of %d processes %v, of %d goroutines %v, median ratio of %d pairs %.3f (quartiles %.3f, %.3f)", ranks, processes[pairs/2].Round(time.Millisecond),
			ranks, inProcess[pairs/2].Round(time.Millisecond), pairs, ratios[pairs/2], ratios[pairs/4], ratios[3*pairs/4])
	}
	require.NoError(b, g.Leave(b.Context()))
}

// Collectives beside other nodes change no bit. The log has the share of the time in which a rank waits
// for collectives, without and with other nodes beside them:
//
//	go test -tags mpi -v -run TestOverlapOverMPI ./backend/emu
func TestOverlapOverMPI(t *testing.T) {
	if !standin.InRank() {
		exits := standin.RunRanks(t, 2)
		standin.Succeeded(t, exits)
		standin.LogFigures(t, exits)
		return
	}
	g := joinOverMPI(t)
	for stage := 1; stage <= 3; stage++ {
		c := smallRun(2, "fp8-delayed", stage)
		c.Model.Layers, c.Model.Dim, c.Model.FFN, c.Data.Seq = 4, 256, 512, 64
		var texts []string
		for _, *emu.Overlaps = range []bool{false, true} {
			r, err := newRank(t, c, g)
			require.NoError(t, err)
			_, err = r.Next(t.Context()) // and the calibration
			require.NoError(t, err)
			waited, begin := g.WaitTime(), time.Now()
			text, err := r.steps(t, 4)
			require.NoError(t, err)
			spent := time.Since(begin)
			standin.Figure("rank %d, stage %d, overlap %v: waits %.1f %% of %v", g.Rank(), stage, *emu.Overlaps, 100*(g.WaitTime()-waited).Seconds()/spent.Seconds(), spent.Round(time.Millisecond))
			texts = append(texts, text)
		}
		require.Equal(t, texts[0], texts[1], "stage %d", stage)
	}
	require.NoError(t, g.Leave(t.Context()))
}
