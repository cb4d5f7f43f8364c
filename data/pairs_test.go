package data

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// pairRows returns the rows of a pair by definition, without padding.
func pairRows(docs [][]int32, mask [][]bool, pair, seq int) (inputs, targets [2][]int32) {
	for k := range 2 {
		doc, counts := docs[2*pair+k], mask[2*pair+k]
		for i := range min(len(doc), seq) {
			inputs[k] = append(inputs[k], doc[i])
			target := IgnoreTarget
			if i+1 < len(doc) && counts[i+1] {
				target = doc[i+1]
			}
			targets[k] = append(targets[k], target)
		}
	}
	return inputs, targets
}

// requirePair compares two rows with a pair.
func requirePair(t *testing.T, w *writtenDocs, pair, seq int, inputs, targets []int32) {
	t.Helper()
	in, out := pairRows(w.docs[TrainPart], w.mask[TrainPart], pair, seq)
	for k := range 2 {
		n := len(in[k])
		row, next := inputs[k*seq:][:seq], targets[k*seq:][:seq]
		require.Equal(t, in[k], row[:n])
		require.Equal(t, out[k], next[:n])
		for i := n; i < seq; i++ {
			require.Zero(t, row[i]) // the end of text
			require.Equal(t, IgnoreTarget, next[i])
		}
	}
}

// Every epoch has each pair once, in rows that follow from its documents, and ranks share them as
// one rank reads them.
func TestPairs(t *testing.T) {
	w := writeFolder(t, KindPreference, 4, 8, 2, 12)
	c := openAnswers(t, true, w.dir)
	const seq, n = 24, 11 // some documents are longer
	one, err := c.Pairs(LoaderOptions{Seq: seq, Seed: 3}, false)
	require.NoError(t, err)
	require.EqualValues(t, n, one.Len())
	var order []int64
	inputs, targets := make([]int32, 2*seq), make([]int32, 2*seq)
	for epoch := range 3 {
		var seen []int64
		for i := range n {
			require.Equal(t, Position{Epoch: int64(epoch), Index: int64(i)}, one.Position())
			require.NoError(t, one.Next(inputs, targets))
			requirePair(t, w, int(one.Last()[0]), seq, inputs, targets)
			seen = append(seen, one.Last()...)
		}
		order = append(order, seen...)
		slices.Sort(seen)
		require.Len(t, slices.Compact(seen), n)
	}
	require.NotEqual(t, order[:n], order[n:2*n])
	for _, ranks := range []int{1, 2, 4} { // two pairs of each rank in a batch
		var got []int64
		for batch := range 4 {
			for rank := range ranks {
				p, err := c.Pairs(LoaderOptions{Seq: seq, Seed: 3, Rank: rank, Ranks: ranks}, false)
				require.NoError(t, err)
				require.NoError(t, p.Restore(Position{Epoch: int64(2*ranks*batch) / n, Index: int64(2*ranks*batch) % n}))
				in, out := make([]int32, 4*seq), make([]int32, 4*seq)
				require.NoError(t, p.Next(in, out))
				for k, pair := range p.Last() {
					requirePair(t, w, int(pair), seq, in[2*k*seq:], out[2*k*seq:])
				}
				got = append(got, p.Last()...)
				require.EqualValues(t, 2*ranks*(batch+1)%n, p.Position().Index)
			}
		}
		require.Equal(t, order[:len(got)], got, ranks)
	}
}

// Batch has the pairs in order, and padding after the last one.
func TestBatchesOfPairs(t *testing.T) {
	w := writeFolder(t, KindPreference, 5, 10)
	c := openAnswers(t, true, w.dir)
	const seq, rows = 8, 6
	p, err := c.Pairs(LoaderOptions{Seq: seq}, false)
	require.NoError(t, err)
	inputs, targets := make([]int32, rows*seq), make([]int32, rows*seq)
	var want PairCounts
	for pair := range 5 {
		want.Pairs++
		_, out := pairRows(w.docs[TrainPart], w.mask[TrainPart], pair, seq)
		if max(len(w.docs[TrainPart][2*pair]), len(w.docs[TrainPart][2*pair+1])) > seq+1 {
			want.Cut++
		}
		if slices.Max(out[0]) < 0 || slices.Max(out[1]) < 0 {
			want.Empty++
		}
	}
	require.Positive(t, want.Cut)
	for first, read := range map[int64]int{0: 3, 3: 2} {
		n, err := p.Batch(first, inputs, targets)
		require.NoError(t, err)
		require.Equal(t, read, n)
		for k := range n {
			requirePair(t, w, int(first)+k, seq, inputs[2*k*seq:], targets[2*k*seq:])
		}
		for i := 2 * n * seq; i < len(inputs); i++ {
			require.Zero(t, inputs[i])
			require.Equal(t, IgnoreTarget, targets[i])
		}
	}
	require.Equal(t, want, p.Counts())
}

// The validation part has the pairs that it holds as a whole.
func TestHeldOutPairs(t *testing.T) {
	w := writeFolder(t, KindPreference, 6, 2, 8)
	tokens := 0
	for i, doc := range w.docs[ValPart] {
		tokens += len(doc)
		c, err := OpenFiles([]string{w.dir}, Options{ValBytes: 1 << 40, Answers: true})
		require.NoError(t, err)
		c.Val.(maskedPart).truncate(int64(tokens))
		p, err := c.Pairs(LoaderOptions{Seq: 8}, true)
		require.NoError(t, err)
		require.EqualValues(t, (i+1)/2, p.Len())
		require.NoError(t, c.Close())
	}
}

// What has no pairs is refused.
func TestRefusedPairs(t *testing.T) {
	_, err := openAnswers(t, true, writeFolder(t, KindCompletion, 7, 4).dir).Pairs(LoaderOptions{Seq: 8}, false)
	requireSentence(t, err, "no pairs", "--kind preference")
	w := writeFolder(t, KindPreference, 8, 4)
	_, err = openFolders(t, w.dir).Pairs(LoaderOptions{Seq: 8}, false)
	requireSentence(t, err, "Options.Answers")
	c := openAnswers(t, true, w.dir)
	_, err = c.Pairs(LoaderOptions{}, false)
	requireSentence(t, err, "data.seq is 0")
	p, err := c.Pairs(LoaderOptions{Seq: 8}, false)
	require.NoError(t, err)
	for _, at := range []Position{{Epoch: -1}, {Index: 2}, {Index: -1}, {Sources: []Position{{}}}} {
		requireSentence(t, p.Restore(at), "2 pairs")
	}
	rewrite(t, filepath.Join(w.dir, PreparedFile), `"documents": 4`, `"documents": 3`)
	_, err = OpenFiles([]string{w.dir}, Options{})
	requireSentence(t, err, "train-000000", "3 documents")
}
