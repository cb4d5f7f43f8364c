//go:build gaudi && cgo && linux

package gaudi

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/conformance"
	"octet/backend/world"
	"octet/checkpoint"
	"octet/csrc/standin"
	"octet/fp8"
	"octet/train"
)

// inRanks runs a test in n processes, ranks of a group, on stand-ins of a model. The test calls
// it once; body runs in the ranks.
func inRanks(t *testing.T, model string, n int, body func(t *testing.T, g *world.Group)) {
	t.Helper()
	if !standin.InRank() {
		startRanks(t, model, n, func(exits []standin.Exit) { standin.Succeeded(t, exits) })
		return
	}
	g := standin.JoinWorld(t, time.Minute)
	body(t, g)
	require.NoError(t, g.Leave(t.Context()))
	require.NoError(t, forgetDevice())
}

// startRanks starts the ranks of a test, and calls check with how they ended.
func startRanks(t *testing.T, model string, n int, check func([]standin.Exit)) {
	t.Helper()
	devices(t, model, fmt.Sprint(n))
	check(standin.RunWorld(t, n))
}

// sameOnAll requires that all ranks have the same data, which it compares by its hash.
func sameOnAll(t *testing.T, g *world.Group, what string, data []byte) {
	t.Helper()
	require.Len(t, slices.Compact(hashes(t, g, what, data)), 1, what)
}

// hashes returns the hashes of all ranks' data.
func hashes(t *testing.T, g *world.Group, what string, data []byte) (list []string) {
	t.Helper()
	sum := sha256.Sum256(data)
	all, err := g.Exchange(t.Context(), what, sum[:])
	require.NoError(t, err)
	for _, h := range all {
		list = append(list, fmt.Sprintf("%x", h))
	}
	return list
}

// The backend on the stand-in passes the conformance cases of several ranks.
func TestConformanceOfRanks(t *testing.T) {
	for _, ranks := range []int{2, 3, 4} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			inRanks(t, "gaudi2", ranks, func(t *testing.T, g *world.Group) {
				d, _, err := backend.Find("gaudi")
				require.NoError(t, err)
				passed := 0
				for c := range conformance.Cases() {
					if c.Ranks() != ranks {
						continue
					}
					if err := c.RunRank(t.Context(), d, "", g); !errors.Is(err, backend.ErrUnsupported) {
						require.NoError(t, err)
						passed++
					}
				}
				require.Greater(t, passed, 3)
			})
		})
	}
}

// Four ranks take the steps of one rank with all batches. Both sum the gradients in FP32, in order
// of rank on the stand-in. As that computes in order, too, losses, norms, gradients,
// weights, moments and scales are equal to the bit where nothing is rounded
// stochastically.
func TestRanksEqualOneWithAllBatches(t *testing.T) {
	const ranks = 4
	for _, recipe := range []string{"bf16", "fp8-delayed"} {
		t.Run(recipe, func(t *testing.T) {
			c := small(recipe)
			c.Model.Layers, c.Train.MicroBatch = 1, 2
			if recipe == "fp8-delayed" { // its gradients are rounded stochastically
				c.Precision.Rows = []train.PrecisionRow{{Scope: "layers.*", Operand: "grad", Rounding: "nearest"}}
			}
			// A rank's first scales come only from its first micro-batch, so both runs start
			// from the scales after one step. run returns the results, and the hashes of the
			// final variables by name.
			run := func(t *testing.T, path string, g *world.Group) (results []train.StepResult, held map[string]string) {
				c.Train.Ranks, c.Train.Accumulate = g.Size(), ranks/g.Size()
				tr, d := trainerOf(t, c, "gaudi", g)
				state, err := checkpoint.Open(path)
				require.NoError(t, err)
				require.NoError(t, tr.Restore(t.Context(), state))
				require.NoError(t, state.Close())
				results = take(t, tr, 3)
				gradients := map[*backend.Tensor]bool{}
				for _, p := range tr.Model.Params {
					gradients[p.Grad] = true
				}
				held = map[string]string{}
				for x := range tr.Vars.All() {
					if x.Class == backend.Param || x.Class == backend.State || gradients[x] {
						raw := make([]byte, x.Bytes())
						require.NoError(t, d.Read(x, raw))
						held[x.Name] = fmt.Sprintf("%x", sha256.Sum256(raw))
					}
				}
				require.NoError(t, d.Close())
				return results, held
			}
			const stateVariable, wantVariable = "OCTET_TEST_STATE", "OCTET_TEST_WANT"
			type outcome struct {
				Results []train.StepResult
				Held    map[string]string
			}
			if standin.InRank() {
				g := standin.JoinWorld(t, time.Minute)
				var got, want outcome
				got.Results, got.Held = run(t, os.Getenv(stateVariable), g)
				text, err := os.ReadFile(os.Getenv(wantVariable))
				require.NoError(t, err)
				require.NoError(t, json.Unmarshal(text, &want))
				require.Equal(t, want, got)
				require.NoError(t, g.Leave(t.Context()))
				require.NoError(t, forgetDevice())
				return
			}
			devices(t, "gaudi2", "2")
			start, d := trainer(t, c, "gaudi")
			take(t, start, 1)
			contents, err := start.Contents("test", "gaudi")
			require.NoError(t, err)
			require.NoError(t, d.Close())
			path, err := checkpoint.Save(t.TempDir(), 1, contents)
			require.NoError(t, err)
			var want outcome
			want.Results, want.Held = run(t, path, nil)
			require.Greater(t, len(want.Held), 4*12, "a weight, a gradient and two moments of each parameter")
			require.NoError(t, forgetDevice())
			text, err := json.Marshal(want)
			require.NoError(t, err)
			file := filepath.Join(t.TempDir(), "want.json")
			require.NoError(t, os.WriteFile(file, text, 0o600))
			t.Setenv(stateVariable, path)
			t.Setenv(wantVariable, file)
			startRanks(t, "gaudi2", ranks, func(exits []standin.Exit) { standin.Succeeded(t, exits) })
		})
	}
}

