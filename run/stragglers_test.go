package run

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"octet/backend"
)

// named adds steps, whose own times in ms own returns, and returns the steps with a new straggler or
// a recovered one, as their ranks.
func named(s *stragglers, steps int, own func(step int) []int) (slow, recovered map[int][]int) {
	slow, recovered = map[int][]int{}, map[int][]int{}
	for step := 1; step <= steps; step++ {
		var paces []pace
		for _, ms := range own(step) {
			paces = append(paces, pace{own: time.Duration(ms) * time.Millisecond})
		}
		now, former := s.add(paces)
		for _, x := range now {
			slow[step] = append(slow[step], x.Rank)
		}
		for _, x := range former {
			recovered[step] = append(recovered[step], x.Rank)
		}
	}
	return slow, recovered
}

// A rank is named after 100 steps over 1.1 × the median, and again only after it recovered for 100
// steps.
func TestStragglers(t *testing.T) {
	always := func(own ...int) func(int) []int { return func(int) []int { return own } }
	for _, c := range []struct {
		name            string
		own             func(step int) []int
		slow, recovered map[int][]int
	}{
		{"healthy", always(100, 110, 100, 109), nil, nil},
		{"one of four", always(100, 111, 100, 100), map[int][]int{100: {1}}, nil},
		{"two of four", always(100, 120, 100, 130), map[int][]int{100: {1, 3}}, nil},
		{"the slower of two", always(120, 100), map[int][]int{100: {0}}, nil},
		{"99 steps", func(step int) []int {
			if step%100 == 0 {
				return []int{100, 0} // of a mean below the limit
			}
			return []int{100, 111}
		}, nil, nil},
		{"single steps vary", func(step int) []int { return []int{100, 10 + step%2*200} }, nil, nil},
		{"slow on average", func(step int) []int { return []int{100, 20 + step%2*200} }, map[int][]int{100: {1}}, nil},
		{"recovered", func(step int) []int {
			if step > 150 && step <= 400 {
				return []int{100, 100, 100}
			}
			return []int{100, 100, 120}
		}, map[int][]int{100: {2}, 500: {2}}, map[int][]int{250: {2}}},
		{"a short recovery", func(step int) []int {
			if step > 150 && step <= 240 {
				return []int{100, 100, 100}
			}
			return []int{100, 100, 120}
		}, map[int][]int{100: {2}}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			slow, recovered := named(&stragglers{}, 600, c.own)
			for _, m := range []*map[int][]int{&c.slow, &c.recovered} {
				if *m == nil {
					*m = map[int][]int{}
				}
			}
			require.Equal(t, c.slow, slow)
			require.Equal(t, c.recovered, recovered)
		})
	}
}

func TestStragglersDoNotAllocate(t *testing.T) {
	var s stragglers
	paces := make([]pace, 64)
	s.add(paces)
	require.Zero(t, testing.AllocsPerRun(20, func() {
		for range blockSteps {
			s.add(paces)
		}
	}))
}

// The own time of a step is its duration without collectives. The wait includes the exchange
// before the step, unless the device computed during it.
func TestPaceOfAStep(t *testing.T) {
	var m paceMeter
	m.begin(time.Second)
	m.end(300*time.Millisecond, 1100*time.Millisecond)
	require.Equal(t, pace{own: 200 * time.Millisecond, wait: 100 * time.Millisecond}, m.last)
	m.exchanged(7*time.Millisecond, false)
	m.begin(2 * time.Second) // an evaluation has collectives, too
	m.end(300*time.Millisecond, 2100*time.Millisecond)
	require.Equal(t, pace{own: 200 * time.Millisecond, wait: 107 * time.Millisecond}, m.last)
	m.exchanged(7*time.Millisecond, true)
	m.end(300*time.Millisecond, 2500*time.Millisecond)
	require.Equal(t, pace{wait: 400 * time.Millisecond}, m.last)
	require.Equal(t, m.last, paceOf(m.last.append(nil)))
}

// timeless registers emu without a meter, which would measure for ever where computation takes no
// time.
var timeless = sync.OnceFunc(func() {
	d, _, err := backend.Find("emu")
	if err != nil {
		panic(err)
	}
	d.Name, d.Priority = "emu-timeless", d.Priority-1
	openEmu := d.Open
	d.Open = func(device string, o backend.Options) (backend.Backend, error) {
		b, err := openEmu(device, o)
		return struct{ backend.Backend }{b}, err
	}
	backend.Register(d)
})

// trainPaced trains ranks whose micro-batches take some ms longer than their computation. It
// returns the stragglers by step, the paces of the last step, and the run folder. In the bubble
// of the caller, computation takes no time.
func trainPaced(t *testing.T, steps int, ms ...time.Duration) (slow map[int][]Straggler, last []pace, dir string) {
	c := tinyConfig(t)
	c.Train.Ranks, c.Train.Steps = len(ms), steps
	require.NoError(t, c.Resolve())
	dir = filepath.Join(t.TempDir(), "run")
	r, err := Start(t.Context(), Options{Config: c, Dir: dir, Backend: "emu-timeless", Threads: 1})
	require.NoError(t, err)
	for rank, other := range append([]*Run{r}, r.others...) {
		other.Trainer.Execute = func(ctx context.Context, program string, x backend.Executable) error {
			if program == "micro.first.last" {
				time.Sleep(ms[rank] * time.Millisecond)
			}
			return x.Run(ctx)
		}
	}
	slow = map[int][]Straggler{}
	require.NoError(t, r.Train(t.Context(), func(p Progress) {
		r.group.AddWait(time.Second) // in a collective between two steps
		if p.Stragglers != nil {
			slow[p.Step] = p.Stragglers
		}
	}))
	last = r.stragglers.paces
	require.NoError(t, r.Close())
	return slow, last, dir
}

// A rank that is slow in every step is named once, after exactly 100 steps, in the report of the
// step and in run.log. The ranks of a healthy run are not.
func TestSlowRankIsNamed(t *testing.T) {
	timeless()
	synctest.Test(t, func(t *testing.T) {
		const ms = time.Millisecond
		slow, last, dir := trainPaced(t, 205, 10, 10, 12)
		require.Equal(t, map[int][]Straggler{100: {{Rank: 2, Own: 12 * ms, Median: 10 * ms}}}, slow)
		require.Equal(t, []pace{{10 * ms, 2 * ms}, {10 * ms, 2 * ms}, {own: 12 * ms}}, last)
		log, err := os.ReadFile(filepath.Join(dir, logFile))
		require.NoError(t, err)
		require.Equal(t, 1, strings.Count(string(log), "slow rank"))
		require.Contains(t, string(log), `"level":"WARN","msg":"slow rank","step":100,"rank":2,"host":"","own_s":0.012,"median_s":0.01,"steps":100`)

		slow, _, healthy := trainPaced(t, 205, 10, 10, 11)
		require.Empty(t, slow)
		log, err = os.ReadFile(filepath.Join(healthy, logFile))
		require.NoError(t, err)
		require.NotContains(t, string(log), "slow rank")
		requireSameFile(t, filepath.Join(healthy, metricsFile), filepath.Join(dir, metricsFile))
	})
}

func requireSameFile(t *testing.T, want, got string) {
	t.Helper()
	a, err := os.ReadFile(want)
	require.NoError(t, err)
	b, err := os.ReadFile(got)
	require.NoError(t, err)
	require.Equal(t, string(a), string(b))
}
