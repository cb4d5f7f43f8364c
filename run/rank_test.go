package run

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
)

// frail is emu whose second rank fails once: in the runs-th execution of a program.
type frail struct {
	program string
	runs    int
}

var errFrail = errors.New("the second rank has failed")

var frailty = sync.OnceValue(func() *frail {
	d, _, err := backend.Find("emu")
	if err != nil {
		panic(err)
	}
	f := &frail{}
	d.Name, d.Priority = "emu-frail", d.Priority-1
	openEmu := d.Open
	d.Open = func(device string, o backend.Options) (backend.Backend, error) {
		b, err := openEmu(device, o)
		if o.Group.Rank() == 1 {
			b = &frailDevice{b, f}
		}
		return b, err
	}
	backend.Register(d)
	return f
})

type frailDevice struct {
	backend.Backend
	*frail
}

func (d *frailDevice) Load(programs ...*backend.Program) ([]backend.Executable, error) {
	list, err := d.Backend.Load(programs...)
	for i, x := range list {
		if programs[i].Name() == d.program {
			list[i] = &frailProgram{x, d}
		}
	}
	return list, err
}

type frailProgram struct {
	backend.Executable
	*frailDevice
}

func (p *frailProgram) Run(ctx context.Context) error {
	if p.runs--; p.runs == 0 {
		return errFrail
	}
	return p.Executable.Run(ctx)
}

// A failure of one of two ranks, at any point, ends the run. It resumes from its last
// checkpoint and ends like a run without a failure.
func TestOneRankFails(t *testing.T) {
	f := frailty()
	c := tinyConfig(t)
	c.Recipe = "fp8-smooth"
	c.Train.Steps, c.Train.Ranks, c.Train.EvalEvery, c.Checkpoint.Every = 6, 2, 3, 2
	require.NoError(t, c.Resolve())
	home := t.TempDir()
	run := func(dir string, resumed int) error {
		r, err := Start(t.Context(), Options{Config: c, Dir: dir, Resume: exists(dir), Backend: "emu-frail", Threads: 2})
		if err != nil {
			return err
		}
		require.Equal(t, resumed, r.Resumed)
		trainErr := r.Train(t.Context(), func(Progress) {})
		return errors.Join(trainErr, r.Close())
	}
	plain := filepath.Join(home, "plain")
	require.NoError(t, run(plain, 0))
	for at, resumed := range map[frail]int{{"update", 3}: 2, {"update", 6}: 4, {"micro.first.last", 1}: 0, {"micro.first.last", 4}: 2, {"eval", 1}: 2} {
		*f = at
		dir := filepath.Join(home, fmt.Sprint(at.program, at.runs))
		require.ErrorIs(t, run(dir, 0), errFrail, "%v", at)
		*f = frail{}
		require.NoError(t, run(dir, resumed), "%v", at)
		requireSameFiles(t, files(t, plain), dir, fmt.Sprint(at))
	}
}
