package train

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/data"
)

// answers are the rows of a Loader of which hides marks targets as not counting. row is the
// index of a row in the global order of the first epoch.
type answers struct {
	*data.Loader
	all   *data.Loader // of a single rank, for Counted
	seq   int
	hides func(row int64, i int, target int32) bool
}

func (a *answers) mask(first int64, targets []int32) (counted int64) {
	for i, target := range targets {
		if a.hides(first+int64(i/a.seq), i%a.seq, target) {
			targets[i] = data.IgnoreTarget
		} else {
			counted++
		}
	}
	return counted
}

// first returns the first row of a rank in a batch of rows.
func (a *answers) first(rank int, rows int64) int64 { return a.Position().Index + int64(rank)*rows }

func (a *answers) Counted(rows int64) (int64, error) {
	if err := a.all.Restore(a.Position()); err != nil {
		return 0, err
	}
	inputs, targets := make([]int32, rows*int64(a.seq)), make([]int32, rows*int64(a.seq))
	if err := a.all.Next(inputs, targets); err != nil {
		return 0, err
	}
	return a.mask(a.Position().Index, targets), nil
}

// ofRank is the answers of one rank.
type ofRank struct {
	*answers
	rank int
}

func (a ofRank) Next(inputs, targets []int32) error {
	first := a.first(a.rank, int64(len(inputs)/a.seq))
	if err := a.Loader.Next(inputs, targets); err != nil {
		return err
	}
	a.mask(first, targets)
	return nil
}

// newAnswers starts a run on answers.
func newAnswers(t *testing.T, c Config, hides func(row int64, i int, target int32) bool) *team {
	t.Helper()
	tr := newTrainer(t, c, 2, false)
	for rank, r := range tr.ranks {
		all, err := data.NewLoader(r.corpus.Train, data.LoaderOptions{Seq: c.Data.Seq, Seed: uint64(c.Seed)})
		require.NoError(t, err)
		r.device.loader = ofRank{&answers{r.device.loader.(*data.Loader), all, c.Data.Seq, hides}, rank}
	}
	return tr
}

// weightsAfter returns the losses of some steps and the weights after them.
func weightsAfter(t *testing.T, tr *team, n int) (losses []float64, weights map[string][]float64) {
	t.Helper()
	for _, s := range steps(t, tr, n) {
		losses = append(losses, s.Loss)
	}
	weights = map[string][]float64{}
	for _, p := range tr.Model.Params {
		weights[p.Name] = values(t, tr.ranks[0], p.Master)
	}
	return losses, weights
}

// If all targets count, steps have the bits of a plain Loader.
func TestAllTargetsCount(t *testing.T) {
	for _, name := range []string{"fp8-smooth", "fp32"} {
		c := small(t, name)
		c.Train.Accumulate = 2
		plain, every := newTrainer(t, c, 2, false), newAnswers(t, c, func(int64, int, int32) bool { return false })
		require.Equal(t, steps(t, plain, 3), steps(t, every, 3))
		require.Equal(t, persistent(t, plain), persistent(t, every))
	}
}

// A step is the mean over the targets that count in all its micro-batches and ranks, however
// the rows are divided among them and however unevenly the targets are.
func TestAnswersAreDividedAlike(t *testing.T) {
	hides := func(row int64, i int, target int32) bool { return row%3 == 1 || i < 5*int(row%4) || target == ' ' }
	split := func(micro, accumulate, ranks int) *team {
		c := small(t, "fp32")
		c.Train.MicroBatch, c.Train.Accumulate, c.Train.Ranks = micro, accumulate, ranks
		return newAnswers(t, c, hides)
	}
	wantLoss, want := weightsAfter(t, split(8, 1, 1), 3)
	for _, tr := range []*team{split(4, 2, 1), split(2, 4, 1), split(4, 1, 2), split(2, 2, 2)} {
		loss, got := weightsAfter(t, tr, 3)
		require.InDeltaSlice(t, wantLoss, loss, 1e-5)
		for name, x := range want {
			require.InDeltaSlice(t, x, got[name], 2e-5, name)
		}
	}
	// The test can fail: rows of other weight change the loss.
	loss, _ := weightsAfter(t, newTrainer(t, split(8, 1, 1).Config, 2, false), 1)
	require.Greater(t, math.Abs(wantLoss[0]-loss[0]), 1e-4)
}

