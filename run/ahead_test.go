package run

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/train"
)

// late counts the results of emu-late (emu-spiky as a Fetcher) for which the run waited after
// the next step was queued.
type late struct {
	overlapped int
	waiting    func() // called before each wait
}

var lates = sync.OnceValue(func() *late {
	spikes()
	d, _, err := backend.Find("emu-spiky")
	if err != nil {
		panic(err)
	}
	l := &late{}
	d.Name, d.Priority = "emu-late", d.Priority-1
	openSpiky := d.Open
	d.Open = func(device string, o backend.Options) (backend.Backend, error) {
		b, err := openSpiky(device, o)
		return &lateDevice{Backend: b, late: l}, err
	}
	backend.Register(d)
	return l
})

type lateDevice struct {
	backend.Backend
	*late
	fetches []*lateFetch
}

type lateFetch struct {
	*lateDevice
	begun   bool
	tensors []*backend.Tensor
	raw     [][]byte
}

func (d *lateDevice) Fetch(tensors ...*backend.Tensor) (backend.Fetch, error) {
	f := &lateFetch{lateDevice: d, tensors: tensors}
	for _, t := range tensors {
		f.raw = append(f.raw, make([]byte, t.Bytes()))
	}
	d.fetches = append(d.fetches, f)
	return f, nil
}

func (f *lateFetch) Begin() {
	f.begun = true
	for i, t := range f.tensors {
		_ = f.Read(t, f.raw[i]) // emu has the result already
	}
}

func (f *lateFetch) End(dst []byte) error {
	f.begun = false
	if f.waiting != nil {
		f.waiting()
	}
	if slices.ContainsFunc(f.fetches, func(o *lateFetch) bool { return o.begun }) {
		f.overlapped++
	}
	for _, raw := range f.raw {
		dst = dst[copy(dst, raw):]
	}
	return nil
}

// trainLate is tryTrain with steps that are queued ahead.
func trainLate(ctx context.Context, c train.Config, dir string, report func(Progress)) error {
	r, err := Start(ctx, Options{Config: c, Dir: dir, Resume: exists(dir), Backend: "emu-late", Threads: 1})
	if err != nil {
		return err
	}
	trainErr := r.Train(ctx, report)
	if err := r.Close(); err != nil {
		return err
	}
	return trainErr
}

// Steps that are queued ahead give the same files, with everything that may come between two
// steps: an evaluation, health, a checkpoint, another recipe, a spike and its rewind; also if
// the run is stopped anywhere.
func TestStepsAheadLeaveTheSameFiles(t *testing.T) {
	s := spikes()
	c := tinyConfig(t)
	c.Train.Steps, c.Train.OnSpike, c.Checkpoint.Every = 104, "rewind", 10
	c.Train.EvalEvery, c.Train.HealthEvery = 25, 33
	c.Precision.Schedule = []train.RecipeChange{{Step: 82, Recipe: "fp8-delayed"}}
	require.NoError(t, c.Resolve())
	s.batches = s.batchesOf(t, c, 88, 93)
	home := t.TempDir()
	plain := filepath.Join(home, "plain")
	var want []int
	steps := func(list *[]int) func(Progress) {
		return func(p Progress) { *list = append(*list, p.Step) }
	}
	trainIn(t, c, plain, steps(&want))
	require.Len(t, want, 104+13, "13 of them twice")

	var got []int
	dir := filepath.Join(home, "late")
	*lates() = late{}
	require.NoError(t, trainLate(t.Context(), c, dir, steps(&got)))
	require.Equal(t, want, got)
	requireSameFiles(t, files(t, plain), dir, "ahead")
	// All steps except those with an evaluation, health or a checkpoint (step 90 twice), and
	// the last step of a recipe, which the spike repeats.
	require.Equal(t, 104+13-3-3-11-2, lates().overlapped)

	for _, at := range []int{9, 10, 82, 92, 93, 102} {
		stopped := filepath.Join(home, "stopped", fmt.Sprint(at))
		ctx, cancel := context.WithCancel(t.Context())
		waits, last := 0, 0
		*lates() = late{waiting: func() {
			if waits++; waits == at { // mostly while the next step runs
				cancel()
			}
		}}
		require.ErrorIs(t, trainLate(ctx, c, stopped, func(p Progress) { last = p.Step }), context.Canceled)
		require.LessOrEqual(t, last, at+1)
		*lates() = late{}
		require.NoError(t, trainLate(t.Context(), c, stopped, func(Progress) {}))
		requireSameFiles(t, files(t, plain), stopped, fmt.Sprint("stopped at ", at))
	}
}

// A profile records whole steps, one at a time; steps before and after it are queued ahead.
func TestNoStepsAheadInAProfile(t *testing.T) {
	l := lates()
	c := tinyConfig(t)
	c.Train.Steps, c.Checkpoint.Every, c.Train.EvalEvery, c.Train.HealthEvery = 12, 0, 0, 0
	require.NoError(t, c.Resolve())
	*l = late{}
	r, err := Start(t.Context(), Options{Config: c, Dir: filepath.Join(t.TempDir(), "run"), Backend: "emu-late", Threads: 1, Profile: true})
	require.NoError(t, err)
	var profile *Profile
	require.NoError(t, r.Train(t.Context(), func(p Progress) {
		if p.Profile != nil {
			profile = p.Profile
		}
	}))
	require.NoError(t, r.Close())
	require.Equal(t, profiledSteps, profile.Spans())
	updates := 0
	for _, row := range profile.Rows(backend.Peaks{}, backend.OpKind) {
		if row.Name == "AdamW" {
			updates = row.Calls
		}
	}
	require.Equal(t, profiledSteps*3, updates, "three groups in every step")
	require.Equal(t, warmUpSteps-1+(c.Train.Steps-warmUpSteps-profiledSteps)-1, l.overlapped, "all but the last before the profile, and of the run")
}
