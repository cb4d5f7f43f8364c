package data

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// With Answers, the targets are those without it, but for ids whose mask bit is 0.
func TestAnswersOfWindows(t *testing.T) {
	w := writeFolder(t, KindCompletion, 3, 9, 2, 8)
	c := openFolders(t, w.dir)
	ids, counts := slices.Concat(w.docs[TrainPart]...), slices.Concat(w.mask[TrainPart]...)
	const seq = 16
	all, err := c.Loader(LoaderOptions{Seq: seq, Seed: 5})
	require.NoError(t, err)
	answers, err := openAnswers(t, true, w.dir).Loader(LoaderOptions{Seq: seq, Seed: 5})
	require.NoError(t, err)
	in, out, in2, out2 := make([]int32, seq), make([]int32, seq), make([]int32, seq), make([]int32, seq)
	ignored := 0
	for range 60 {
		at := all.sources[0].(*windows)
		start := at.offset + at.order.at(at.at.Index)*seq
		require.NoError(t, all.Next(in, out))
		require.NoError(t, answers.Next(in2, out2))
		require.Equal(t, in, in2)
		for i := range out {
			at := int(start) + i
			require.Equal(t, ids[at], in[i])
			want := ids[at+1]
			require.Equal(t, want, out[i])
			if !counts[at+1] {
				want = IgnoreTarget
				ignored++
			}
			require.Equal(t, want, out2[i])
		}
	}
	require.Positive(t, ignored)
	_, err = OpenFiles([]string{writeFolder(t, KindDocuments, 3, 9).dir}, Options{Answers: true})
	requireSentence(t, err, "data.loss=answers", "--kind completion")
	_, err = OpenFiles([]string{writeTree(t, map[string]string{"a.txt": "some text"})}, Options{Answers: true})
	requireSentence(t, err, "data.loss=answers", "--kind completion")
}

// Packing gives every document once in an epoch, whole or without its end, and no target crosses
// the end of a document.
func TestPackedRows(t *testing.T) {
	for _, answers := range []bool{false, true} {
		w := writeFolder(t, KindCompletion, 4, 30, 25)
		docs, masks := w.docs[TrainPart], w.mask[TrainPart]
		const seq = 24 // some documents are longer
		l, err := openAnswers(t, answers, w.dir).Loader(LoaderOptions{Seq: seq, Seed: 9, Packing: true})
		require.NoError(t, err)
		var orders [2][]string
		for epoch := range orders {
			for l.Position().Epoch == int64(epoch) {
				in, out := make([]int32, seq), make([]int32, seq)
				require.NoError(t, l.Next(in, out))
				for at := 0; at < seq && in[at] != 0; {
					k := slices.IndexFunc(docs, func(d []int32) bool {
						n := min(len(d), seq)
						return at+n <= seq && slices.Equal(d[:n], in[at:at+n])
					})
					require.GreaterOrEqual(t, k, 0, "no document begins with %v", in[at:])
					d := docs[k]
					for i := range min(len(d), seq) {
						want := IgnoreTarget
						if i+1 < len(d) && (!answers || masks[k][i+1]) {
							want = d[i+1]
						}
						require.Equal(t, want, out[at+i])
					}
					at += min(len(d), seq)
					orders[epoch] = append(orders[epoch], fmt.Sprint(k))
				}
				for i := range in {
					if in[i] == 0 {
						require.Equal(t, IgnoreTarget, out[i])
					}
				}
			}
		}
		require.NotEqual(t, orders[0], orders[1])
		seen := slices.Sorted(slices.Values(slices.Concat(orders[0], orders[1])))
		require.GreaterOrEqual(t, len(slices.Compact(seen)), len(docs))
	}
}

// The lengths of documents, by hand: cut ones are longer than a row, silent ones have no target in it
// that counts.
func TestLengths(t *testing.T) {
	w := writeFolder(t, KindCompletion, 21, 30, 25)
	const seq = 24
	want := Lengths{Documents: 55}
	for i, d := range w.docs[TrainPart] {
		if len(d) > seq {
			want.Cut++
		}
		if !slices.Contains(w.mask[TrainPart][i][1:min(len(d), seq+1)], true) {
			want.Silent++
		}
	}
	require.Positive(t, want.Cut*want.Silent)
	got, ok, err := openAnswers(t, true, w.dir).Lengths(seq)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, want, got)
	got, _, err = openFolders(t, w.dir).Lengths(seq)
	require.NoError(t, err)
	require.Equal(t, Lengths{Documents: 55, Cut: want.Cut}, got)
	_, ok, err = (&Corpus{Train: Text("text")}).Lengths(seq)
	require.NoError(t, err)
	require.False(t, ok)
}

