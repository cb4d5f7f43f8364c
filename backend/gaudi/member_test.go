//go:build gaudi && cgo && linux

package gaudi

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/csrc/standin"
)

// A rank that waits for the communicator of a group counts as waiting; the rank that does not join
// is lost.
func TestRankThatDoesNotConnect(t *testing.T) {
	if !standin.InRank() {
		t.Setenv("STANDIN_HCCL_SECONDS", "1000")
		startRanks(t, "gaudi2", 2, func(exits []standin.Exit) {
			for _, e := range exits {
				require.Zero(t, e.Code, e.Output)
			}
		})
		return
	}
	g := standin.JoinWorld(t, 3*time.Second)
	opened, err := open("", backend.Options{Group: g})
	require.NoError(t, err)
	if g.Rank() == 1 {
		_, err := g.Exchange(t.Context(), "HCCL's unique id", nil)
		require.NoError(t, err)
		time.AfterFunc(20*time.Second, func() { os.Exit(1) })
		<-g.Done()
	} else {
		err := opened.(*device).connect([]backend.Group{{Size: 2, Stride: 1}})
		require.ErrorIs(t, err, backend.ErrDeviceLost)
		require.ErrorContains(t, err, "device lost: rank 1 on ")
		require.ErrorContains(t, err, "the other ranks waited for it for 3s")
	}
	os.Exit(0) // hcclCommInitRank still waits
}