// Ranks that share scales and round stochastically have the same weights, moments and
// scales after every step.
func TestRanksAgree(t *testing.T) {
	inRanks(t, "gaudi3", 2, func(t *testing.T, g *world.Group) {
		c := small("fp8-smooth")
		c.Model.Layers, c.Train.MicroBatch, c.Train.Ranks = 1, 2, 2
		tr, d := trainerOf(t, c, "gaudi", g)
		take(t, tr, 2)
		compared := map[backend.Class]int{}
		for x := range tr.Vars.All() {
			if x.Class != backend.Param && x.Class != backend.State {
				continue
			}
			raw := make([]byte, x.Bytes())
			require.NoError(t, d.Read(x, raw))
			sameOnAll(t, g, x.Name, raw)
			compared[x.Class]++
		}
		require.Greater(t, compared[backend.Param], 5)
		require.Greater(t, compared[backend.State], 5)
		require.NoError(t, d.Close())
	})
}

// Ranks that have copies of a part have the same values after an update that rounds
// stochastically, also on a device that was opened again.
func TestCopiesOfPartsAgree(t *testing.T) {
	inRanks(t, "gaudi3", 8, func(t *testing.T, g *world.Group) {
		for range 2 {
			d, err := open("", backend.Options{Group: g})
			require.NoError(t, err)
			v, none := backend.NewVars(), make([]byte, 4)
			o := update(v, "w")
			o.Shard, o.Split = true, backend.Group{Size: 2, Stride: 2}
			p := v.Program("p")
			p.Add(o)
			list, err := d.Load(p)
			require.NoError(t, err)
			index, grad := o.Split.Index(g.Rank()), make([]float32, 64)
			for i := range grad {
				grad[i] = float32(1 - 2*index)
			}
			require.NoError(t, errors.Join(
				d.Write(o.Control, backend.Control{LR: 0.1 * float32(g.Rank()+1), Rank: int32(g.Rank())}.AppendTo(nil)), // the stand-ins draw equal bits
				d.Write(o.Step, []byte{1, 0, 0, 0}), d.Write(o.Skip, none), d.Write(o.Coef, floats(1)), d.Write(o.Grad[0], floats(grad...)),
			))
			for range 3 {
				require.NoError(t, list[0].Run(t.Context()))
			}
			raw := make([]byte, o.Master[0].Bytes())
			require.NoError(t, d.Read(o.Master[0], raw))
			all := hashes(t, g, "w", raw)
			for rank, h := range all {
				require.Equal(t, o.Split.Index(rank) == index, h == all[g.Rank()], "ranks %d and %d", rank, g.Rank())
			}
			require.NoError(t, d.Close())
		}
	})
}

// A change of recipe opens the device again, with the same communicator.
func TestRanksReopen(t *testing.T) {
	inRanks(t, "gaudi2", 2, func(t *testing.T, g *world.Group) {
		c := small("bf16")
		c.Model.Layers, c.Train.MicroBatch, c.Train.Ranks, c.Train.ZeroStage = 1, 2, 2, 1
		c.Precision.Schedule = []train.RecipeChange{{Step: 2, Recipe: "fp8-delayed"}}
		tr, d := trainerOf(t, c, "gaudi", g)
		tr.Reopen = func() (backend.Backend, error) {
			if err := d.Close(); err != nil {
				return nil, err
			}
			var err error
			d, err = backend.Open("gaudi", backend.Options{Group: g})
			return d, err
		}
		for _, r := range take(t, tr, 4) {
			sameOnAll(t, g, "loss", []byte(fmt.Sprint(r.Loss)))
		}
		require.Equal(t, "fp8-delayed", tr.Recipe.Name)
		require.NoError(t, d.Close())
	})
}

