package run

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/checkpoint"
	"octet/internal/disk"
	"octet/train"
)

// tinyConfig returns the config of a run that takes milliseconds, with its own text.
func tinyConfig(t testing.TB) train.Config {
	t.Helper()
	c := train.Default()
	c.Recipe = "bf16"
	c.Model.Layers, c.Model.Dim, c.Model.Heads, c.Model.KVHeads, c.Model.FFN = 1, 32, 2, 1, 48
	c.Data.Seq, c.Train.MicroBatch, c.Data.ValBytes = 32, 2, 500
	c.Data.Paths = []string{filepath.Join(t.TempDir(), "text.txt")}
	require.NoError(t, disk.WriteAtomic(c.Data.Paths[0], text(20_000)))
	return c
}

// text returns n bytes of words in an order without long repetitions.
func text(n int) []byte {
	words := strings.Fields("func return if err nil for range len string byte int error := == != { } ( )")
	var b []byte
	for i := 0; len(b) < n; i++ {
		b = append(append(b, words[i*i%8191%len(words)]...), ' ')
	}
	return b[:n]
}

// spiky is emu with spikes of the loss for some batches or in some steps. Like a real loss, it
// depends only on the input.
type spiky struct {
	sync.Mutex
	batches map[uint64]bool
	steps   map[uint64]bool
	seen    []uint64 // batches, in the order in which their losses were read
}

var spikes = sync.OnceValue(func() *spiky {
	emu, _, err := backend.Find("emu")
	if err != nil {
		panic(err)
	}
	s := &spiky{}
	emu.Name, emu.Priority = "emu-spiky", emu.Priority-1
	openEmu := emu.Open
	emu.Open = func(device string, o backend.Options) (backend.Backend, error) {
		b, err := openEmu(device, o)
		return &spikyDevice{Backend: b, spiky: s}, err
	}
	backend.Register(emu)
	return s
})

type spikyDevice struct {
	backend.Backend
	*spiky
	batch, step uint64
}

func (d *spikyDevice) Write(t *backend.Tensor, raw []byte) error {
	switch t.Name {
	case "tokens":
		h := fnv.New64()
		h.Write(raw)
		d.batch = h.Sum64()
	case "step.control":
		d.step = uint64(binary.LittleEndian.Uint32(raw[8:])) + 1
	}
	return d.Backend.Write(t, raw)
}

func (d *spikyDevice) Read(t *backend.Tensor, raw []byte) error {
	err := d.Backend.Read(t, raw)
	if t.Name != "loss" {
		return err
	}
	d.Lock()
	defer d.Unlock()
	d.seen = append(d.seen, d.batch)
	if d.batches[d.batch] || d.steps[d.step] {
		loss := math.Float32frombits(binary.LittleEndian.Uint32(raw))
		binary.LittleEndian.PutUint32(raw, math.Float32bits(10*loss))
	}
	return err
}

// batchesOf returns the batches that a run of c reads in some steps.
func (s *spiky) batchesOf(t *testing.T, c train.Config, steps ...int) map[uint64]bool {
	t.Helper()
	s.batches, s.steps, s.seen = nil, nil, nil
	c.Train.Steps = slices.Max(steps)
	c.Checkpoint.Every = 0
	c.Train.OnSpike = "off"
	require.NoError(t, c.Resolve())
	trainIn(t, c, filepath.Join(t.TempDir(), "dry"), func(Progress) {})
	batches := map[uint64]bool{}
	for _, step := range steps {
		batches[s.seen[step-1]] = true
	}
	return batches
}

// trainIn starts or resumes a run and requires that it ends without an error.
func trainIn(t *testing.T, c train.Config, dir string, report func(Progress)) {
	t.Helper()
	require.NoError(t, tryTrain(t.Context(), c, dir, report))
}

func tryTrain(ctx context.Context, c train.Config, dir string, report func(Progress)) error {
	r, err := Start(ctx, Options{Config: c, Dir: dir, Resume: exists(dir), Backend: "emu-spiky", Threads: 1})
	if err != nil {
		return err
	}
	trainErr := r.Train(ctx, func(p Progress) {
		r.saver.wait()
		report(p)
	})
	if err := r.Close(); err != nil {
		return err
	}
	return trainErr
}

// wait waits until the checkpoint being written is done.
func (s *saver) wait() {
	for s.writing != nil && len(s.writing) == 0 {
		time.Sleep(100 * time.Microsecond)
	}
}

