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
	driver := func(name string, rank int, err error) backend.Driver {
		return backend.Driver{Name: name, Priority: rank, Available: func(string) error { return err }}
	}
	backend.Register(driver("slow", 1000, nil))
	backend.Register(driver("fast", 1001, nil))
	backend.Register(driver("absent", 1002, errors.New("no such card")))

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
	backend.Register(backend.Driver{Name: "lowering", Priority: -1, Lower: func(s backend.Spec, list []*backend.Program) ([]*backend.Program, error) {
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
	}})
	device := ref.Open(1, ref.Rounded)[0]
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
	_, err = backend.Load(full{renamed{ref.Open(1, ref.Rounded)[0], "ref"}}, p)
	require.ErrorIs(t, err, backend.ErrOutOfMemory)
	_, err = backend.Load(renamed{device, "sinking"}, p)
	require.ErrorContains(t, err, `unknown backend "sinking"`)
}