// The wait of a rank is the time in which its device is in a collective.
func TestWaitTime(t *testing.T) {
	inRanks(t, "gaudi2", 2, func(t *testing.T, g *world.Group) {
		d, err := open("", backend.Options{Group: g})
		require.NoError(t, err)
		v := backend.NewVars()
		x := v.Tensor(backend.Output, "x", fp8.F32, 8)
		p := v.Program("p")
		p.Add(&backend.AllReduce{X: x})
		list, err := d.Load(p)
		require.NoError(t, err)
		read := func() error { return errors.Join(list[0].Run(t.Context()), d.Read(x, make([]byte, x.Bytes()))) }
		if g.Rank() == 0 {
			done := make(chan error)
			go func() { done <- read() }()
			require.Eventually(t, func() bool { return g.WaitTime() > 0 }, 10*time.Second, time.Millisecond)
			_, err = g.Exchange(t.Context(), "rank 0 waits", nil)
			require.NoError(t, err)
			require.NoError(t, <-done)
		} else {
			_, err = g.Exchange(t.Context(), "rank 0 waits", nil)
			require.NoError(t, err)
			require.Zero(t, g.WaitTime())
			require.NoError(t, read())
		}
		require.Eventually(t, func() bool {
			waited := g.WaitTime()
			time.Sleep(10 * sampleEvery)
			return g.WaitTime() == waited
		}, 10*time.Second, time.Millisecond, "the device has left the collective")
		require.NoError(t, d.Close())
	})
}

// Three ranks do not divide the rows of the matrices.
func TestShardsWithPadding(t *testing.T) {
	inRanks(t, "gaudi2", 3, func(t *testing.T, g *world.Group) {
		var all [4][]train.StepResult // by stage of ZeRO
		for stage := range all {
			c := small("bf16")
			c.Model.Layers, c.Train.Accumulate, c.Optimizer.Clip = 1, 1, 0
			c.Train.MicroBatch, c.Train.Ranks, c.Train.ZeroStage = 2, 3, stage
			tr, d := trainerOf(t, c, "gaudi", g)
			all[stage] = take(t, tr, 3)
			require.NoError(t, d.Close())
		}
		for stage := 1; stage < len(all); stage++ {
			for i := range all[0] {
				require.InEpsilon(t, all[0][i].GradNorm, all[stage][i].GradNorm, 0x1p-22)
				require.Equal(t, all[0][i].Loss, all[stage][i].Loss)
			}
		}
	})
}

// Ranks exchange gradients as codes with one scale for each rank, or one of all ranks and rounded
// sums, and add them in order: all have the same losses, near those with gradients in FP32.
func TestRanksExchangeGradientCodes(t *testing.T) {
	inRanks(t, "gaudi2", 2, func(t *testing.T, g *world.Group) {
		run := func(p train.Precision) []train.StepResult {
			c := small("bf16")
			c.Precision, c.Model.Layers, c.Train.MicroBatch, c.Train.Ranks, c.Train.ZeroStage = p, 1, 2, 2, 1
			tr, d := trainerOf(t, c, "gaudi", g)
			list := take(t, tr, 4)
			require.NoError(t, d.Close())
			return list
		}
		want := run(train.Precision{})
		for _, p := range []train.Precision{{Reduce: "e4m3", ReduceGranularity: "tensor"}, {Reduce: "e5m2", ReduceGranularity: "tensor"}, {Reduce: "bf16"}, {Reduce: "e4m3", ReduceGranularity: "tensor", ReduceScale: "auto", ReduceSum: "each"}} {
			got := run(p)
			require.NotEqual(t, want[3].Loss, got[3].Loss)
			for i := range want {
				require.InDelta(t, want[i].Loss, got[i].Loss, 5e-3, "%s, step %d", p.Reduce, i+1)
				sameOnAll(t, g, "loss", []byte(fmt.Sprint(got[i].Loss)))
			}
		}
	})
}

