//go:build cuda && cgo && linux

package cuda

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/conformance"
	"octet/backend/world"
	"octet/csrc/standin"
	"octet/fp8"
	"octet/train"
)

// beside is a device whose collectives run beside other nodes.
const beside = "0,collectives=overlap"

// orders are the settings of the stand-in by which streams that no call waits for run as late as
// possible, and as early as possible.
var orders = []string{"0", "1"}

// recordBeside adds nodes with every kind of dependency: y waits for the all-reduce of a; the
// collectives of a, part and y wait for the nodes before them; part is gathered before Fill overwrites
// it; z and double depend on no collective.
func recordBeside(v *backend.Vars, p *backend.Program, x *backend.Tensor) {
	tensor := func(name string, n int) *backend.Tensor { return v.Tensor(backend.Stash, name, fp8.F32, n) }
	twice := func(x *backend.Tensor, name string) *backend.Tensor {
		out := tensor(name, 4)
		p.Add(&backend.Add{A: x, B: x, Out: []backend.Cast{{Out: out}}})
		return out
	}
	comm := p.On(backend.CommQueue)
	a := twice(x, "a")
	comm.Add(&backend.AllReduce{X: a})
	z := twice(x, "z")
	y := twice(a, "y")
	part := twice(x, "part")
	comm.Add(&backend.AllGather{X: part, Out: tensor("whole", 8)})
	p.Add(&backend.Fill{Out: part, Value: 9})
	comm.Add(&backend.AllReduce{X: y})
	twice(z, "double")
}

func openBeside(t *testing.T, device string) *peers {
	t.Helper()
	standIns(t)
	standin.Set(t, "STANDIN_GPUS", "2")
	return openProgram(t, 2, device, time.Minute, recordBeside)
}

// besideResults are those of recordBeside: the first element of each tensor, and the last of whole.
type besideResults struct{ a, y, z, double, part, first, last float32 }

func (p *peers) besideResults(t *testing.T, rank int) besideResults {
	t.Helper()
	read := func(name string) []float32 {
		tensor := p.vars[rank].Lookup(name)
		raw, x := make([]byte, tensor.Bytes()), make([]float32, tensor.Elems())
		require.NoError(t, p.devices[rank].Read(tensor, raw))
		fp8.F32.Decode(x, raw)
		return x
	}
	whole := read("whole")
	return besideResults{read("a")[0], read("y")[0], read("z")[0], read("double")[0], read("part")[0], whole[0], whole[7]}
}

// wantBeside are the results of a rank with x, of two with x0 and x1.
func wantBeside(x, x0, x1 float32) besideResults {
	sum := x0 + x1
	return besideResults{a: 2 * sum, y: 8 * sum, z: 2 * x, double: 4 * x, part: 9, first: 2 * x0, last: 2 * x1}
}

// Each dependency is kept: by the calls of the first run, by the graph of later ones, which is recorded
// once, and in an observed run. A step allocates nothing.
func TestCollectivesBesideNodes(t *testing.T) {
	for _, order := range orders {
		t.Run(order, func(t *testing.T) {
			p := openBeside(t, beside)
			standin.Set(t, "STANDIN_EARLY", order)
			require.Contains(t, p.devices[0].Spec().Device, ", collectives beside the compute")
			check := func(x0, x1 float32) {
				t.Helper()
				for rank, x := range []float32{x0, x1} {
					require.Equal(t, wantBeside(x, x0, x1), p.besideResults(t, rank))
				}
			}
			var graph any
			for i := range 4 {
				x0, x1 := float32(1+i), float32(10+3*i)
				p.write(t, 0, x0)
				p.write(t, 1, x1)
				require.NoError(t, p.each(func(rank int) error { return p.run[rank].Run(t.Context()) }))
				check(x0, x1)
				if recorded := p.run[0].(*executable).graph; i > 1 {
					require.Same(t, graph, recorded)
				} else {
					graph = recorded
				}
			}
			p.write(t, 0, 5)
			require.NoError(t, p.each(func(rank int) error {
				return p.run[rank].RunObserved(t.Context(), func(*backend.Node, backend.Memory) error { return nil })
			}))
			check(5, 19)
			launched := 0
			require.Zero(t, allocs(10, func() {
				_ = p.run[0].Run(t.Context())
				launched++
			}))
			require.NoError(t, p.each(func(rank int) error {
				for range launched * rank {
					if err := p.run[rank].Run(t.Context()); err != nil {
						return err
					}
				}
				return nil
			}))
			check(5, 19)
			o := p.run[0].(*executable).overlap
			require.Equal(t, joins{before: []int{0, 0, 0, 1, 0, 0, 2, 0, 0}, rest: 3}, o.joins)
		})
	}
}

