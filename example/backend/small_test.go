package small

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/conformance"
	"octet/backend/world"
	"octet/fp8"
)

// The backend passes the cases of its ops and refuses all others.
func TestConformance(t *testing.T) {
	d, device, err := backend.Find("small")
	require.NoError(t, err)
	passed := map[string]int{}
	for c := range conformance.Cases() {
		op, _, _ := strings.Cut(c.Name, "/")
		switch err := c.Run(t.Context(), d, device); op {
		case "fill", "sum", "amax":
			require.NoError(t, err)
			passed[op]++
		default:
			require.ErrorIs(t, err, backend.ErrUnsupported, c.Name)
		}
	}
	require.Len(t, passed, 3)
}

func TestRefusals(t *testing.T) {
	_, err := backend.Open("small:fast", backend.Options{})
	require.ErrorContains(t, err, `unknown device "fast" of backend small`)
	_, err = backend.Open("small", backend.Options{Group: world.Local(2, time.Minute)[0]})
	require.ErrorIs(t, err, backend.ErrUnsupported)

	dev, err := backend.Open("small", backend.Options{})
	require.NoError(t, err)
	v := backend.NewVars()
	x := v.Tensor(backend.Stash, "x", fp8.F32, 4, 4)
	p := v.Program("p")
	p.Scope("head").Add(&backend.MatMul{A: x, B: x, Out: v.Tensor(backend.Output, "y", fp8.F32, 4, 4)})
	_, err = backend.Load(dev, p)
	require.ErrorIs(t, err, backend.ErrUnsupported)
	require.EqualError(t, err, "head: matmul: unsupported by backend small: *backend.MatMul")

	late := v.Tensor(backend.Output, "late", fp8.F32, 1)
	q := v.Program("q")
	q.Add(&backend.Fill{Out: x, Value: 3})
	q.Add(&backend.Sum{X: x.Slice("row", 4, 4), Out: late})
	run, err := backend.Load(dev, q)
	require.NoError(t, err)
	require.NoError(t, run[0].Run(t.Context()))
	raw := make([]byte, 4)
	require.NoError(t, dev.Read(late, raw))
	require.Equal(t, fp8.AppendFloats(nil, 12), raw)
	require.NoError(t, dev.Close())
	require.ErrorIs(t, dev.Read(late, raw), backend.ErrClosed)
	require.ErrorIs(t, run[0].Run(t.Context()), backend.ErrClosed)
}

// Tools that observe ops work on any backend.
func TestFindNonFinite(t *testing.T) {
	dev, err := backend.Open("small", backend.Options{})
	require.NoError(t, err)
	v := backend.NewVars()
	p := v.Program("p")
	x := p.Temp("x", fp8.F32, 4)
	p.Scope("a").Add(&backend.Fill{Out: x, Value: math.MaxFloat32})
	p.Scope("b").Add(&backend.Sum{X: x, Out: v.Tensor(backend.Output, "sum", fp8.F32, 1)})
	run, err := backend.Load(dev, p)
	require.NoError(t, err)
	found, err := backend.FindNonFinite(t.Context(), run[0])
	require.NoError(t, err)
	require.Equal(t, "b: sum", found.Node.Path())
}
