//go:build !noasm

package gemm

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/cpu"
)

func init() {
	if AMXAvailable() == nil && cpu.X86.HasAMXInt8 {
		testedIntegers[&AVX512] = append(testedIntegers[&AVX512], &amxIntegers)
	}
}

// The shapes of tiles fit TDPBSSD: the left operand has the sums' rows, and as many words in a
// row as the right one has rows. No tile is empty.
func TestAMXIntegerTiles(t *testing.T) {
	require.EqualValues(t, 64, unsafe.Sizeof(amxTiles{}))
	require.EqualValues(t, 16, unsafe.Offsetof(amxTiles{}.bytes))
	require.EqualValues(t, 48, unsafe.Offsetof(amxTiles{}.rows))
	for k := range 40 {
		for rows := 1; rows <= AVX512.tall; rows++ {
			x := amxIntegerTiles(k, rows)
			require.EqualValues(t, 1, x.palette)
			for _, p := range [][3]int{{0, 4, 6}, {1, 4, 7}, {0, 5, 2}, {1, 5, 3}} {
				c, a, b := p[0], p[1], p[2]
				require.EqualValues(t, rows, x.rows[c])
				require.Equal(t, x.rows[c], x.rows[a])
				require.Equal(t, x.bytes[c], x.bytes[b])
				require.EqualValues(t, x.bytes[a], 4*x.rows[b])
			}
			require.EqualValues(t, 16, x.rows[6])
			if k%16 > 0 {
				require.EqualValues(t, k%16, x.rows[2])
			}
		}
	}
}
