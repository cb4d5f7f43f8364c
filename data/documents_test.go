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

// The targets of a Loader all count.
func TestLoaderCounts(t *testing.T) {
	l, err := NewLoader(Text(make([]byte, 100)), LoaderOptions{Seq: 7, Ranks: 2})
	require.NoError(t, err)
	n, err := l.Counted(6)
	require.NoError(t, err)
	require.EqualValues(t, 42, n)
}