// Rows without a target that counts contribute nothing: the gradients are those of the other
// row alone, and those of tokens that only the former contain are exactly 0.
func TestHiddenRowsHaveNoGradient(t *testing.T) {
	both, one := small(t, "fp32"), small(t, "fp32")
	both.Train.MicroBatch, one.Train.MicroBatch = 2, 1
	a := newAnswers(t, both, func(row int64, _ int, _ int32) bool { return row == 1 })
	b := newTrainer(t, one, 2, false)

	var inputs [2]map[int32]bool
	rows, targets := make([]int32, 2*both.Data.Seq), make([]int32, 2*both.Data.Seq)
	loader := a.ranks[0].device.loader
	require.NoError(t, loader.Next(rows, targets))
	require.NoError(t, loader.Restore(data.Position{}))
	for i := range inputs {
		inputs[i] = map[int32]bool{}
		for _, id := range rows[i*both.Data.Seq:][:both.Data.Seq] {
			inputs[i][id] = true
		}
	}
	zeros := 0 // bytes of gradients of logits whose target is hidden
	a.Execute = func(ctx context.Context, _ string, x backend.Executable) error {
		return x.RunObserved(ctx, func(n *backend.Node, m backend.Memory) error {
			op, ok := n.Op.(*backend.CrossEntropy)
			if !ok || op.DLogits == nil {
				return nil
			}
			raw, err := m.Read(op.DLogits)
			for _, x := range raw[len(raw)/2:] {
				require.Zero(t, x)
				zeros++
			}
			return err
		})
	}
	first, second := steps(t, a, 1)[0], steps(t, b, 1)[0]
	require.Positive(t, zeros)
	require.InDelta(t, second.Loss, first.Loss, 1e-6)
	require.InEpsilon(t, second.GradNorm, first.GradNorm, 1e-5)

	table := a.Vars.Lookup("model.embed_tokens.weight")
	only := 0
	for _, p := range a.Model.Params {
		if p.Master != table {
			continue
		}
		grad := values(t, a.ranks[0], p.Grad)
		for id := range inputs[1] {
			if !inputs[0][id] {
				only++
				require.Equal(t, make([]float64, table.Cols()), grad[int(id)*table.Cols():][:table.Cols()], "token %d", id)
			}
		}
	}
	require.Positive(t, only)
}

// A step without a target that counts has loss 0 and gradients of 0: it is applied, changes
// no weight without weight decay, and is no spike.
func TestStepWithoutTargets(t *testing.T) {
	for _, name := range []string{"fp32", "fp8-smooth", "fp8-delayed"} {
		c := small(t, name)
		c.Optimizer.WeightDecay, c.Train.MicroBatch = 0, 2
		tr := newAnswers(t, c, func(row int64, _ int, _ int32) bool { return row < 2 || row >= 4 && row < 6 })
		before := values(t, tr.ranks[0], tr.Model.Params[0].Master)
		none := steps(t, tr, 1)[0]
		require.Zero(t, none.Loss, name)
		require.Zero(t, none.GradNorm, name)
		require.False(t, none.Skipped, name)
		require.Equal(t, before, values(t, tr.ranks[0], tr.Model.Params[0].Master), name)
		list := steps(t, tr, 3)
		require.Positive(t, list[0].Loss, name)
		require.Zero(t, list[1].Loss, name)
		require.Positive(t, list[2].Loss, name)
		require.False(t, list[2].Skipped, name)
		require.Len(t, tr.ranks[0].spikes.Losses, 2, name)
	}
}
