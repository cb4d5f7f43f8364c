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

var stepOf = flag.String("step", "model.preset=tiny data.seq=32 train.micro_batch=1", "the configuration of BenchmarkOutside, as KEY=VALUE ...")

// BenchmarkOutside measures an upper bound on the share of a training step that passes
// outside kernels.
//
// CUDA has no call that returns when a kernel began: an event between two kernels comes
// after the first kernel and before the gap, so the time between events includes both.
// Without CUPTI, the bound is measured by a step with an empty kernel before every call.
// Such a step takes longer by a gap and by the start and end of an empty kernel for each
// call, and that is the maximum that gaps take. Calls, operands and caches are those of a
// normal step.
//
// Between programs the device may wait for the host. Whole is a step as training runs it,
// graph after graph and one step ahead; inside is the time of its graphs alone, each
// launched while another kernel keeps the device busy. The difference is the host's
// share, with the copies of inputs and results. Times are the device's, of bursts of
// steps in alternation; figures are medians.
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
	b.ReportMetric(0, "ns/op") // of three bursts: meaningless
}

const (
	burstSteps = 4
	// hold is longer than the host takes to launch a graph of thousands of nodes.
	hold = 2 * time.Millisecond
)

func ratio(a, b time.Duration) float64 { return a.Seconds() / b.Seconds() }

// passing is the source of a kernel that waits for some nanoseconds; 0: an empty kernel.
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

	timing timing
	graphs map[*executable]*libcuda.Graph // for spread
	events []*libcuda.Event               // before and after each program
	ran    []*executable
}

type timing int

const (
	untimed timing = iota
	plain
	held   // each program after a kernel that waits
	spread // held, and an empty kernel before every call
)

// newOutside returns an outside of one configuration, with recorded graphs.
func newOutside(t testing.TB, c train.Config) *outside {
	c.Train.HealthEvery = 0 // the health program runs in some steps only
	s, err := spec("")
	require.NoError(t, err)
	j, err := train.NewJob(c, s)
	require.NoError(t, err)
	d := openOne(t)
	tr, err := train.NewTrainer(j, &data.Corpus{Train: drawn{c.Model.Vocab}}, d, nil)
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

// drawn is random tokens: with a repeated token, all updates of the embedding's gradient
// would go to one row.
type drawn struct{ vocab int }

func (drawn) Len() int64 { return math.MaxInt32 }

func (s drawn) ReadTokens(dst []int32, at int64) error {
	for i := range dst {
		dst[i] = int32(uint64(fp8.Random(1, uint64(at)+uint64(i))) * uint64(s.vocab) >> 32)
	}
	return nil
}

// execute runs a program as executable.Run does, or with the timing of o.timing.
func (o *outside) execute(ctx context.Context, program string, x backend.Executable) error {
	e := x.(*executable)
	if o.timing == untimed {
		return e.Run(ctx)
	}
	graph := e.graph
	if graph == nil {
		return fmt.Errorf("program %s has no recorded graph", program)
	}
	if o.timing >= held {
		if err := o.pause(hold); err != nil {
			return err
		}
	}
	if o.timing == spread {
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

// pause enqueues a kernel that waits for d.
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

// sample is the durations of one step, means of a burst.
type sample struct {
	whole, inside, spread time.Duration
	calls                 int // kernels and GEMMs of a step
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

// burst returns the time from the start of one step to the start of the next, and the
// time within its programs: means of n steps, enqueued ahead as in training.
func (o *outside) burst(h timing, n int) (whole, inside time.Duration) {
	o.timing, o.ran = h, o.ran[:0]
	next := o.NextAhead
	for i := range n + 1 {
		if i == n {
			next = o.Next
		}
		_, err := next(o.Context())
		require.NoError(o, err)
	}
	require.Zero(o, len(o.ran)%(n+1), "every step has the same programs")
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

// With a simulated clock, on which each call takes a fixed gap and each kernel one
// nanosecond per thread, gaps and host share are known exactly.
func TestOutside(t *testing.T) {
	standin.Only(t, "the clock of a real GPU is not known")
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
	within := float64(s.whole)*1e-6 + 2 // events are read in milliseconds as FP32
	require.InDelta(t, time.Duration(calls)*gap+kernels, s.inside, within)
	const empty = 32 // threads
	require.InDelta(t, time.Duration(calls)*(gap+empty), s.spread-s.inside, within)
	copies := float64(s.whole-s.inside) / float64(gap)
	require.Greater(t, copies, 2.9, "copies of tokens, targets and the step's report")
	require.InDelta(t, math.Round(copies), copies, within/float64(gap))
}
