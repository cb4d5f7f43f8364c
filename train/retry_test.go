package train

import (
	"context"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/world"
	"octet/data"
	"octet/fp8"
	"octet/recipe"
)

// expiring is a context that is cancelled after n calls of Err. emu calls Err before
// every program.
type expiring struct {
	context.Context
	n *int
}

func (e expiring) Err() error {
	if *e.n == 0 {
		return context.Canceled
	}
	*e.n--
	return nil
}

func expireAfter(n int) context.Context { return expiring{context.Background(), &n} }

// persistent returns the bytes of all parameters and state, sharded tensors in full.
func persistent(t *testing.T, tr *team) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for x := range tr.Vars.All() {
		if x.Class == backend.Param || x.Class == backend.State {
			raw, err := tr.read(x)
			require.NoError(t, err)
			all[x.Name] = raw
		}
	}
	return all
}

// After a step was cancelled at any point, the next call repeats it.
func TestCancelledStepsAreRepeated(t *testing.T) {
	c := small(t, "fp8-smooth")
	c.Train.Accumulate = 2
	uninterrupted := newTrainer(t, c, 2, false)
	want := steps(t, uninterrupted, 2)
	// The programs of the first step: calibration, casts, two micro-batches and the
	// update. Later steps have the last three.
	first, later := 5, 3
	for cut := range first {
		tr := newTrainer(t, c, 2, false)
		cancelled := func(n int) {
			before := tr.ranks[0].device.loader.Position()
			_, err := tr.Next(expireAfter(n))
			require.ErrorIs(t, err, context.Canceled, "cut %d", n)
			require.Equal(t, before, tr.ranks[0].device.loader.Position(), "cut %d", n)
		}
		cancelled(cut)
		require.Equal(t, want[:1], steps(t, tr, 1), "cut %d", cut)
		cancelled(cut % later)
		require.Equal(t, want[1:], steps(t, tr, 1), "cut %d", cut)
		require.Equal(t, persistent(t, uninterrupted), persistent(t, tr), "cut %d", cut)
	}
	_, err := newTrainer(t, c, 2, false).Next(expireAfter(first))
	require.NoError(t, err, "the step has no further program to cancel")
}

// A cancelled context does not stop an update halfway, even if Execute runs it node by node.
func TestUpdateIsNotInterrupted(t *testing.T) {
	c := small(t, "fp8-smooth")
	uninterrupted, tr := newTrainer(t, c, 2, false), newTrainer(t, c, 2, false)
	want, got := steps(t, uninterrupted, 3), steps(t, tr, 1)
	for _, program := range []string{"update", "micro.first.last"} {
		ctx, cancel := context.WithCancel(t.Context())
		tr.Execute = func(ctx context.Context, name string, x backend.Executable) error {
			return x.RunObserved(ctx, func(*backend.Node, backend.Memory) error {
				if name == program {
					cancel()
				}
				return nil
			})
		}
		res, err := tr.Next(ctx)
		if program == "update" {
			require.NoError(t, err)
			res.Elapsed = 0
			got = append(got, res)
		} else {
			require.ErrorIs(t, err, context.Canceled)
		}
	}
	tr.Execute = nil
	require.Equal(t, want, append(got, steps(t, tr, 1)...))
	require.Equal(t, persistent(t, uninterrupted), persistent(t, tr))
}

// If the repetition of a skipped step is finite, its update runs although the step counts
// as skipped, so the trainer refuses to continue from that state.
func TestIrreproducibleFault(t *testing.T) {
	c := small(t, "fp8-smooth")
	c.Train.OnNonfinite = 1
	tr := newTrainer(t, c, 1, false)
	want := steps(t, tr, 1)
	saved := snapshot(t, tr)
	want = append(want, steps(t, tr, 1)...)
	gain := tr.Vars.Lookup("model.norm.weight")
	whole, err := tr.read(gain)
	require.NoError(t, err)
	require.NoError(t, tr.write(gain, append(fp8.AppendFloats(nil, float32(math.NaN())), whole[4:]...)))
	require.NoError(t, tr.issue(t.Context()))
	require.NoError(t, tr.write(gain, whole))
	res, err := tr.collect(t.Context())
	require.True(t, res.Skipped)
	require.ErrorIs(t, err, ErrNonFinite)
	require.ErrorContains(t, err, "not reproducible")
	_, err = tr.Next(t.Context())
	require.ErrorIs(t, err, errNoWeights)
	_, err = tr.Contents("test", "emu")
	require.ErrorIs(t, err, errNoWeights)
	require.NoError(t, tr.Restore(t.Context(), saved))
	require.Equal(t, want[1:], steps(t, tr, 1))
}