// Ranks with a sharded optimizer take the steps of ranks with full optimizer state: in
// bf16 bit for bit except for the norm's last bits; in FP8, where devices draw their own
// random bits, within the tolerance of a run on emu. Unsharded state, including the
// scales of shared tensors, stays equal on both.
func TestShardedOptimizer(t *testing.T) {
	inRanks(t, "gaudi2", 2, func(t *testing.T, g *world.Group) {
		run := func(recipe string, stage int) ([]train.StepResult, *train.Trainer, backend.Backend) {
			c := small(recipe)
			c.Model.Layers, c.Optimizer.Clip = 1, 0
			c.Train.MicroBatch, c.Train.Ranks, c.Train.ZeroStage = 2, 2, stage
			tr, d := trainerOf(t, c, "gaudi", g)
			return take(t, tr, 3), tr, d
		}
		tolerances := map[string]float64{"bf16": 0, "fp8-smooth": 0x1p-10}
		for _, recipe := range slices.Sorted(maps.Keys(tolerances)) {
			tolerance := tolerances[recipe]
			want, whole, d := run(recipe, 0)
			require.NoError(t, d.Close())
			got, tr, d := run(recipe, 1)
			for i := range want {
				require.InEpsilon(t, want[i].GradNorm, got[i].GradNorm, max(32*tolerance, 0x1p-22))
				require.InDelta(t, want[i].Loss, got[i].Loss, tolerance*want[i].Loss)
			}
			compared := map[bool]int{} // by whether each rank has all of it
			for x := range tr.Vars.All() {
				if x.Class != backend.Param && x.Class != backend.State {
					continue
				}
				raw := make([]byte, x.Bytes())
				require.NoError(t, d.Read(x, raw))
				all := x.Elems() == whole.Vars.Lookup(x.Name).Elems()
				h := hashes(t, g, x.Name, raw)
				require.Equal(t, all, h[0] == h[1], x.Name)
				compared[all]++
			}
			require.Greater(t, compared[true], 5, recipe)
			require.Equal(t, 3*9, compared[false], recipe)
			require.NoError(t, d.Close())
		}
	})
}

// A rank whose process is killed or stopped ends the others with one sentence that names it.
func TestLostRank(t *testing.T) {
	for signal, cause := range map[syscall.Signal]string{
		syscall.SIGKILL: "its connection closed", syscall.SIGSTOP: "no sign of life for 10s",
	} {
		t.Run(map[bool]string{true: "killed", false: "stopped"}[signal == syscall.SIGKILL], func(t *testing.T) {
			if !standin.InRank() {
				t.Setenv("STANDIN_HCCL_SECONDS", "1000")
				startRanks(t, "gaudi2", 2, func(exits []standin.Exit) {
					require.Zero(t, exits[0].Code, exits[0].Output)
					require.Equal(t, -1, exits[1].Code)
				})
				return
			}
			g := standin.JoinWorld(t, 10*time.Second)
			opened, err := open("", backend.Options{Group: g})
			require.NoError(t, err)
			v := backend.NewVars()
			x := v.Tensor(backend.Stash, "x", fp8.F32, 4)
			p := v.Program("sum")
			p.Add(&backend.AllReduce{X: x})
			runs, err := opened.Load(p)
			require.NoError(t, err)
			require.NoError(t, g.Compare(t.Context(), nil))
			if g.Rank() == 1 {
				if signal == syscall.SIGSTOP { // and killed in the end
					command := fmt.Sprintf("sleep 20; kill -9 %d", os.Getpid())
					_, err := os.StartProcess("/bin/sh", []string{"sh", "-c", command}, &os.ProcAttr{})
					require.NoError(t, err)
				}
				require.NoError(t, syscall.Kill(os.Getpid(), signal))
				time.Sleep(time.Minute)
			}
			if err := runs[0].Run(t.Context()); err != nil { // rank 1 was lost before it began
				require.ErrorIs(t, err, backend.ErrDeviceLost)
			}
			begin := time.Now()
			<-g.Done()
			require.Less(t, time.Since(begin), 14*time.Second)
			err = runs[0].Run(t.Context())
			require.ErrorIs(t, err, backend.ErrDeviceLost)
			require.ErrorContains(t, err, "device lost: rank 1 on ")
			require.ErrorContains(t, err, cause)
			require.Equal(t, 1, strings.Count(err.Error()+"\n", "\n"))
			require.NoError(t, opened.Close())
			os.Exit(0) // the stream still waits for rank 1
		})
	}
}

// An error of ranks that cannot connect names the variable for the network interface.
func TestRanksWithoutANetwork(t *testing.T) {
	if !standin.InRank() {
		t.Setenv("STANDIN_NETWORK", "0")
		startRanks(t, "gaudi2", 2, func(exits []standin.Exit) { standin.Succeeded(t, exits) })
		return
	}
	g := standin.JoinWorld(t, time.Minute)
	_, err := open("", backend.Options{Group: g})
	if g.Rank() == 0 {
		require.ErrorContains(t, err, "create the id of a communicator: hcclGetUniqueId returned 9 (hcclSocketError)")
		require.ErrorContains(t, err, "set HCCL_SOCKET_IFNAME to the network interface")
		g.Fail(world.CodeFailed, err)
	} else {
		require.ErrorIs(t, err, backend.ErrDeviceLost)
		require.ErrorContains(t, err, "rank 0")
	}
	require.NoError(t, forgetDevice())
}
