package run

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/world"
	"octet/train"
)

// choosing is emu with the optional interfaces of an accelerator.
type choosing struct{ backend.Backend }

func (choosing) Choices() []byte                   { return []byte("[1]") }
func (choosing) Usage() (backend.Usage, error)     { return backend.Usage{Allocated: 12345}, nil }
func (choosing) Sensors() (backend.Sensors, error) { return nil, errors.New("no such library") }

// A profiled run writes all files of a run, including those from the optional interfaces of
// its device.
func TestAProfileHidesNothing(t *testing.T) {
	d, _, err := backend.Find("emu")
	require.NoError(t, err)
	openEmu := d.Open
	d.Name, d.Priority = "emu-choosing", -1
	d.Open = func(device string, o backend.Options) (backend.Backend, error) {
		b, err := openEmu(device, o)
		return choosing{b}, err
	}
	t.Cleanup(backend.Register(d))
	c := tinyConfig(t)
	c.Train.Steps, c.Checkpoint.Every = 4, 2
	c.Precision.Schedule = []train.RecipeChange{{Step: 2, Recipe: "fp8-delayed"}} // which opens the devices again
	require.NoError(t, c.Resolve())
	for _, profile := range []bool{false, true} {
		dir := filepath.Join(t.TempDir(), "run")
		r, err := Start(t.Context(), Options{Config: c, Dir: dir, Backend: d.Name, Threads: 1, Profile: profile})
		require.NoError(t, err)
		require.NoError(t, r.Train(t.Context(), func(Progress) {}))
		usage, ok := r.Usage()
		require.True(t, ok)
		require.EqualValues(t, 12345, usage.Allocated)
		require.NoError(t, r.Close())
		choices, err := os.ReadFile(filepath.Join(dir, choicesFile))
		require.NoError(t, err)
		require.Equal(t, "[1]", string(choices))
		log, err := os.ReadFile(filepath.Join(dir, logFile))
		require.NoError(t, err)
		require.Contains(t, string(log), `"msg":"device memory","allocated":12345`)
		require.Contains(t, string(log), "no such library")
	}
}

// unreadable is a device whose Usage fails.
type unreadable struct{ backend.Backend }

func (unreadable) Usage() (backend.Usage, error) { return backend.Usage{}, errors.New("device lost") }

// The memory use of a device is known if the device counts it.
func TestUsageOfDevices(t *testing.T) {
	for _, test := range []struct {
		device backend.Backend
		known  bool
		want   backend.Usage
	}{
		{choosing{}, true, backend.Usage{Allocated: 12345}},
		{metered{}, false, backend.Usage{}},
		{unreadable{}, false, backend.Usage{}},
	} {
		r := Run{Device: test.device}
		usage, known := r.Usage()
		require.Equal(t, test.known, known, "%T", test.device)
		require.Equal(t, test.want, usage, "%T", test.device)
	}
}

// metered is a device whose threads each reach 8 FLOP/s.
type metered struct {
	backend.Backend
	threads int
}

func (d metered) Spec() backend.Spec   { return backend.Spec{Threads: d.threads} }
func (d metered) Meter() backend.Meter { return d }
func (d metered) FLOPs() float64       { return 8 * float64(max(1, d.threads)) }
func (d metered) Bytes() float64       { return 0 }

// The peak of ranks that share processors is at most that of the processors; the peaks of
// separate devices add up.
func TestPeakOfRanks(t *testing.T) {
	processors := min(runtime.GOMAXPROCS(0), runtime.NumCPU())
	peak := func(ranks int, device backend.Backend) (sum float64) {
		var mu sync.Mutex
		require.NoError(t, world.Each(world.Local(ranks, time.Minute), func(g *world.Group) error {
			r := Run{group: g, Device: device}
			mine := r.peakFLOPs(t.Context(), 1)
			mu.Lock()
			defer mu.Unlock()
			sum = max(sum, mine)
			return nil
		}))
		return sum
	}
	machine := 8 * float64(processors)
	require.InEpsilon(t, machine, peak(1, metered{threads: processors}), 1e-12)
	require.InEpsilon(t, machine, peak(4*processors, metered{threads: 1}), 1e-12)
	require.InEpsilon(t, machine, peak(3, metered{threads: processors}), 1e-12)
	require.InEpsilon(t, 8.0, peak(1, metered{threads: 1}), 1e-12)
	require.InEpsilon(t, 8.0*64, peak(64, metered{}), 1e-12)
	require.Zero(t, peak(2, struct{ backend.Backend }{}))
}
