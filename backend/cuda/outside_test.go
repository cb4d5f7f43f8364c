//go:build cuda && cgo && linux

package cuda

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/csrc/libcuda"
	"octet/csrc/libcuda/kernels"
	"octet/csrc/standin"
	"octet/data"
	"octet/fp8"
	"octet/internal/config"
	"octet/train"
)

var stepOf = flag.String("step", "model.preset=tiny data.seq=32 train.micro_batch=1", "the configuration of BenchmarkOutside, keys and values")

// BenchmarkOutside measures how much of a training step passes outside kernels, at most.
//
// No call of CUDA's tells when a kernel began: an event between two of them comes after
// the first and before the gap, so that the time between events holds both. What can be
// measured without CUPTI is a step in which every call waits behind one more kernel,
// which does nothing. It takes longer by a gap and the start and end of an empty kernel
// for each call. So that is what gaps take at most: the rest of the calls, their operands
// and what they leave in caches are those of the step.
//
// Between programs the device may wait for the host. Whole is a step as training runs it,
// graph after graph and a step ahead; inside is the time of its graphs alone, each behind
// a kernel that keeps the device busy while the host launches. The difference is the
// host's, with the copies of inputs and results. Times are the device's, of bursts of
// steps in turns; figures are medians.
func BenchmarkOutside(b *testing.B) {
	standIns(b)
	loaded, err := config.Load(config.Args{Assignments: strings.Fields(*stepOf)})
	require.NoError(b, err)
	o := newOutside(b, loaded.Config)
	var steps, host, gaps, calls []float64
	for b.Loop() {
		s := o.sample(burstSteps)
		steps = append(steps, s.whole.Seconds())
		host, gaps = append(host, 1-ratio(s.inside, s.whole)), append(gaps, ratio(s.spread-s.inside, s.whole))
		calls = append(calls, (s.spread-s.inside).Seconds()/float64(s.calls))
	}
	b.ReportMetric(1e3*median(steps), "ms/step")
	b.ReportMetric(100*(median(host)+median(gaps)), "outside-%")
	b.ReportMetric(100*median(host), "host-%")
	b.ReportMetric(100*median(gaps), "gaps-%")
	b.ReportMetric(1e9*median(calls), "ns/gap")
	b.ReportMetric(0, "ns/op") // of three bursts, which says nothing
}

const (
	burstSteps = 4
	// hold is more than the host takes to launch a graph of thousands of nodes.
	hold = 2 * time.Millisecond
)

func ratio(a, b time.Duration) float64 { return a.Seconds() / b.Seconds() }

// passing is a kernel that does nothing for some nanoseconds; none: an empty one.
const passing = `#include "octet.cuh"

struct PassArgs {
	u64 nanoseconds;
};

KERNEL(pass, PassArgs, 32, 1) {
#ifdef __CUDA_ARCH__
	u64 begin, now;
	if (!a.nanoseconds)
		return;
	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
	do
		asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
	while (now - begin < a.nanoseconds);
#endif
}
`

// outside runs the programs of a trainer's steps between events.
type outside struct {
	testing.TB
	*train.Trainer
	device *device
	pass   *libcuda.Function

	how    how
	graphs map[*executable]*libcuda.Graph // for spread
	events []*libcuda.Event               // before and after each program
	ran    []*executable
}

type how int

const (
	untimed how = iota
	plain
	held   // each program behind a kernel that lasts
	spread // held, and every call behind an empty kernel
)

// newOutside is for one configuration, whose graphs it has recorded.
func newOutside(t testing.TB, c train.Config) *outside {
	c.Train.HealthEvery = 0 // a program of some steps only
	s, err := spec("")
	require.NoError(t, err)
	j, err := train.NewJob(c, s)
	require.NoError(t, err)
	d := openOne(t)
	tr, err := train.NewTrainer(j, &data.Corpus{Train: drawn{c.Model.Vocab}}, []backend.Backend{d})
	require.NoError(t, err)
	require.NoError(t, tr.Init(t.Context()))
	o := &outside{TB: t, Trainer: tr, device: d, graphs: map[*executable]*libcuda.Graph{}}
	cubin, err := d.compiler.Compile(libcuda.Source{Name: "pass.cu", Text: passing, Headers: kernels.Headers()}, d.Arch(), kernels.Options()...)
	require.NoError(t, err)
	module, err := d.LoadModule(cubin)
	require.NoError(t, err)
	o.pass, err = module.Function("pass")
	require.NoError(t, err)
	t.Cleanup(func() {
		errs := []error{module.Close(), closeEvents(o.events...)}
		for _, g := range o.graphs {
			errs = append(errs, g.Close())
		}
		require.NoError(t, errors.Join(errs...))
	})
	tr.Execute = o.execute
	for range 3 { // calibrates, runs every program once, records it
		_, err := tr.Next(t.Context())
		require.NoError(t, err)
	}
	return o
}

// drawn is random tokens: the same one over and over would have its row of the
// embedding's gradient to itself.
type drawn struct{ vocab int }

func (drawn) Len() int64 { return math.MaxInt32 }

