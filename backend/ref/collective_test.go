package ref

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/world"
	"octet/fp8"
)

// openRanks returns the backends of n ranks.
func openRanks(n int) (list []*Backend) {
	for _, g := range world.Local(n, time.Minute) {
		list = append(list, Open(g, Rounded))
	}
	return list
}

// Three ranks have one row each. Sums are computed in ascending order of rank and rounded
// once.
func TestCollectivesByHand(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	given := [][]float64{{1, -2, 3, 1 << 24, nan, 5}, {10, 20, -30, 1, 7, -inf}, {100, 200, 300, 1, 2, 1}}
	for _, test := range []struct {
		name string
		op   func(x, out *backend.Tensor) backend.Op
		n    int // elements of out
		want [][]float64
	}{
		{"sum", func(x, _ *backend.Tensor) backend.Op { return &backend.AllReduce{X: x} }, 6, [][]float64{
			{111, 218, 273, 1<<24 + 2, nan, -inf}, {111, 218, 273, 1<<24 + 2, nan, -inf}, {111, 218, 273, 1<<24 + 2, nan, -inf},
		}},
		{"maximum of magnitudes", func(x, _ *backend.Tensor) backend.Op { return &backend.AllReduce{X: x, Reduce: backend.ReduceMax} }, 6, [][]float64{
			{100, 200, 300, 1 << 24, nan, inf}, {100, 200, 300, 1 << 24, nan, inf}, {100, 200, 300, 1 << 24, nan, inf},
		}},
		{"reduce-scatter", func(x, out *backend.Tensor) backend.Op { return &backend.ReduceScatter{X: x, Out: out} }, 2, [][]float64{
			{111, 218}, {273, 1<<24 + 2}, {nan, -inf},
		}},
		{"gather", func(x, out *backend.Tensor) backend.Op {
			return &backend.AllGather{X: x.Slice("first", 0, 1), Out: out}
		}, 3, [][]float64{{1, 10, 100}, {1, 10, 100}, {1, 10, 100}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			ranks := openRanks(3)
			results := make([]*backend.Tensor, len(ranks))
			done := make(chan error, len(ranks))
			for i, b := range ranks {
				vars := backend.NewVars()
				x, out := vars.Tensor(backend.Stash, "x", fp8.F32, 6), vars.Tensor(backend.Stash, "out", fp8.F32, test.n)
				p := vars.Program("p")
				op := test.op(x, out)
				p.Add(op)
				run, err := b.Load(p)
				require.NoError(t, err)
				require.NoError(t, b.SetValues(x, given[i]))
				results[i] = out
				if _, inPlace := op.(*backend.AllReduce); inPlace {
					results[i] = x
				}
				go func() { done <- run[0].Run(t.Context()) }()
			}
			for range ranks {
				require.NoError(t, <-done)
			}
			for i, b := range ranks {
				got, err := b.Values(results[i])
				require.NoError(t, err)
				// Compared as text, because NaN is not equal to itself.
				require.Equal(t, fmt.Sprint(test.want[i]), fmt.Sprint(got), "rank %d", i)
			}
		})
	}
}
