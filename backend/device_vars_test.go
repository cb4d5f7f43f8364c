package backend_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// Load passes each variable to allocate once, again only if allocate failed.
func TestDeviceVars(t *testing.T) {
	var b backend.DeviceVars
	var got []*backend.Tensor
	take := func(fresh []*backend.Tensor) error { got = fresh; return nil }
	require.NoError(t, b.Load(nil, take), "no programs")
	v := backend.NewVars()
	x := v.Tensor(backend.Stash, "x", fp8.F32, 4, 4)
	p := v.Program("p")
	require.ErrorContains(t, b.CheckCopy(x, 64), "tensor x:fp32[4, 4] has no memory: load a program over its variables first")
	full := errors.New("full")
	require.ErrorIs(t, b.Load([]*backend.Program{p}, func([]*backend.Tensor) error { return full }), full)
	require.ErrorContains(t, b.CheckCopy(x, 64), "has no memory")
	require.NoError(t, b.Load([]*backend.Program{p}, take))
	require.Equal(t, []*backend.Tensor{x}, got)
	late := v.Tensor(backend.Stash, "late", fp8.BF16, 2)
	require.ErrorContains(t, b.CheckCopy(late, 4), "has no memory")
	require.NoError(t, b.Load([]*backend.Program{p}, take))
	require.Equal(t, []*backend.Tensor{late}, got)
	require.NoError(t, b.Load([]*backend.Program{p}, func([]*backend.Tensor) error { return full }), "nothing to allocate")

	require.NoError(t, b.CheckCopy(late, 4))
	require.NoError(t, b.CheckCopy(x.RowRange(1, 2), 32))
	require.ErrorContains(t, b.CheckCopy(x, 60), "has 64 contiguous bytes, got a buffer of 60")
	require.ErrorContains(t, b.CheckCopy(x.Columns("left", 0, 2), 32), "contiguous")
	require.ErrorContains(t, b.CheckCopy(x.RowRange(3, 2), 32), "reaches outside")
	require.ErrorContains(t, b.Load([]*backend.Program{p, backend.NewVars().Program("q")}, take), "program q: its variables are not those")
	broken := v.Program("broken")
	broken.Add(&backend.Fill{})
	require.ErrorContains(t, b.Load([]*backend.Program{broken}, take), "program broken: fill: operand Out is missing")

	require.True(t, b.Close())
	require.False(t, b.Close())
	require.ErrorIs(t, b.Load([]*backend.Program{p}, take), backend.ErrClosed)
	require.ErrorIs(t, b.CheckCopy(x, 64), backend.ErrClosed)
}
