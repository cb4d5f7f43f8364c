package train

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// fetching is emu as an asynchronous device (backend.Fetcher) that logs the calls of
// Begin and End.
type fetching struct {
	backend.Backend
	log  []byte // b for Begin, e for End
	lost error  // returned by End unless nil
}

type copied struct {
	*fetching
	tensors []*backend.Tensor
	raw     []byte
}

func (f *fetching) Fetch(tensors ...*backend.Tensor) (backend.Fetch, error) {
	c := &copied{fetching: f, tensors: tensors}
	for _, t := range tensors {
		c.raw = append(c.raw, make([]byte, t.Bytes())...)
	}
	return c, nil
}

func (c *copied) Begin() {
	c.log = append(c.log, 'b')
	at := int64(0)
	for _, t := range c.tensors {
		_ = c.Read(t, c.raw[at:at+t.Bytes()]) // emu's Run is synchronous
		at += t.Bytes()
	}
}

func (c *copied) End(dst []byte) error {
	c.log = append(c.log, 'e')
	copy(dst, c.raw)
	return c.lost
}

// newFetching starts a run on devices that the trainer takes for asynchronous. first
// returns the current device of rank 0.
func newFetching(t *testing.T, c Config) (tr *team, first func() *fetching) {
	t.Helper()
	tr = newTeam(t, func() (*Job, error) { return NewJob(c, specOf(t, "emu")) }, 1, func(b backend.Backend) backend.Backend { return &fetching{Backend: b} })
	require.NoError(t, tr.Init(t.Context()))
	return tr, func() *fetching { return tr.device.Backend.(*fetching) }
}

// stepsAhead is steps with NextAhead for all steps but the last.
func stepsAhead(t *testing.T, tr *team, n int) (list []StepResult) {
	t.Helper()
	for i := range n {
		next := tr.NextAhead
		if i == n-1 {
			next = tr.Next
		}
		res, err := next(t.Context())
		require.NoError(t, err)
		require.Positive(t, res.Elapsed)
		res.Elapsed = 0
		list = append(list, res)
	}
	return list
}

// NextAhead issues a step before it waits for the result of the previous one, with the
// same results as Next: with several micro-batches, ranks and recipes.
func TestNextAhead(t *testing.T) {
	c := small(t, "fp8-smooth")
	c.Train.Accumulate, c.Train.Ranks, c.Train.Steps = 2, 2, 7
	uninterrupted := newTrainer(t, c, 1, false)
	want := steps(t, uninterrupted, 7)
	tr, first := newFetching(t, c)
	require.Equal(t, want, stepsAhead(t, tr, 7))
	require.Equal(t, "bbebebebebebee", string(first().log))
	require.Equal(t, persistent(t, uninterrupted), persistent(t, tr))
	requireRanksAgree(t, tr)

	// No step is issued ahead across a change of recipe, which needs the state after
	// the step before it.
	c = scheduled(c, RecipeChange{3, "fp8-delayed"}, RecipeChange{4, "bf16"})
	uninterrupted = newTrainer(t, c, 1, false)
	want = steps(t, uninterrupted, 7)
	tr, first = newFetching(t, c)
	require.Equal(t, want[:3], stepsAhead(t, tr, 3))
	require.Equal(t, "bbebee", string(first().log))
	tr, first = newFetching(t, c)
	require.Equal(t, want, stepsAhead(t, tr, 7))
	require.Equal(t, "bbebee", string(first().log), "log of the third recipe's devices")
	require.Equal(t, persistent(t, uninterrupted), persistent(t, tr))
}

func TestStepsAheadDoNotAllocate(t *testing.T) {
	tr, first := newFetching(t, small(t, "fp8-smooth"))
	stepsAhead(t, tr, 3)
	first().log = make([]byte, 0, 100)
	require.Zero(t, testing.AllocsPerRun(20, func() { _, _ = tr.Trainer.NextAhead(context.Background()) }))
}

// On a synchronous device such as emu, NextAhead issues no step ahead.
func TestNoStepAheadOnSynchronousDevices(t *testing.T) {
	tr := newTrainer(t, small(t, "bf16"), 1, false)
	_, err := tr.Trainer.NextAhead(t.Context())
	require.NoError(t, err)
	require.False(t, tr.UnderWay())
}

