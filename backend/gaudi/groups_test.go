package gaudi

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/world"
	"octet/fp8"
)

// rankOf returns a fake device as one of several ranks.
func rankOf(t *testing.T, rank, ranks int) (*fake, *device) {
	t.Helper()
	f := newFake("gaudi2")
	d, err := newDevice(f, world.Local(ranks, time.Minute)[rank], deviceOptions{unit: 1})
	require.NoError(t, err)
	return f, d
}

// transfersOf returns the transfers of a loaded program.
func transfersOf(f *fake, x backend.Executable) (list []transfer) {
	for _, c := range f.lists[x.(*executable).list] {
		if c.Transfer != nil {
			list = append(list, *c.Transfer)
		}
	}
	return list
}

// update returns an op that updates a BF16 tensor with stochastic rounding.
func update(v *backend.Vars, name string) *backend.AdamW {
	tensor := func(suffix string, d fp8.DType, n int) *backend.Tensor {
		if t := v.Lookup(name + suffix); t != nil {
			return t
		}
		return v.Tensor(backend.Stash, name+suffix, d, n)
	}
	control := v.Lookup("step.control")
	if control == nil {
		control = v.Tensor(backend.Input, "step.control", fp8.I32, backend.ControlWords)
	}
	none := []*backend.Tensor{nil}
	return &backend.AdamW{
		Grad: []*backend.Tensor{tensor(".grad", fp8.F32, 64)}, Master: []*backend.Tensor{tensor("", fp8.BF16, 64)},
		M1: []*backend.Tensor{tensor(".m1", fp8.F32, 64)}, M2: []*backend.Tensor{tensor(".m2", fp8.F32, 64)},
		MasterScale: none, M1Scale: none, M2Scale: none, Control: control,
		Step: tensor(".step", fp8.I32, 1), Coef: tensor(".coef", fp8.F32, 1), Skip: tensor(".skip", fp8.I32, 1), Amaxes: tensor(".amaxes", fp8.F32, 3),
		Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, Rounding: fp8.Stochastic,
	}
}

// Each group of several ranks is connected once, in the order of the collectives.
func TestGroupsAreConnected(t *testing.T) {
	pairs, apart, alone := backend.Group{Size: 2, Stride: 1}, backend.Group{Size: 2, Stride: 2}, backend.Group{Size: 1, Stride: 2}
	f, d := rankOf(t, 2, 4)
	v := backend.NewVars()
	x, y := v.Tensor(backend.Stash, "x", fp8.F32, 8), v.Tensor(backend.Stash, "y", fp8.F32, 16)
	p := v.Program("p")
	p.Add(&backend.AllReduce{X: x, Group: apart})
	p.Add(&backend.AllReduce{X: x, Group: alone})
	p.Add(&backend.AllToAll{X: x, Out: y.Slice("half", 0, 8), Group: alone})
	p.Add(&backend.AllGather{X: x, Out: y, Group: pairs})
	p.Add(&backend.AllReduce{X: y, Group: apart})
	p.Add(&backend.AllReduce{X: y, Group: backend.Group{Size: 4, Stride: 1}})
	p.Add(&backend.ReduceScatter{X: y, Out: x, Group: pairs})
	list, err := d.Load(p)
	require.NoError(t, err)
	require.Equal(t, []backend.Group{apart, pairs, {}}, f.groups)
	var kinds []transferKind
	for _, r := range transfersOf(f, list[0]) {
		kinds = append(kinds, r.Kind)
		require.Contains(t, map[transferKind][]backend.Group{
			allReduce: {apart, {}}, localCopy: {{}}, allGather: {pairs}, reduceScatter: {pairs},
		}[r.Kind], r.Group)
	}
	require.Equal(t, []transferKind{allReduce, localCopy, allGather, allReduce, allReduce, reduceScatter}, kinds)
}

// The error of ranks that do not divide into groups names the node.
func TestGroupsThatDoNotDivideTheRanks(t *testing.T) {
	three := backend.Group{Size: 3, Stride: 1}
	for name, add := range map[string]func(v *backend.Vars, x, y *backend.Tensor) backend.Op{
		"allreduce": func(_ *backend.Vars, x, _ *backend.Tensor) backend.Op { return &backend.AllReduce{X: x, Group: three} },
		"allgather": func(_ *backend.Vars, x, y *backend.Tensor) backend.Op {
			return &backend.AllGather{X: x, Out: y, Group: three}
		},
		"reducescatter": func(_ *backend.Vars, x, y *backend.Tensor) backend.Op {
			return &backend.ReduceScatter{X: y, Out: x, Group: three}
		},
		"alltoall": func(_ *backend.Vars, _, y *backend.Tensor) backend.Op {
			return &backend.AllToAll{X: y, Out: y, Group: three}
		},
		"adamw": func(v *backend.Vars, _, _ *backend.Tensor) backend.Op {
			o := update(v, "w")
			o.Shard, o.Split = true, three
			return o
		},
	} {
		f, d := rankOf(t, 0, 4)
		v := backend.NewVars()
		p := v.Program("p")
		p.Scope("scope").Add(add(v, v.Tensor(backend.Stash, "x", fp8.F32, 4), v.Tensor(backend.Stash, "y", fp8.F32, 12)))
		_, err := d.Load(p)
		require.ErrorIs(t, err, backend.ErrUnsupported, name)
		require.ErrorContains(t, err, "scope: "+name+": unsupported by backend gaudi: 4 ranks do not divide into groups of 3 ranks 1 apart")
		require.Empty(t, f.graphs, "compiled")
		require.Empty(t, f.groups, "connected")
	}
}

// Ranks with copies of a stochastically rounded tensor get that of the first one.
func TestBroadcastsOfCopies(t *testing.T) {
	for _, c := range []struct {
		ranks int
		shard bool
		split backend.Group
		want  []backend.Group
	}{
		{ranks: 1, want: nil},
		{ranks: 4, want: []backend.Group{{}}},
		{ranks: 4, shard: true, want: nil},
		{ranks: 4, shard: true, split: backend.Group{Size: 4, Stride: 1}, want: nil},
		{ranks: 4, shard: true, split: backend.Group{Size: 1, Stride: 1}, want: []backend.Group{{}}},
		{ranks: 4, shard: true, split: backend.Group{Size: 2, Stride: 1}, want: []backend.Group{{Size: 2, Stride: 2}}},
		{ranks: 4, shard: true, split: backend.Group{Size: 2, Stride: 2}, want: []backend.Group{{Size: 2, Stride: 1}}},
		{ranks: 8, shard: true, split: backend.Group{Size: 2, Stride: 2}, want: []backend.Group{{Size: 2, Stride: 1}, {Size: 2, Stride: 4}}},
	} {
		f, d := rankOf(t, 0, c.ranks)
		v := backend.NewVars()
		o := update(v, "w")
		o.Shard, o.Split = c.shard, c.split
		p := v.Program("p")
		p.Add(o)
		list, err := d.Load(p)
		require.NoError(t, err)
		var groups []backend.Group
		for _, r := range transfersOf(f, list[0]) {
			require.Equal(t, broadcast, r.Kind)
			groups = append(groups, r.Group)
		}
		require.Equal(t, c.want, groups, "%+v", c)
	}
}
