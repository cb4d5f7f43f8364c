package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEveryOpHasARow(t *testing.T) {
	require.Empty(t, ops.Missing(), "add a line to ops.go, or write the op's function in bind_ops.go, and above it: var _ = implement((*binder).function)")
}