// files returns the files that all runs of a config have in common: metrics and checkpoints.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(dir, path)
		if err != nil || d.IsDir() || name != metricsFile && !strings.HasPrefix(name, checkpointsDir) {
			return err
		}
		text, err := os.ReadFile(path)
		all[name] = string(text)
		return err
	}))
	return all
}

func requireSameFiles(t *testing.T, want map[string]string, dir, when string) {
	t.Helper()
	got := files(t, dir)
	require.Equal(t, slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got)), when)
	for name := range want {
		require.True(t, want[name] == got[name], "%s: %s differs", when, name) // require.Equal would print the files
	}
}

// A run rewinds to the checkpoint before a spike, also across a change of recipe, and
// continues with later data. If it is killed or stopped anywhere, it ends the same.
func TestRewind(t *testing.T) {
	s := spikes()
	c := tinyConfig(t)
	c.Train.Steps, c.Train.OnSpike, c.Checkpoint.Every = 110, "rewind", 10
	c.Precision.Schedule = []train.RecipeChange{{Step: 82, Recipe: "fp8-delayed"}}
	require.NoError(t, c.Resolve())
	s.batches = s.batchesOf(t, c, 88, 93)

	home := t.TempDir()
	dir := filepath.Join(home, "uninterrupted")
	var rewound []Progress
	copies := map[string]string{} // of the folder, by when they were taken
	trainIn(t, c, dir, func(p Progress) {
		if p.Rewound {
			rewound = append(rewound, p)
		}
		for name, at := range map[string]struct {
			step int
			pass int // before the rewind, or after
		}{
			"before": {85, 0}, "within": {91, 0}, "just before": {92, 0}, "just after": {93, 1},
			"again": {84, 1}, "past": {95, 1},
		} {
			if p.Step == at.step && len(rewound) == at.pass && copies[name] == "" {
				copies[name] = filepath.Join(home, name)
				require.NoError(t, os.CopyFS(copies[name], os.DirFS(dir)))
			}
		}
	})
	require.Len(t, rewound, 1)
	require.Equal(t, 93, rewound[0].Step)
	require.Equal(t, 88, rewound[0].Spike.Begin)
	require.Equal(t, "step-00000080", filepath.Base(rewound[0].Checkpoint))
	want := files(t, dir)
	require.Equal(t, 110, strings.Count(want[metricsFile], "\n"))
	require.Contains(t, want[filepath.Join(checkpointsDir, "step-00000110", checkpoint.StateFile)], `"rewinds": 1`)
	log, err := os.ReadFile(filepath.Join(dir, logFile))
	require.NoError(t, err)
	require.Contains(t, string(log), `"msg":"rewound","from":93,"to":80`)

	// The data that was read before the spike was detected is not read again.
	lines := strings.Split(want[metricsFile], "\n")
	c.Train.OnSpike = "off"
	plain := filepath.Join(home, "plain")
	trainIn(t, c, plain, func(Progress) {})
	other := strings.Split(files(t, plain)[metricsFile], "\n")
	require.Equal(t, other[:80], lines[:80])
	require.NotEqual(t, other[80], lines[80])
	c.Train.OnSpike = "rewind"

	// Killed between the removal of newer checkpoints and the truncation of the records.
	copies["half way"] = filepath.Join(home, "half way")
	require.NoError(t, os.CopyFS(copies["half way"], os.DirFS(copies["just before"])))
	require.NoError(t, os.RemoveAll(filepath.Join(copies["half way"], checkpointsDir, "step-00000090")))
	for name, killed := range copies {
		trainIn(t, c, killed, func(Progress) {})
		requireSameFiles(t, want, killed, "killed "+name)
	}
	require.Len(t, copies, 7)

	// Stopped by a signal, at steps without a regular checkpoint.
	for _, at := range []int{85, 91, 93} {
		stopped := filepath.Join(home, "stopped")
		ctx, cancel := context.WithCancel(t.Context())
		err := tryTrain(ctx, c, stopped, func(p Progress) {
			if p.Step == at-1 {
				cancel()
			}
		})
		require.ErrorIs(t, err, context.Canceled)
		trainIn(t, c, stopped, func(Progress) {})
		requireSameFiles(t, want, stopped, fmt.Sprint("stopped at ", at))
		require.NoError(t, os.RemoveAll(stopped))
	}
}

