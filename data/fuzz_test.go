package data

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzLoader restores any position in any text. That is an error, or every row is
// inside the text, targets are shifted by one token, and the position advances by
// the rows of all ranks, on every rank.
func FuzzLoader(f *testing.F) {
	f.Add([]byte("a text to cut into windows"), 4, uint64(1), int64(0), int64(0), 2, 1)
	f.Add([]byte("short"), 4, uint64(7), int64(3), int64(0), 1, 3)
	f.Add([]byte("short"), 5, uint64(0), int64(0), int64(0), 1, 1)
	f.Add(make([]byte, 1000), 1, uint64(math.MaxUint64), int64(math.MaxInt64-1), int64(998), 7, 2)
	f.Add(make([]byte, 64), 63, uint64(2), int64(math.MaxInt64), int64(0), 3, 1)
	f.Add(make([]byte, 64), 16, uint64(2), int64(-1), int64(-1), 1, 1)
	f.Add([]byte{}, 0, uint64(0), int64(0), int64(0), 1, 1)
	f.Fuzz(func(t *testing.T, text []byte, seq int, seed uint64, epoch, index int64, rows, ranks int) {
		if rows < 1 || rows > 64 || ranks < 1 || ranks > 8 {
			return
		}
		var after []Position
		for rank := range ranks {
			l, err := NewLoader(Text(text), LoaderOptions{Seq: seq, Seed: seed, Rank: rank, Ranks: ranks})
			if err != nil {
				requireSentence(t, err, "data: ")
				return
			}
			if err := l.Restore(Position{Epoch: epoch, Index: index}); err != nil {
				requireSentence(t, err, "position")
				return
			}
			require.Equal(t, Position{Epoch: epoch, Index: index}, l.Position())
			inputs, targets := make([]int32, rows*seq), make([]int32, rows*seq)
			require.NoError(t, l.Next(inputs, targets))
			for row := range rows {
				require.Equal(t, inputs[row*seq+1:(row+1)*seq], targets[row*seq:(row+1)*seq-1])
			}
			end := l.Position()
			moved := int64(rows * ranks)
			require.Equal(t, Position{Epoch: epoch + (index+moved)/windowsOf(l).count, Index: (index + moved) % windowsOf(l).count}, end)
			if end.Epoch <= maxEpoch {
				require.NoError(t, l.Restore(end), "a returned position must be valid")
			}
			after = append(after, end)
		}
		for _, p := range after {
			require.Equal(t, after[0], p)
		}
	})
}