// The rows do not depend on the number of ranks, and a loader goes on from any position, for packed
// rows and for several sources.
func TestOtherLoadersResumeAnywhere(t *testing.T) {
	a, b := openFolders(t, writeFolder(t, KindDocuments, 5, 40).dir), openFolders(t, writeFolder(t, KindDocuments, 6, 9).dir)
	mixed := &Corpus{Train: a.Train, Sources: []Source{{"a", 3, a.Train}, {"b", 1, b.Train}}}
	for name, x := range map[string]struct {
		c *Corpus
		o LoaderOptions
	}{
		"packed": {a, LoaderOptions{Seq: 32, Seed: 1, Packing: true}},
		"mixed":  {mixed, LoaderOptions{Seq: 16, Seed: 1}},
		"both":   {mixed, LoaderOptions{Seq: 32, Seed: 1, Packing: true}},
	} {
		t.Run(name, func(t *testing.T) {
			seq := x.o.Seq
			one, err := x.c.Loader(x.o)
			require.NoError(t, err)
			const batches, rows, ranks = 40, 2, 3
			want := make([]int32, batches*ranks*rows*seq)
			targets := make([]int32, len(want))
			var at []Position
			for i := 0; i < len(want); i += ranks * rows * seq {
				at = append(at, one.Position())
				require.NoError(t, one.Next(want[i:][:ranks*rows*seq], targets[i:][:ranks*rows*seq]))
			}
			for rank := range ranks {
				o := x.o
				o.Rank, o.Ranks = rank, ranks
				for _, from := range []int{0, 17} {
					l, err := x.c.Loader(o)
					require.NoError(t, err)
					require.NoError(t, l.Restore(at[from]))
					in, out := make([]int32, rows*seq), make([]int32, rows*seq)
					for i := from; i < batches; i++ {
						require.NoError(t, l.Next(in, out))
						start := (i*ranks + rank) * rows * seq
						require.Equal(t, want[start:][:len(in)], in)
						require.Equal(t, targets[start:][:len(in)], out)
					}
				}
			}
			requireSentence(t, one.Restore(Position{Sources: make([]Position, 5)}), "5 sources", "another corpus")
		})
	}
}

// The shares of the sources are the weights', within four standard deviations.
func TestMixtureFollowsTheWeights(t *testing.T) {
	var m mixture
	m.seed = 11
	weights := []float64{0.5, 0, 2, 1.5}
	for _, w := range weights {
		m.add(w)
	}
	const n = 100_000
	counts := make([]float64, len(weights))
	for i := range int64(n) {
		counts[m.at(i)]++
	}
	for i, w := range weights {
		p := w / 4
		require.InDelta(t, n*p, counts[i], 4*math.Sqrt(n*p*(1-p)))
	}
}

// A sweep counts the answers alone, and so does one over several sources.
func TestSweepOfAnswers(t *testing.T) {
	a, b := writeFolder(t, KindCompletion, 9, 5), writeFolder(t, KindCompletion, 10, 6)
	joined, err := OpenSources([]Source{{Path: a.dir, Weight: 1}, {Path: b.dir, Weight: 2}}, Options{ValBytes: 1 << 40, Answers: true})
	require.NoError(t, err)
	defer func() { require.NoError(t, joined.Close()) }()
	ids := slices.Concat(slices.Concat(a.docs[ValPart], b.docs[ValPart])...)
	counts := slices.Concat(slices.Concat(a.mask[ValPart], b.mask[ValPart])...)
	const seq = 16
	s, err := NewSweep(joined.Val, seq)
	require.NoError(t, err)
	in, out := make([]int32, seq), make([]int32, seq)
	total, want := 0, 0
	for row := range s.Rows() {
		n, err := s.Batch(row, in, out)
		require.NoError(t, err)
		total += n
		for i := range out {
			if at := int(row)*seq + i + 1; at < len(ids) && counts[at] {
				require.Equal(t, ids[at], out[i])
			} else {
				require.Equal(t, IgnoreTarget, out[i])
			}
		}
	}
	for _, c := range counts[1:] {
		if c {
			want++
		}
	}
	require.Equal(t, want, total)
	require.EqualValues(t, want, s.Targets())
	_, err = OpenSources([]Source{{Path: a.dir}}, Options{})
	requireSentence(t, err, "all weights are 0")
}

// A batch of packed rows, of answers or of several sources allocates nothing, nor does counting its
// targets. The race detector empties the pool of read buffers at random.
func TestOtherLoadersAllocateNothing(t *testing.T) {
	w := writeFolder(t, KindCompletion, 5, 40)
	a := openAnswers(t, true, w.dir)
	mixed := &Corpus{Train: a.Train, Sources: []Source{{"a", 3, a.Train}, {"b", 1, a.Train}}}
	for name, c := range map[string]*Corpus{"one": a, "mixed": mixed} {
		for _, packing := range []bool{false, true} {
			const seq = 32
			l, err := c.Loader(LoaderOptions{Seq: seq, Seed: 1, Packing: packing})
			require.NoError(t, err)
			in, out := make([]int32, 4*seq), make([]int32, 4*seq)
			var at Position
			require.Zero(t, testing.AllocsPerRun(200, func() {
				_, err := l.Counted(4)
				if l.StorePosition(&at); err != nil || l.Next(in, out) != nil {
					panic(name)
				}
			}), name)
		}
	}
}
