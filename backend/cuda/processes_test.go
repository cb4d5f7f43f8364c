//go:build cuda && cgo && linux

package cuda

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/world"
	"octet/csrc/standin"
	"octet/train"
)

// startRanks runs the calling test in n processes, on stand-ins if there are no GPUs for tests,
// and returns how they ended.
func startRanks(t testing.TB, n int, flags ...string) []standin.Exit {
	t.Helper()
	standin.Set(t, "STANDIN_GPUS", fmt.Sprint(n))
	return standin.RunWorld(t, n, flags...)
}

// outcome is what ranks must have in common, however they are started.
type outcome struct {
	Arithmetic string // with the algorithms of GEMMs
	Results    []train.StepResult
	Hashes     map[string]string // of parameters and optimizer state, by name
}

// outcomeOf takes n steps and returns the outcome of a rank.
func (tm *team) outcomeOf(t *testing.T, rank, n int) (o outcome, err error) {
	tr := tm.ranks[rank]
	for range n {
		r, err := tr.Next(t.Context())
		if err != nil {
			return o, err
		}
		r.Elapsed = 0
		o.Results = append(o.Results, r)
	}
	o.Hashes = map[string]string{}
	o.Arithmetic = tm.devices[rank].Spec().Arithmetic
	for x := range tr.Vars.All() {
		if x.Class != backend.Param && x.Class != backend.State || x.Base != nil {
			continue
		}
		raw := make([]byte, x.Bytes())
		if err := tm.devices[rank].Read(x, raw); err != nil {
			return o, err
		}
		o.Hashes[x.Name] = fmt.Sprintf("%x", sha256.Sum256(raw))
	}
	return o, nil
}

// Four processes have the losses, weights and optimizer state of four goroutines, bit for bit. In
// the second step the recipe changes, and all ranks open their devices again.
func TestProcessesTrainAsGoroutines(t *testing.T) {
	const ranks, count = 4, 4
	const wanted = "OCTET_TEST_WANTED"
	standin.Only(t, "NCCL may sum in another order within a process")
	c := small("fp8-delayed")
	c.Model.Layers, c.Train.HealthEvery, c.Train.Accumulate, c.Train.MicroBatch, c.Train.Ranks, c.Train.ZeroStage = 1, 0, 1, 1, ranks, 1
	c.Precision.Schedule = []train.RecipeChange{{Step: 2, Recipe: "fp8-smooth"}}
	if standin.InRank() {
		g := standin.JoinWorld(t, time.Minute)
		tm := &team{make([]*train.Trainer, ranks), make([]backend.Backend, ranks), nil}
		require.NoError(t, tm.start(t, c, "cuda", g))
		got, err := tm.outcomeOf(t, g.Rank(), count)
		require.NoError(t, err)
		var want []outcome
		text, err := os.ReadFile(os.Getenv(wanted))
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(text, &want))
		require.Equal(t, want[g.Rank()], got)
		require.NoError(t, tm.devices[g.Rank()].Close())
		require.NoError(t, g.Leave(t.Context()))
		require.NoError(t, forgetGPUs())
		return
	}
	standIns(t)
	standin.Set(t, "STANDIN_GPUS", fmt.Sprint(ranks))
	tm, want := newTeam(t, c, "cuda"), make([]outcome, ranks)
	require.NoError(t, tm.each(func(g *world.Group) (err error) {
		want[g.Rank()], err = tm.outcomeOf(t, g.Rank(), count)
		return err
	}))
	require.Greater(t, len(want[0].Hashes), 20)
	for rank := range want {
		require.Equal(t, want[0].Results, want[rank].Results)
	}
	require.NotEqual(t, want[0].Hashes, want[1].Hashes, "each has a shard of the optimizer's state")
	text, err := json.Marshal(want)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "wanted.json")
	require.NoError(t, os.WriteFile(file, text, 0o600))
	t.Setenv(wanted, file)
	standin.Succeeded(t, startRanks(t, ranks))
}