// Nodes run while a collective waits for another rank. Without its waits a program has wrong results,
// so the streams are apart.
func TestNodesRunDuringACollective(t *testing.T) {
	p := openBeside(t, beside)
	p.write(t, 0, 1)
	p.write(t, 1, 2)
	x := p.run[0].(*executable)
	d := x.device
	want := x.overlap.joins
	x.overlap.joins = joins{before: make([]int, len(x.nodes))}
	require.NoError(t, p.run[0].Run(t.Context()))
	raw, double := make([]byte, 16), make([]float32, 4)
	require.NoError(t, d.Read(p.vars[0].Lookup("double"), raw)) // after all nodes but the collectives
	fp8.F32.Decode(double, raw)
	require.Equal(t, float32(4), double[0])
	idle, err := d.commStream.Idle()
	require.NoError(t, err)
	require.False(t, idle, "rank 1 has not run")
	require.Zero(t, p.groups[0].WaitTime())
	require.NoError(t, p.run[1].Run(t.Context()))
	require.NoError(t, d.commStream.Synchronize())
	require.NotEqual(t, wantBeside(1, 1, 2), p.besideResults(t, 0), "y did not wait for a")

	x.overlap.joins = want
	require.NoError(t, p.each(func(rank int) error { return p.run[rank].Run(t.Context()) }))
	require.Equal(t, wantBeside(1, 1, 2), p.besideResults(t, 0))
}

// A rank waits while its nodes wait for a collective, not during the collective.
func TestWaitTimeWithOverlap(t *testing.T) {
	p := openBeside(t, beside)
	require.NoError(t, p.run[0].Run(t.Context()))
	require.Eventually(t, func() bool { return p.groups[0].WaitTime() > 0 }, 10*time.Second, time.Millisecond)
	require.NoError(t, p.run[1].Run(t.Context()))
	for rank := range p.devices {
		_, err := p.read(rank)
		require.NoError(t, err)
	}
}

// Collectives that do not wait for the nodes before them have wrong results.
func TestMissingFork(t *testing.T) {
	p := openBeside(t, beside)
	standin.Set(t, "STANDIN_EARLY", "1")
	for rank := range p.devices {
		p.write(t, rank, 1)
	}
	require.NoError(t, p.each(func(rank int) error {
		x := p.run[rank].(*executable)
		for i, n := range x.nodes {
			s := x.stream
			if n.IsCollective() {
				s = x.commStream
			}
			if err := x.issue(i, s); err != nil {
				return err
			}
		}
		if err := x.stream.Synchronize(); err != nil {
			return err
		}
		return x.commStream.Synchronize()
	}))
	got := p.besideResults(t, 0)
	require.NotEqual(t, float32(2), got.first, "part was gathered before it was written")
	require.Equal(t, float32(2), got.z)
}