// A rewind ignores the checkpoint of an interruption, which an uninterrupted run does not
// have.
func TestRewindIgnoresInterruptions(t *testing.T) {
	s := spikes()
	c := tinyConfig(t)
	c.Train.Steps, c.Train.OnSpike, c.Checkpoint.Every = 95, "rewind", 10
	require.NoError(t, c.Resolve())
	s.batches = s.batchesOf(t, c, 87, 89)
	uninterrupted, stopped := filepath.Join(t.TempDir(), "uninterrupted"), filepath.Join(t.TempDir(), "stopped")
	trainIn(t, c, uninterrupted, func(Progress) {})
	ctx, cancel := context.WithCancel(t.Context())
	require.ErrorIs(t, tryTrain(ctx, c, stopped, func(p Progress) {
		if p.Step == 84 {
			cancel()
		}
	}), context.Canceled)
	require.DirExists(t, filepath.Join(stopped, checkpointsDir, "step-00000085"))
	rewinds := 0
	trainIn(t, c, stopped, func(p Progress) {
		if p.Rewound {
			rewinds++
			require.Equal(t, "step-00000080", filepath.Base(p.Checkpoint))
		}
	})
	require.Equal(t, 1, rewinds)
	requireSameFiles(t, files(t, uninterrupted), stopped, "stopped")
}

// A run that is stopped twice between two regular checkpoints, or before an irregular last
// one, keeps the checkpoints of an uninterrupted run.
func TestInterruptionsLeaveNothingBehind(t *testing.T) {
	s := spikes()
	for _, test := range []struct {
		steps  int
		spiked []int
		stops  []int
	}{
		{100, []int{79, 87}, []int{83, 85}},
		{25, nil, []int{23}},
	} {
		c := tinyConfig(t)
		c.Train.Steps, c.Train.OnSpike, c.Checkpoint.Every, c.Checkpoint.KeepLast = test.steps, "rewind", 10, 2
		require.NoError(t, c.Resolve())
		s.batches = nil
		if test.spiked != nil {
			s.batches = s.batchesOf(t, c, test.spiked...)
		}
		uninterrupted, stopped := filepath.Join(t.TempDir(), "uninterrupted"), filepath.Join(t.TempDir(), "stopped")
		trainIn(t, c, uninterrupted, func(Progress) {})
		for _, at := range test.stops {
			ctx, cancel := context.WithCancel(t.Context())
			require.ErrorIs(t, tryTrain(ctx, c, stopped, func(p Progress) {
				if p.Step == at-1 {
					cancel()
				}
			}), context.Canceled)
		}
		trainIn(t, c, stopped, func(Progress) {})
		requireSameFiles(t, files(t, uninterrupted), stopped, fmt.Sprint(test))
	}
}

// If the records cannot be truncated, the run ends with the reason; it can be resumed.
func TestRewindOnABadDisk(t *testing.T) {
	s := spikes()
	c := tinyConfig(t)
	c.Train.Steps, c.Train.OnSpike, c.Checkpoint.Every = 95, "rewind", 10
	require.NoError(t, c.Resolve())
	s.batches = s.batchesOf(t, c, 87, 89)
	uninterrupted, dir := filepath.Join(t.TempDir(), "uninterrupted"), filepath.Join(t.TempDir(), "run")
	trainIn(t, c, uninterrupted, func(Progress) {})
	restore := disk.Intercept(func(c disk.Change) error {
		if c.Op == disk.Truncate {
			return syscall.EIO
		}
		return c.Do()
	})
	err := tryTrain(t.Context(), c, dir, func(Progress) {})
	restore()
	require.ErrorIs(t, err, syscall.EIO)
	require.ErrorContains(t, err, "the last checkpoint is "+filepath.Join(dir, checkpointsDir, "step-00000080"))
	log, err := os.ReadFile(filepath.Join(dir, logFile))
	require.NoError(t, err)
	require.Contains(t, string(log), `"msg":"stopped"`)
	trainIn(t, c, dir, func(Progress) {})
	requireSameFiles(t, files(t, uninterrupted), dir, "bad disk")
}

