package gaudi

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEveryOpHasARow(t *testing.T) {
	require.Empty(t, ops.Missing(), "write the op's function in a file of this package, and above it: var _ = implement((*builder).function)")
}
