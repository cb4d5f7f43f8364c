package backend_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// A node waits for the collectives that write what it uses, and for those that read what it writes.
func TestCollectivesBefore(t *testing.T) {
	v := backend.NewVars()
	part := v.Tensor(backend.Stash, "part", fp8.F32, 4)
	other, whole := v.Tensor(backend.Stash, "other", fp8.F32, 4), v.Tensor(backend.Stash, "whole", fp8.F32, 8)
	p := v.Program("p")
	comm := p.On(backend.CommQueue)
	comm.Add(&backend.AllGather{X: part, Out: whole}) // the first collective
	p.Add(&backend.Fill{Out: other})                  // beside it
	p.Add(&backend.Amax{X: part, Out: p.Temp("amax", fp8.F32, 1)})
	p.Add(&backend.Fill{Out: part})
	comm.Add(&backend.AllReduce{X: other})
	p.Add(&backend.Amax{X: whole, Out: p.Temp("amax.whole", fp8.F32, 1)})
	p.Add(&backend.Amax{X: other, Out: p.Temp("amax.other", fp8.F32, 1)})
	p.Add(&backend.AllReduce{X: part})
	require.NoError(t, p.Err())
	require.Equal(t, []int{0, 0, 0, 1, 0, 1, 2, 3}, backend.CollectivesBefore(p.Nodes()))
}
