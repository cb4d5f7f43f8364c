//go:build cuda && cgo && linux

package cuda

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/world"
	"octet/csrc/libcuda"
	"octet/csrc/standin"
	"octet/fp8"
)

// Of four ranks: 0 1 and 2 3, then all, then 0 2 and 1 3, then 0 1 and 2 3 again.
var kindsOfGroups = []backend.Group{{Size: 2, Stride: 1}, {Size: 4, Stride: 1}, {Size: 2, Stride: 2}, {Size: 2, Stride: 1}}

// ended requires that the ranks close and that all their communicators end with an error code of
// the stand-in.
func (p *peers) ended(t *testing.T, code int) {
	t.Helper()
	comms := make([][]communicator, len(p.devices))
	for rank, d := range p.devices {
		comms[rank] = d.(*device).connected()
		require.Len(t, comms[rank], 3, "the groups of all ranks have no other")
	}
	require.NoError(t, p.each(func(rank int) error { return p.devices[rank].Close() }))
	for _, list := range comms {
		for _, c := range list {
			e := (*libcuda.Error)(nil)
			require.ErrorAs(t, c.Err(), &e, "%s", c.of)
			require.Equal(t, code, e.Code, "%s", c.of)
		}
	}
}

// A program has collectives of several groups, issued one by one, recorded and launched.
func TestGroupsOfRanks(t *testing.T) {
	standIns(t)
	standin.Set(t, "STANDIN_GPUS", "4")
	p := openPeers(t, 4, "", time.Minute, kindsOfGroups...)
	for _, x := range []float32{1, 3, 5} {
		for rank := range p.devices {
			p.write(t, rank, x*float32(rank))
		}
		require.NoError(t, p.each(func(rank int) error { return p.run[rank].Run(t.Context()) }))
		for rank := range p.devices {
			got, err := p.read(rank)
			require.NoError(t, err)
			require.Equal(t, 8*6*x, got)
		}
	}
	p.ended(t, 5)
}

// When a rank is missing in a collective of its group, the others of all groups end.
func TestMissingRankOfAGroup(t *testing.T) {
	standIns(t)
	standin.Set(t, "STANDIN_GPUS", "4")
	p := openPeers(t, 4, "", 5*time.Second, kindsOfGroups...)
	for rank := range 3 {
		require.NoError(t, p.run[rank].Run(t.Context()))
	}
	_, err := p.read(2)
	p.ends(t, err, "rank 3: the other ranks waited for it for 5s; its last collective is ")
	p.ended(t, 4)
}

// A rank that is lost while the groups of a program connect ends the others.
func TestRankLostWhileGroupsConnect(t *testing.T) {
	standIns(t)
	standin.Set(t, "STANDIN_GPUS", "4")
	p := openPeers(t, 4, "", time.Second)
	err := p.each(func(rank int) error {
		if rank == 3 {
			return nil
		}
		return p.load(rank, recordOver(kindsOfGroups))
	})
	require.ErrorIs(t, err, backend.ErrDeviceLost)
	require.ErrorContains(t, err, "rank 3: the other ranks waited for it for 1s")
	require.NotContains(t, err.Error(), "\n")
}

// Groups that do not divide the ranks are refused on all of them.
func TestGroupsThatDoNotDivideTheRanks(t *testing.T) {
	standIns(t)
	standin.Set(t, "STANDIN_GPUS", "2")
	require.NoError(t, world.Each(world.Local(2, time.Minute), func(g *world.Group) error {
		d, err := open("", backend.Options{Group: g})
		if err != nil {
			return err
		}
		v := backend.NewVars()
		program := v.Program("groups")
		program.Add(&backend.AllReduce{X: v.Tensor(backend.Stash, "x", fp8.F32, 4), Group: backend.Group{Size: 3, Stride: 1}})
		_, err = d.Load(program)
		require.ErrorIs(t, err, backend.ErrUnsupported)
		require.EqualError(t, err, "allreduce: unsupported by backend cuda: 2 ranks do not divide into groups of 3 ranks 1 apart")
		return d.Close()
	}))
}

// Ranks whose libraries or kernels differ do not start.
func TestRanksThatComputeDifferently(t *testing.T) {
	standIns(t)
	standin.Set(t, "STANDIN_GPUS", "2")
	err := world.Each(world.Local(2, time.Minute), func(g *world.Group) error {
		d, err := open([]string{"", "attention=mma"}[g.Rank()], backend.Options{Group: g})
		if err == nil {
			err = d.Close()
		}
		return err
	})
	require.ErrorContains(t, err, "rank 1: its GPU and its libraries differs: ")
}
