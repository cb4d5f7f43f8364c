package checkpoint

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/fp8"
)

// Ranks that share layers write blocks of a tensor: some have all of its rows, some have both divided.
func TestColumns(t *testing.T) {
	const rows, width = 6, 10
	for _, shape := range [][]int{{rows, width}, {rows, width, 3}} {
		elems := 1
		if len(shape) == 3 {
			elems = 3
		}
		whole := make([]byte, rows*width*elems*2)
		for i := range whole {
			whole[i] = byte(i * i >> 2)
		}
		rowBytes, colBytes := width*elems*2, elems*2
		blocks := [][4]int{{0, 6, 0, 4}, {0, 2, 4, 10}, {2, 6, 4, 10}}
		divided := [][4]int{{0, 2, 0, 4}, {0, 2, 4, 10}, {2, 6, 0, 4}, {2, 6, 4, 10}}
		for _, list := range [][][4]int{{{0, 6, 0, 4}, {0, 6, 4, 9}, {0, 6, 9, 10}}, divided, blocks} {
			s, err := BeginSharded(t.TempDir(), 1, len(list))
			require.NoError(t, err)
			parts := make([]Part, len(list))
			for rank, b := range list {
				var data []byte
				for row := b[0]; row < b[1]; row++ {
					data = append(data, whole[row*rowBytes+b[2]*colBytes:row*rowBytes+b[3]*colBytes]...)
				}
				r := Rows{Tensor: Tensor{"w", fp8.BF16, shape, Bytes(data)}, From: b[0], To: b[1], Columns: [2]int{b[2], b[3]}}
				parts[rank], err = WriteShard(s.Partial(), rank, len(list), Shard{Model: []Rows{r}})
				require.NoError(t, err)
			}
			path, err := s.Finish(parts, tiny, state{})
			if len(list) == len(blocks) && list[1] == blocks[1] {
				require.ErrorContains(t, err, "its columns 4 to 10 follow those that end at 0", "all shards of a row have the same rows")
				continue
			}
			require.NoError(t, err)
			c, err := Open(path)
			require.NoError(t, err)
			got := make([]byte, len(whole))
			require.NoError(t, c.Model.ReadInto("w", got))
			require.Equal(t, whole, got)
			reader := c.Model.rows[0]
			for from := 0; from < len(whole); from += 7 {
				for _, n := range []int{1, 13, len(whole)/2 + 1} {
					part := make([]byte, min(n, len(whole)-from))
					_, err := reader.ReadAt(part, int64(from))
					require.NoError(t, err)
					require.Equal(t, whole[from:from+len(part)], part, "%d from %d", n, from)
				}
			}
			for _, b := range [][4]int{{0, 6, 0, 10}, {1, 5, 3, 9}, {2, 2, 1, 2}, {5, 6, 9, 10}} {
				part := make([]byte, (b[1]-b[0])*(b[3]-b[2])*colBytes)
				require.NoError(t, c.Model.ReadBlock("w", b[0], b[1], b[2], b[3], part))
				for row := b[0]; row < b[1]; row++ {
					n := (b[3] - b[2]) * colBytes
					require.Equal(t, whole[row*rowBytes+b[2]*colBytes:][:n], part[(row-b[0])*n:][:n])
				}
			}
			for _, bad := range [][5]int{{0, 6, 0, 11, 12}, {0, 6, 2, 1, 0}, {0, 1, 0, 1, 1}, {0, 7, 0, 1, 7 * colBytes}} {
				require.Error(t, c.Model.ReadBlock("w", bad[0], bad[1], bad[2], bad[3], make([]byte, bad[4])), fmt.Sprint(bad))
			}
			require.NoError(t, c.Close())
		}
	}
}
