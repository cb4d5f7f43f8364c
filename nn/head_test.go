package nn

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// There are as few chunks as the bound on their logits allows.
func TestHeadRows(t *testing.T) {
	for _, rows := range []int{16, 32, 272} { // that the bound allows
		usual := headElems
		headElems = rows * 64
		m := &Model{Config: Config{Vocab: 64}}
		for tokens := 1; tokens < 20*rows; tokens++ {
			size := m.headRows(tokens)
			require.LessOrEqual(t, size, rows, tokens)
			require.Equal(t, (tokens+rows-1)/rows, (tokens+size-1)/size, "chunks of %d for %d tokens", size, tokens)
		}
		headElems = usual
	}
}
