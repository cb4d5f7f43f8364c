package data

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestStarts(t *testing.T) {
	tokens := []int32{
		5, 6, 0, 7, 8, // the second document begins after the end of the first
		0, 0, 3, 4, 0, // documents of one token; an end at the end of a row
		1, 2, 3, 4, 5, // a row inside a document, although the row before ended one
	}
	starts := make([]int32, len(tokens))
	for i := range starts {
		starts[i] = 99
	}
	Starts(starts, tokens, 5, 0)
	require.Equal(t, []int32{0, 0, 0, 3, 3, 0, 1, 2, 2, 2, 0, 0, 0, 0, 0}, starts)
	Starts(starts, tokens, 5, 8)
	require.Equal(t, make([]int32, 15), starts, "an end of text at the end of a row")
	require.Zero(t, testing.AllocsPerRun(5, func() { Starts(starts, tokens, 5, 0) }))
}

// Counted returns what the next batches of all ranks contain, on every rank, and leaves the
// position.
func TestLoaderCounts(t *testing.T) {
	dir := writeFolder(t, KindMessages, 5, 40).dir
	a, whole, b := openAnswers(t, true, dir), openFolders(t, dir), openFolders(t, writeFolder(t, KindMessages, 6, 9).dir)
	mixed := &Corpus{Train: b.Train, Sources: []Source{{"b", 3, b.Train}, {"a", 1, a.Train}}}
	for name, x := range map[string]struct {
		c *Corpus
		o LoaderOptions
	}{
		"plain":   {whole, LoaderOptions{Seq: 16}},
		"answers": {a, LoaderOptions{Seq: 16}},
		"packed":  {whole, LoaderOptions{Seq: 32, Packing: true}},
		"mixed":   {mixed, LoaderOptions{Seq: 16}},
	} {
		const rows, ranks, steps = 3, 2, 30 // several epochs
		var loaders [ranks]*Loader
		for rank := range ranks {
			x.o.Rank, x.o.Ranks = rank, ranks
			var err error
			loaders[rank], err = x.c.Loader(x.o)
			require.NoError(t, err)
		}
		in, out := make([]int32, rows*x.o.Seq), make([]int32, rows*x.o.Seq)
		var all int64
		for range steps {
			var want int64
			var counts [ranks]int64
			for rank, l := range loaders {
				at := l.Position()
				n, err := l.Counted(rows * ranks)
				require.NoError(t, err)
				require.Equal(t, at, l.Position(), name)
				counts[rank] = n
				require.NoError(t, l.Next(in, out))
				for _, target := range out {
					if target != IgnoreTarget {
						want++
					}
				}
			}
			require.Equal(t, [ranks]int64{want, want}, counts, name)
			all += want
		}
		require.Equal(t, name == "plain", all == int64(steps*rows*ranks*x.o.Seq), name)
		require.Positive(t, all, name)
	}
}