// A token that only the first of two micro-batches contains overflows BF16 in the
// embedding. The error names that op, not one of the second micro-batch that accumulates
// to the gradients.
func TestSearchStartsAtTheFirstMicroBatch(t *testing.T) {
	c := small(t, "fp8-delayed")
	c.Train.Accumulate, c.Train.OnNonfinite = 2, 1
	j, err := NewJob(c, specOf(t, "emu"))
	require.NoError(t, err)
	text := make(data.Text, 8000)
	for i := range text {
		text[i] = byte(i / 40) // few distinct tokens in each window, different from window to window
	}
	d, err := backend.Open("emu", backend.Options{Threads: 2})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	one, err := NewTrainer(j, &data.Corpus{Train: text}, d, nil)
	require.NoError(t, err)
	tr := &team{one, []*Trainer{one}, []*world.Group{nil}}
	require.NoError(t, tr.Init(t.Context()))
	steps(t, tr, 1)

	loader := tr.ranks[0].device.loader
	start := loader.Position()
	var batches [2][]int32
	for i := range batches {
		batches[i] = make([]int32, tr.Tokens.Elems())
		require.NoError(t, loader.Next(batches[i], make([]int32, tr.Tokens.Elems())))
	}
	end := loader.Position()
	require.NoError(t, loader.Restore(start))
	id := int32(0)
	for !slices.Contains(batches[0], id) || slices.Contains(batches[1], id) {
		id++
	}
	table := tr.Vars.Lookup("model.embed_tokens.weight")
	raw, err := tr.read(table)
	require.NoError(t, err)
	copy(raw[int(id)*table.Cols()*4:], fp8.AppendFloats(nil, math.MaxFloat32))
	require.NoError(t, tr.write(table, raw))

	res, err := tr.Next(t.Context())
	require.True(t, res.Skipped)
	require.ErrorIs(t, err, ErrNonFinite)
	require.ErrorContains(t, err, ": embed: embed is the first op")
	require.Equal(t, end, loader.Position(), "the position is after the step")
}

// The calibration and every step push one row to the histories.
func TestHistoryRows(t *testing.T) {
	for _, name := range []string{"fp8-delayed", "fp8-smooth"} {
		tr := newTrainer(t, small(t, name), 2, false)
		for n := range 3 {
			for _, h := range []*backend.Tensor{tr.Model.Scales.History, tr.Model.ChannelHistory} {
				if h == nil {
					continue
				}
				x, rows := values(t, tr.ranks[0], h), 0
				for i := range h.Rows() {
					if slices.Max(x[i*h.Cols():][:h.Cols()]) > 0 {
						rows++
					}
				}
				require.Equal(t, []int{0, 2, 3}[n], rows, "%s after %d steps", h.Name, n)
			}
			steps(t, tr, 1)
		}
	}
}

// The initial scale of every parameter, state tensor and record is positive.
func TestScalesStartPositive(t *testing.T) {
	for _, name := range recipe.Names() {
		tr := newTrainer(t, small(t, name), 2, false)
		list := []*backend.Tensor{}
		for x := range tr.Vars.All() {
			if x.Scale != nil && (x.Class == backend.Param || x.Class == backend.State) {
				list = append(list, x.Scale)
			}
		}
		if !tr.Model.Scales.Empty() {
			list = append(list, tr.Model.Scales.Scale, tr.Model.Scales.ScaleInv)
		}
		for _, x := range list {
			require.Positive(t, slices.Min(values(t, tr.ranks[0], x)), "%s: %s", name, x.Name)
		}
	}
}