// A rank whose process is killed or stopped during training ends the others within a deadline,
// with one sentence that names it.
func TestLostProcess(t *testing.T) {
	const lost, silence = 1, 2 * time.Second
	const killedAt = "OCTET_TEST_KILLED_AT" // a file with the time of the signal
	ranks := 3
	if n := standin.Hardware(); n > 0 {
		ranks = min(ranks, max(2, n))
	}
	for name, c := range map[string]struct {
		signal syscall.Signal
		cause  string
		within time.Duration
	}{
		"killed":  {syscall.SIGKILL, "its connection closed: the process ended, or the network failed", 2 * time.Second},
		"stopped": {syscall.SIGSTOP, "no sign of life for 2s", silence + 2*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			if !standin.InRank() {
				standIns(t)
				at := filepath.Join(t.TempDir(), "killed")
				t.Setenv(killedAt, at)
				exits, ended := startRanks(t, ranks), time.Now()
				for rank, e := range exits {
					if rank != lost {
						require.Zero(t, e.Code, "rank %d:\n%s", rank, e.Output)
						continue
					}
					require.Equal(t, -1, e.Code)
				}
				text, err := os.ReadFile(at)
				require.NoError(t, err)
				begin, err := time.Parse(time.RFC3339Nano, string(text))
				require.NoError(t, err)
				t.Logf("all %d processes have ended %.2f s after rank 1 was %s", ranks, ended.Sub(begin).Seconds(), name)
				return
			}
			place, _, err := world.FromEnv(os.LookupEnv)
			require.NoError(t, err)
			g, err := world.Join(t.Context(), world.Options{Place: place, Timeout: time.Minute, Silence: silence})
			require.NoError(t, err)
			config := small("bf16")
			config.Model.Layers, config.Train.HealthEvery, config.Train.Ranks = 1, 0, ranks
			tm := &team{make([]*train.Trainer, ranks), make([]backend.Backend, ranks), nil}
			require.NoError(t, tm.start(t, config, "cuda", g))
			tr, d := tm.ranks[g.Rank()], tm.devices[g.Rank()]
			for range 3 { // by graphs in the end
				_, err := tr.Next(t.Context())
				require.NoError(t, err)
			}
			pids, err := g.Exchange(t.Context(), "process ids", []byte(strconv.Itoa(os.Getpid())))
			require.NoError(t, err)
			if g.Rank() == lost {
				require.NoError(t, os.WriteFile(os.Getenv(killedAt), []byte(time.Now().Format(time.RFC3339Nano)), 0o600))
				require.NoError(t, syscall.Kill(os.Getpid(), c.signal))
				select {}
			}
			begin := time.Now()
			for err == nil {
				_, err = tr.Next(t.Context())
			}
			took := time.Since(begin)
			if g.Rank() == 0 && c.signal == syscall.SIGSTOP {
				pid, err := strconv.Atoi(string(pids[lost]))
				require.NoError(t, err)
				require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
			}
			require.Less(t, took, c.within)
			require.ErrorIs(t, err, backend.ErrDeviceLost)
			var cause *world.Lost
			require.True(t, errors.As(err, &cause), "%v", err)
			require.Equal(t, lost, cause.Rank)
			require.Regexp(t, `device lost: rank 1 on .*, in step 3: `+c.cause+`$`, err.Error())
			require.NotContains(t, err.Error(), "\n")
			require.NoError(t, d.Close())
		})
	}
}

// A process that is killed while the others are in ncclCommInitRank ends them, though nothing ends
// that call.
func TestProcessLostWhileConnecting(t *testing.T) {
	if !standin.InRank() {
		standin.Only(t, "NCCL may have connected the ranks before the kill")
		standIns(t)
		exits := startRanks(t, 2)
		require.Zero(t, exits[0].Code, exits[0].Output)
		return
	}
	place, _, err := world.FromEnv(os.LookupEnv)
	require.NoError(t, err)
	g, err := world.Join(t.Context(), world.Options{Place: place, Timeout: time.Minute})
	require.NoError(t, err)
	if g.Rank() == 1 {
		_, err := g.Exchange(t.Context(), "NCCL's unique id", nil)
		require.NoError(t, err)
		time.Sleep(200 * time.Millisecond)
		require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGKILL))
	}
	begin := time.Now()
	_, err = open("", backend.Options{Group: g})
	require.Less(t, time.Since(begin), 10*time.Second)
	require.ErrorIs(t, err, backend.ErrDeviceLost)
	require.ErrorContains(t, err, "rank 1 on ")
	require.ErrorContains(t, err, ": its connection closed: the process ended, or the network failed")
}

// The bytes that collectives exchange in a step are those of the plan.
func TestExchangesAreAsPlanned(t *testing.T) {
	standin.Only(t, "NCCL counts no bytes")
	for name, set := range map[string]func(*train.Config){
		"zero_stage=0": func(c *train.Config) { c.Train.ZeroStage = 0 },
		"zero_stage=1": func(c *train.Config) { c.Train.ZeroStage = 1 },
		"zero_stage=3": func(c *train.Config) { c.Train.ZeroStage = 3 },
		"reduce=e4m3":  func(c *train.Config) { c.Train.ZeroStage, c.Precision.Reduce = 1, "e4m3" },
	} {
		t.Run(name, func(t *testing.T) {
			standIns(t)
			standin.Set(t, "STANDIN_GPUS", "3")
			log := filepath.Join(t.TempDir(), "log")
			standin.Set(t, "STANDIN_NCCL_LOG", log)
			c := small("fp8-smooth")
			c.Model.Layers, c.Train.HealthEvery, c.Train.Ranks, c.Train.Accumulate = 1, 0, 3, 3
			set(&c)
			tm := newTeam(t, c, "cuda")
			_, err := tm.next(t.Context(), false) // calibrates
			require.NoError(t, err)
			before, err := os.ReadFile(log)
			require.NoError(t, err)
			runs := map[string]int64{} // of each program, on rank 0
			tm.ranks[0].Execute = func(ctx context.Context, program string, x backend.Executable) error {
				runs[program]++
				return x.Run(ctx)
			}
			_, err = tm.next(t.Context(), false)
			require.NoError(t, err)
			require.Len(t, runs, 4, "three micro-batches and the update")
			want := map[string]int64{}
			for _, e := range tm.ranks[0].Exchanges() {
				want[e.Op] += e.Bytes * runs[e.Program]
			}
			require.NotEmpty(t, want)
			for rank := range 3 {
				require.Equal(t, want, logged(t, log, len(before), rank), "rank %d", rank)
			}
		})
	}
}

// logged returns the bytes of each collective of a rank in the log of NCCL's stand-in, from an
// offset on.
func logged(t *testing.T, file string, from, rank int) map[string]int64 {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	sums := map[string]int64{}
	for line := range strings.Lines(string(text[from:])) {
		var by int
		var op string
		var bytes int64
		_, err := fmt.Sscan(line, &by, &op, &bytes)
		require.NoError(t, err)
		if by == rank {
			sums[op] += bytes
		}
	}
	return sums
}