func (s drawn) ReadTokens(dst []int32, at int64) error {
	for i := range dst {
		dst[i] = int32(uint64(fp8.Random(1, uint64(at)+uint64(i))) * uint64(s.vocab) >> 32)
	}
	return nil
}

// execute runs a program as executable.Run does, or as how says.
func (o *outside) execute(ctx context.Context, program string, x backend.Executable) error {
	e := x.(*executable)
	if o.how == untimed {
		return e.Run(ctx)
	}
	graph := e.graph
	if graph == nil {
		return fmt.Errorf("program %s was not recorded", program)
	}
	if o.how >= held {
		if err := o.pause(hold); err != nil {
			return err
		}
	}
	if o.how == spread {
		var err error
		if graph, err = o.spreadGraph(e); err != nil {
			return err
		}
	}
	n := 2 * len(o.ran)
	for len(o.events) < n+2 {
		event, err := o.device.gpu.NewEvent()
		if err != nil {
			return err
		}
		o.events = append(o.events, event)
	}
	o.ran = append(o.ran, e)
	s := o.device.stream
	if err := s.Record(o.events[n]); err != nil {
		return err
	}
	if err := graph.Launch(s); err != nil {
		return err
	}
	return s.Record(o.events[n+1])
}

// pause has the stream do nothing for some time.
func (o *outside) pause(d time.Duration) error {
	return o.pass.Launch(o.device.stream, [3]int{1, 1, 1}, 32, 0, []uint64{uint64(d.Nanoseconds())})
}

func (o *outside) spreadGraph(e *executable) (*libcuda.Graph, error) {
	if g := o.graphs[e]; g != nil {
		return g, nil
	}
	calls := e.calls
	defer func() { e.calls = calls }()
	empty := readyCall{function: o.pass, launch: &launch{grid: [3]int{1, 1, 1}, block: 32, args: []uint64{0}}}
	e.calls = make([][]readyCall, len(calls))
	for i, node := range calls {
		for _, c := range node {
			e.calls[i] = append(e.calls[i], empty, c)
		}
	}
	g, err := e.device.stream.Capture(e.issueAll)
	o.graphs[e] = g
	return g, err
}

// sample is what one step takes, the mean of a burst.
type sample struct {
	whole, inside, spread time.Duration
	calls                 int // kernels and products of a step
}

// sample runs three bursts of n steps.
func (o *outside) sample(n int) (s sample) {
	s.whole, _ = o.burst(plain, n)
	_, s.inside = o.burst(held, n)
	_, s.spread = o.burst(spread, n)
	for _, e := range o.ran[:len(o.ran)/(n+1)] {
		for _, calls := range e.calls {
			s.calls += len(calls)
		}
	}
	return s
}

// burst is the time from one step's begin to that of the next, and within its programs:
// means of n steps that were given ahead, as a run gives them.
func (o *outside) burst(h how, n int) (whole, inside time.Duration) {
	o.how, o.ran = h, o.ran[:0]
	next := o.NextAhead
	for i := range n + 1 {
		if i == n {
			next = o.Next
		}
		_, err := next(o.Context())
		require.NoError(o, err)
	}
	require.Zero(o, len(o.ran)%(n+1), "a step has always the same programs")
	last := 2 * n * len(o.ran) / (n + 1)
	for i := 0; i < last; i += 2 {
		inside += o.since(i, i+1)
	}
	return o.since(0, last) / time.Duration(n), inside / time.Duration(n)
}

func (o *outside) since(from, to int) time.Duration {
	took, err := o.events[to].Since(o.events[from])
	require.NoError(o, err)
	return took
}

// By a clock by which every piece of work takes a gap, and a kernel its threads besides,
// the figures are known: gaps and host to the nanosecond of such a clock.
func TestOutside(t *testing.T) {
	standin.Only(t, "the clock of a GPU goes its own way")
	standIns(t)
	const gap, steps = 700 * time.Nanosecond, 2
	t.Setenv("STANDIN_GAP", fmt.Sprint(gap.Nanoseconds()))
	o := newOutside(t, compared("fp8-smooth"))
	s := o.sample(steps)
	programs := o.ran[:len(o.ran)/(steps+1)]
	var kernels time.Duration
	calls := 0
	for _, e := range programs {
		for _, node := range e.calls {
			for _, c := range node {
				calls++
				if l := c.launch; l != nil {
					kernels += time.Duration(l.grid[0] * l.grid[1] * l.grid[2] * l.block)
				}
			}
		}
	}
	require.Equal(t, calls, s.calls)
	within := float64(s.whole)*1e-6 + 2 // events are read in milliseconds of FP32
	require.InDelta(t, time.Duration(calls)*gap+kernels, s.inside, within)
	const empty = 32 // threads
	require.InDelta(t, time.Duration(calls)*(gap+empty), s.spread-s.inside, within)
	copies := float64(s.whole-s.inside) / float64(gap)
	require.Greater(t, copies, 2.9, "tokens, targets and what a step reports")
	require.InDelta(t, math.Round(copies), copies, within/float64(gap))
}