// A rewind restores a state from before the spike: not one of the step in which it began.
func TestCheckpointBefore(t *testing.T) {
	spikes()
	c := tinyConfig(t)
	c.Train.Steps, c.Checkpoint.Every, c.Checkpoint.KeepLast = 20, 10, 2
	dir := filepath.Join(t.TempDir(), "run")
	trainIn(t, c, dir, func(Progress) {})
	r, err := Start(t.Context(), Options{Config: c, Dir: dir, Resume: true, Backend: "emu-spiky"})
	require.NoError(t, err)
	defer r.Close()
	for step, want := range map[int]string{21: "step-00000020", 20: "step-00000010", 11: "step-00000010"} {
		found, err := r.checkpointBefore(step)
		require.NoError(t, err)
		require.Equal(t, want, filepath.Base(found.Path))
		require.NoError(t, found.Close())
	}
	_, err = r.checkpointBefore(10)
	require.ErrorIs(t, err, checkpoint.ErrNone)
}

// A run that spikes again after each rewind stops after three rewinds and says why.
func TestRewindsEnd(t *testing.T) {
	s := spikes()
	c := tinyConfig(t)
	c.Train.Steps, c.Train.OnSpike, c.Checkpoint.Every = 100, "rewind", 10
	require.NoError(t, c.Resolve())
	s.batches, s.steps = nil, map[uint64]bool{88: true, 90: true}
	defer func() { s.steps = nil }()
	rewinds := 0
	dir := filepath.Join(t.TempDir(), "run")
	err := tryTrain(t.Context(), c, dir, func(p Progress) {
		if p.Rewound {
			rewinds++
		}
	})
	require.ErrorContains(t, err, "the loss of step 90 is a spike: the loss spikes again after 3 rewinds; lower optimizer.lr")
	require.ErrorContains(t, err, "the last checkpoint is ")
	require.Equal(t, train.MaxRewinds, rewinds)
}

// With "log" a spike is only reported, and also with "rewind" if there is no older
// checkpoint; with "off" spikes are not detected.
func TestSpikesAreReported(t *testing.T) {
	s := spikes()
	for _, test := range []struct {
		on    string
		every int
		want  []string
	}{
		{"log", 10, []string{`"msg":"spike","begin":88,"step":90`}},
		{"rewind", 1000, []string{`"msg":"spike","begin":88,"step":90`, `"msg":"no rewind"`}},
		{"off", 10, nil},
	} {
		c := tinyConfig(t)
		c.Train.Steps, c.Train.OnSpike, c.Checkpoint.Every = 95, test.on, test.every
		require.NoError(t, c.Resolve())
		s.batches, s.steps = nil, map[uint64]bool{88: true, 90: true}
		dir := filepath.Join(t.TempDir(), "run")
		reported := 0
		trainIn(t, c, dir, func(p Progress) {
			if p.Spike.Begin > 0 {
				reported++
				require.Equal(t, 90, p.Step)
				require.Greater(t, p.Loss, 2*p.Spike.Mean)
			}
			require.False(t, p.Rewound)
		})
		s.steps = nil
		log, err := os.ReadFile(filepath.Join(dir, logFile))
		require.NoError(t, err)
		for _, part := range test.want {
			require.Contains(t, string(log), part)
		}
		require.Equal(t, len(test.want) > 0, reported > 0)
		require.Equal(t, len(test.want) > 0, bytes.Contains(log, []byte("spike")))
		metrics, err := os.ReadFile(filepath.Join(dir, metricsFile))
		require.NoError(t, err)
		require.Equal(t, 95, bytes.Count(metrics, []byte("\n")))
	}
}

// A profile continues across a change of recipe.
func TestProfileAcrossAChange(t *testing.T) {
	c := tinyConfig(t)
	c.Train.Steps = 8
	c.Precision.Schedule = []train.RecipeChange{{Step: 5, Recipe: "fp8-delayed"}}
	require.NoError(t, c.Resolve())
	r, err := Start(t.Context(), Options{Config: c, Dir: filepath.Join(t.TempDir(), "run"), Backend: "emu", Threads: 1, Profile: true})
	require.NoError(t, err)
	var profile *Profile
	require.NoError(t, r.Train(t.Context(), func(p Progress) { profile = cmp.Or(profile, p.Profile) }))
	require.NoError(t, r.Close())
	require.Equal(t, 5, profile.Spans())
	calls := map[string]int{}
	for _, row := range profile.Rows(profile.Peaks, func(n *backend.Node) string { return fmt.Sprintf("%T", n.Op) }) {
		calls[row.Name] = row.Calls
	}
	require.Equal(t, 5*3, calls["*backend.AdamW"], "three groups in every step")
	require.NotZero(t, calls["*backend.UpdateScale"], "only the second recipe has it")
}
