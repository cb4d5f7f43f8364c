package infer_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/data"
	"octet/infer"
	"octet/recipe"
)

// Scores are the sums of log-softmax in float64 of the logits that generation computes, token by
// token, and greedy is their argmax: for rows of all lengths, in batches padded to few lengths.
func TestScoresAreThoseOfTheLogits(t *testing.T) {
	m := trainSmall(t, "bf16")
	exact, err := recipe.Lookup("fp32")
	require.NoError(t, err)
	const longest = 90
	generator, err := infer.NewGenerator(t.Context(), m.config.ModelConfig(), exact, m.weights, device(t), infer.Cache{Batch: 1, Context: longest})
	require.NoError(t, err)
	rng := rand.New(rand.NewPCG(1, 2))
	var rows []infer.Row
	for i := range 40 {
		n := 2 + rng.IntN(longest-1)
		from := rng.IntN(len(m.val) - n)
		r := infer.Row{Scored: 1 + rng.IntN(min(n-1, 8))}
		for _, b := range m.val[from : from+n] {
			r.IDs = append(r.IDs, int32(b))
		}
		if i%4 == 3 { // hardly greedy
			r.IDs[n-1] = rng.Int32N(256)
		}
		rows = append(rows, r)
	}
	scorer, err := infer.NewScorer(t.Context(), m.config.ModelConfig(), exact, m.weights, device(t), infer.Windows{Batch: 8, Seq: 32}, rows, nil)
	require.NoError(t, err)
	last := 0
	scores, err := scorer.Score(t.Context(), rows, func(done int) {
		require.Greater(t, done, last)
		last = done
	})
	require.NoError(t, err)
	require.Equal(t, len(rows), last)
	greedy := 0
	for i, r := range rows {
		logits, err := generator.Logits(t.Context(), r.IDs[:len(r.IDs)-1])
		require.NoError(t, err)
		want := infer.Score{Greedy: true}
		for at := len(r.IDs) - r.Scored; at < len(r.IDs); at++ {
			x, target := logits[at-1], r.IDs[at]
			sum, top := 0.0, slices.Max(x)
			for _, v := range x {
				sum += math.Exp(float64(v) - float64(top))
			}
			want.LogLikelihood += float64(x[target]) - float64(top) - math.Log(sum)
			want.Greedy = want.Greedy && slices.Index(x, top) == int(target)
		}
		require.InDelta(t, want.LogLikelihood, scores[i].LogLikelihood, 1e-4, "row %d", i)
		require.Equal(t, want.Greedy, scores[i].Greedy, "row %d", i)
		if want.Greedy {
			greedy++
		}
	}
	require.Greater(t, greedy, 5)
	require.Less(t, greedy, 35)
}

// The scores of all windows of a stream sum up to the loss that an Evaluator measures, in the recipe
// of the run and in one whose scales are measured first.
func TestScoresSumUpToTheLoss(t *testing.T) {
	m := trainSmall(t, "bf16")
	const seq = 32
	var rows []infer.Row
	for from := 0; from+1 < len(m.val); from += seq {
		r := infer.Row{}
		for _, b := range m.val[from:min(len(m.val), from+seq+1)] {
			r.IDs = append(r.IDs, int32(b))
		}
		r.Scored = len(r.IDs) - 1
		rows = append(rows, r)
	}
	for _, name := range []string{"bf16", "fp8-delayed"} {
		r, err := recipe.Lookup(name)
		require.NoError(t, err)
		var calibration data.Tokens
		if name == "fp8-delayed" {
			_, err := infer.NewScorer(t.Context(), m.config.ModelConfig(), r, m.weights, device(t), infer.Windows{Batch: 4, Seq: seq}, rows, nil)
			require.ErrorIs(t, err, infer.ErrNoScales)
			calibration = m.val
		}
		e, err := infer.NewEvaluator(t.Context(), m.config.ModelConfig(), r, m.weights, device(t), infer.Windows{Batch: 4, Seq: seq}, calibration)
		require.NoError(t, err)
		loss, err := e.Evaluate(t.Context(), m.val, nil)
		require.NoError(t, err)
		s, err := infer.NewScorer(t.Context(), m.config.ModelConfig(), r, m.weights, device(t), infer.Windows{Batch: 4, Seq: seq}, rows, calibration)
		require.NoError(t, err)
		require.Equal(t, e.Calibrated, s.Calibrated)
		scores, err := s.Score(t.Context(), rows, nil)
		require.NoError(t, err)
		sum := 0.0
		for _, score := range scores {
			sum -= score.LogLikelihood
		}
		require.InEpsilon(t, loss, sum/float64(len(m.val)-1), 1e-6, name)
	}
}

func TestRowsAreChecked(t *testing.T) {
	m := trainSmall(t, "fp32")
	load := func(rows ...infer.Row) *infer.Scorer {
		s, err := infer.NewScorer(t.Context(), m.config.ModelConfig(), m.recipe, m.weights, device(t), infer.Windows{Batch: 2, Seq: 32}, rows, nil)
		require.NoError(t, err)
		return s
	}
	s := load(infer.Row{IDs: []int32{1, 2, 3}, Scored: 1})
	for want, r := range map[string]infer.Row{
		"row 0 has 2 tokens, of which 2 are scored: expected at least one, and one before them": {IDs: []int32{1, 2}, Scored: 2},
		"row 0 has 2 tokens, of which 0 are scored: expected at least one, and one before them": {IDs: []int32{1, 2}},
		"row 0: id 256 is not in the vocabulary of 256 tokens":                                  {IDs: []int32{1, 256}, Scored: 1},
		"row 0 has 18 tokens, but this Scorer was loaded for 17":                                {IDs: make([]int32, 18), Scored: 1},
	} {
		_, err := s.Score(t.Context(), []infer.Row{r}, nil)
		require.EqualError(t, err, want)
	}
	_, err := infer.NewScorer(t.Context(), m.config.ModelConfig(), m.recipe, m.weights, device(t), infer.Windows{Batch: 2, Seq: 32}, nil, nil)
	require.EqualError(t, err, "there are no rows to score")

	r, err := infer.Row{IDs: []int32{1, 2, 3, 4, 5}, Scored: 2}.Clip(3)
	require.NoError(t, err)
	require.Equal(t, infer.Row{IDs: []int32{2, 3, 4, 5}, Scored: 2}, r)
	_, err = infer.Row{IDs: []int32{1, 2, 3, 4, 5}, Scored: 4}.Clip(3)
	require.EqualError(t, err, "4 tokens are scored, but the window has 3: use a larger --seq")
}