// Skipped steps end the run with the same error as without steps ahead: no step is issued
// before the result of the last permitted skip, since it would change the state that
// the search repeats the step from.
func TestSkippedStepsAhead(t *testing.T) {
	for limit := 1; limit <= 3; limit++ {
		c := small(t, "fp8-smooth")
		c.Train.OnNonfinite = limit
		corrupt := func(tr *team) {
			gain := tr.Vars.Lookup("model.layers.1.post_attention_layernorm.weight")
			raw, err := tr.read(gain)
			require.NoError(t, err)
			require.NoError(t, tr.write(gain, append(fp8.AppendFloats(nil, float32(math.NaN())), raw[4:]...)))
		}
		run := func(tr *team, next func(context.Context) (StepResult, error)) (list []StepResult, err error) {
			for err == nil {
				var res StepResult
				res, err = next(t.Context())
				res.Elapsed, res.Loss, res.GradNorm = 0, 0, 0 // NaN is not equal to itself
				list = append(list, res)
			}
			return list, err
		}
		plain := newTrainer(t, c, 1, false)
		steps(t, plain, 2)
		corrupt(plain)
		want, wantErr := run(plain, plain.Next)
		require.Len(t, want, limit)

		tr, first := newFetching(t, c)
		stepsAhead(t, tr, 2)
		corrupt(tr)
		first().log = nil
		got, err := run(tr, tr.NextAhead)
		require.ErrorIs(t, err, ErrNonFinite)
		require.EqualError(t, err, wantErr.Error())
		require.Equal(t, want, got)
		require.Equal(t, map[int]string{1: "be", 2: "bbee", 3: "bbebee"}[limit], string(first().log))
		require.Equal(t, plain.ranks[0].device.loader.Position(), tr.ranks[0].device.loader.Position())
		require.Equal(t, persistent(t, plain), persistent(t, tr))
	}
}

// A failure to issue a step ahead does not affect the previous step: the step's own call
// returns the error, and the call after that repeats the step.
func TestFailuresAhead(t *testing.T) {
	c := small(t, "fp8-smooth")
	c.Train.Accumulate = 2
	uninterrupted := newTrainer(t, c, 1, false)
	want := steps(t, uninterrupted, 4)
	for cut := range 3 { // two micro-batches and the update
		tr, _ := newFetching(t, c)
		require.Equal(t, want[:1], stepsAhead(t, tr, 1))
		res, err := tr.NextAhead(expireAfter(3 + cut))
		require.NoError(t, err)
		require.Equal(t, want[1].Loss, res.Loss)
		require.False(t, tr.UnderWay())
		_, err = tr.Next(t.Context())
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 2, tr.StepsDone())
		require.Equal(t, want[2:], stepsAhead(t, tr, 2), cut)
		require.Equal(t, persistent(t, uninterrupted), persistent(t, tr), cut)
	}

	// A lost device: the first operation that fails reports it.
	tr, first := newFetching(t, c)
	_, err := tr.NextAhead(t.Context())
	require.NoError(t, err)
	first().lost = errors.New("device lost in step 2")
	_, err = tr.NextAhead(t.Context())
	require.ErrorIs(t, err, first().lost)

	tr, first = newFetching(t, c)
	stepsAhead(t, tr, 1)
	first().lost = errors.New("device lost in step 3")
	_, err = tr.NextAhead(expireAfter(3))
	require.ErrorIs(t, err, context.Canceled, "the error of issuing the third step is returned first")
}

// While a step is in flight the state cannot be read. Replacing the state discards the
// step and returns to the position of its data.
func TestStateWithAStepInFlight(t *testing.T) {
	c := small(t, "fp8-smooth")
	uninterrupted := newTrainer(t, c, 1, false)
	steps(t, uninterrupted, 2)
	state := snapshot(t, uninterrupted)
	steps(t, uninterrupted, 1)
	require.NoError(t, uninterrupted.Rewind(t.Context(), state))
	rewound := steps(t, uninterrupted, 3)
	require.NoError(t, uninterrupted.Restore(t.Context(), state))
	restored := steps(t, uninterrupted, 3)
	require.NotEqual(t, rewound, restored)

	tr, _ := newFetching(t, c)
	stepsAhead(t, tr, 2)
	_, err := tr.NextAhead(t.Context())
	require.NoError(t, err)
	require.Equal(t, 3, tr.StepsDone())
	_, err = tr.Contents("test", "emu")
	require.ErrorIs(t, err, errInFlight)
	_, err = tr.Evaluate(t.Context())
	require.ErrorIs(t, err, errInFlight)
	_, err = tr.Health(t.Context())
	require.ErrorIs(t, err, errInFlight)

	require.NoError(t, tr.Rewind(t.Context(), state))
	require.Equal(t, rewound, stepsAhead(t, tr, 3))
	_, err = tr.NextAhead(t.Context())
	require.NoError(t, err)
	require.NoError(t, tr.Restore(t.Context(), state))
	require.Equal(t, restored, stepsAhead(t, tr, 3))
	_, err = tr.NextAhead(t.Context())
	require.NoError(t, err)
	require.NoError(t, tr.Init(t.Context()))
	require.False(t, tr.UnderWay())
	require.Zero(t, tr.ranks[0].device.loader.Position())
}