// Polling does not invalidate a capture of both streams.
func TestPollingLeavesACaptureOfTwoStreamsValid(t *testing.T) {
	d := openBeside(t, beside).devices[0].(*device)
	e, err := d.gpu.NewOrder()
	require.NoError(t, err)
	defer func() { require.NoError(t, e.Close()) }()
	fork := func(poll func() error) func() error {
		return func() error {
			err := d.stream.Record(e)
			if err == nil {
				err = d.commStream.WaitFor(e)
			}
			if err == nil {
				err = poll()
			}
			return err
		}
	}
	_, err = d.stream.Capture(fork(func() error { return d.poll(d, d.commStream) }))
	require.ErrorContains(t, err, "cuStreamQuery returned 900")
	d.recording.Lock()
	g, err := d.stream.Capture(fork(func() error { return d.poll(d, d.stream, d.commStream) }))
	d.recording.Unlock()
	require.NoError(t, err)
	require.NoError(t, g.Close())
}

// The conformance cases of collectives, which the device runs beside other nodes.
func TestCollectivesConformBesideNodes(t *testing.T) {
	standIns(t)
	standin.Set(t, "STANDIN_GPUS", "4")
	d, _, err := backend.Find("cuda")
	require.NoError(t, err)
	passed := 0
	for c := range conformance.Cases() {
		if c.Name == "allreduce/views" || c.Name == "groups/in turn" {
			for _, order := range orders {
				standin.Set(t, "STANDIN_EARLY", order)
				require.NoError(t, c.Run(t.Context(), d, beside), c.Name)
				passed++
			}
		}
	}
	require.Equal(t, 4, passed)
}

// Training has the same bits with collectives beside other nodes, at all stages of ZeRO and with
// ranks that share layers.
func TestOverlapChangesNoBit(t *testing.T) {
	const count = 3
	for name, set := range map[string]func(*train.Config){
		"stage 1":         func(c *train.Config) { c.Train.ZeroStage = 1 },
		"stage 2":         func(c *train.Config) { c.Train.ZeroStage = 2 },
		"stage 3":         func(c *train.Config) { c.Train.ZeroStage = 3 },
		"tensor_parallel": func(c *train.Config) { c.Model.Dim, c.Model.KVHeads, c.Model.FFN, c.Train.Tensor = 64, 2, 64, 2 },
	} {
		t.Run(name, func(t *testing.T) {
			standIns(t)
			standin.Set(t, "STANDIN_GPUS", "2")
			c := small("fp8-smooth")
			c.Model.Layers, c.Train.HealthEvery, c.Train.Ranks, c.Train.Accumulate = 1, 0, 2, 2
			set(&c)
			outcomes := func(device, order string) []outcome {
				standin.Set(t, "STANDIN_EARLY", order)
				tm, list := newTeam(t, c, device), make([]outcome, 2)
				require.NoError(t, tm.each(func(g *world.Group) (err error) {
					list[g.Rank()], err = tm.outcomeOf(t, g.Rank(), count)
					return err
				}))
				return list
			}
			want := outcomes("cuda", "0")
			require.Greater(t, len(want[0].Hashes), 20)
			for _, order := range orders {
				require.Equal(t, want, outcomes("cuda:"+beside, order), "STANDIN_EARLY=%s", order)
			}
		})
	}
}

// A rank that is missing, and one that fails, end a run with collectives beside other nodes.
func TestLostRankWithOverlap(t *testing.T) {
	for _, runs := range []int{0, 2} { // the calls of a first run wait for a rank, and a graph
		t.Run(fmt.Sprint(runs), func(t *testing.T) {
			p := openBeside(t, beside)
			for range runs {
				require.NoError(t, p.each(func(rank int) error { return p.run[rank].Run(t.Context()) }))
			}
			require.NoError(t, p.run[0].Run(t.Context())) // rank 1 does not
			waited := make(chan error)
			go func() { _, err := p.read(0); waited <- err }()
			time.Sleep(10 * time.Millisecond)
			p.groups[1].Fail(world.CodeFailed, context.Canceled)
			err := <-waited
			p.ends(t, err, "device lost: rank 1: ")
		})
	}
}
