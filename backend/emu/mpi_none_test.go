//go:build !(mpi && cgo && linux)

package emu

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
)

func TestNoMPI(t *testing.T) {
	_, err := openMPI(t.Context())
	require.ErrorIs(t, err, backend.ErrNotBuilt)
	require.ErrorContains(t, err, "TAGS=mpi")
}
