package backend_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/ref"
	"octet/fp8"
)

func TestFind(t *testing.T) {
	register := func(name string, priority int, err error) {
		d := ref.Driver()
		d.Name, d.Priority, d.Available = name, priority, func(string) error { return err }
		t.Cleanup(backend.Register(d))
	}
	register("slow", 1000, nil)
	register("fast", 1001, nil)
	register("absent", 1002, errors.New("no such card"))

	d, device, err := backend.Find("absent:3")
	require.NoError(t, err)
	require.Equal(t, "absent", d.Name)
	require.Equal(t, "3", device)
	d, device, err = backend.Find("")
	require.NoError(t, err)
	require.Equal(t, "fast", d.Name, "the available driver of the highest priority")
	require.Empty(t, device)
	_, _, err = backend.Find("quick:1")
	require.ErrorContains(t, err, `unknown backend "quick" (known: absent, fast, slow`)
	_, _, err = backend.Find("fasst:1")
	require.ErrorContains(t, err, `unknown backend "fasst"; did you mean fast? (known: absent, fast, slow`)
	require.Equal(t, "absent", backend.Drivers()[0].Name)
}

// A driver that Find could not return, or that would replace another, panics at once.
func TestRegisterRefusesDrivers(t *testing.T) {
	d := ref.Driver()
	require.PanicsWithValue(t, `backend.Register: this program already has a driver "ref": choose another Driver.Name`, func() { backend.Register(d) })
	d.Name = "own"
	backend.Register(d)()
	backend.Register(d)() // the name is free again
	d.Name = "own:0"
	require.PanicsWithValue(t, `backend.Register: Driver.Name is "own:0": expected at most 40 lower-case letters, digits, - and _, the first a letter`, func() { backend.Register(d) })
	d.Name = "own"
	for _, set := range []func(*backend.Driver){func(d *backend.Driver) { d.Spec = nil }, func(d *backend.Driver) { d.Open = nil }} {
		lacking := d
		set(&lacking)
		require.PanicsWithValue(t, `backend.Register: driver "own" needs Spec and Open: set both`, func() { backend.Register(lacking) })
	}
	_, _, err := backend.Find("own")
	require.ErrorContains(t, err, `unknown backend "own"`)
}

// renamed is a device of the driver called name.
type renamed struct {
	backend.Backend
	name string
}

func (r renamed) Spec() backend.Spec {
	s := r.Backend.Spec()
	s.Backend = r.name
	return s
}

// full is a device without memory for variables.
type full struct{ renamed }

func (full) Load(...*backend.Program) ([]backend.Executable, error) {
	return nil, backend.ErrOutOfMemory
}

// Load lowers all programs and runs the result, with the variables that lowering adds.
func TestLoad(t *testing.T) {
	var lowered []string
	d := ref.Driver()
	d.Name, d.Priority, d.Lower = "lowering", -1, func(s backend.Spec, list []*backend.Program) ([]*backend.Program, error) {
		require.Equal(t, "lowering", s.Backend)
		one := list[0].Vars().Tensor(backend.Stash, "one", fp8.F32, 1)
		for i, p := range list {
			lowered = append(lowered, p.Name())
			q, err := backend.Rewrite(p, func(r *backend.Rewriter, n *backend.Node) {
				r.Add(n, &backend.Fill{Out: one, Value: 1})
				r.Add(n, &backend.Add{A: n.Op.(*backend.Fill).Out, B: one, Out: []backend.Cast{{Out: n.Op.(*backend.Fill).Out}}})
			})
			if err != nil {
				return nil, err
			}
			list[i] = q
		}
		return list, nil
	}
	t.Cleanup(backend.Register(d))
	device := ref.Open(nil, ref.Rounded)
	vars := backend.NewVars()
	x := vars.Tensor(backend.Stash, "x", fp8.F32, 1)
	p, q := vars.Program("p"), vars.Program("q")
	p.Add(&backend.Fill{Out: x})
	q.Add(&backend.Fill{Out: x})
	run, err := backend.Load(renamed{device, "lowering"}, p, q)
	require.NoError(t, err)
	require.Equal(t, []string{"p", "q"}, lowered)
	for i, r := range run {
		require.NoError(t, r.Run(t.Context()))
		got, err := device.Values(x)
		require.NoError(t, err)
		require.Equal(t, []float64{float64(i + 1)}, got)
	}

	broken := vars.Program("broken")
	broken.Add(&backend.Fill{})
	_, err = backend.Load(renamed{device, "lowering"}, p, broken)
	require.EqualError(t, err, "recording broken: fill: operand Out is missing")
	_, err = backend.Load(full{renamed{ref.Open(nil, ref.Rounded), "ref"}}, p)
	require.ErrorIs(t, err, backend.ErrOutOfMemory)
	_, err = backend.Load(renamed{device, "sinking"}, p)
	require.ErrorContains(t, err, `unknown backend "sinking"`)
}
