//go:build gaudi && cgo && linux

package standin

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// threaded runs all multithreaded kernels, on operands that are large enough for several
// threads, and returns their outputs.
func threaded(t *testing.T, model, threads int) map[string][]byte {
	t.Setenv("STANDIN_THREADS", fmt.Sprint(threads))
	s := open(t, model)
	random := rand.New(rand.NewPCG(9, 10))
	results := map[string][]byte{}
	run := func(guid string, params []byte, out func(g *graph) []*tensor, in func(g *graph) []*tensor) {
		g := s.graph(model)
		outs := out(g)
		g.add(guid, params, outs, in(g)...)
		g.run()
		for i, x := range outs {
			results[fmt.Sprint(guid, len(results), " output ", i)] = g.bytesOf(x)
		}
	}
	outs := func(typ uint32, sizes ...uint64) func(g *graph) []*tensor {
		return func(g *graph) []*tensor { return []*tensor{g.out(typ, sizes...)} }
	}

	const m, n, k = 150, 90, 70
	e4m3 := formatOf(typeE4M3, model)
	a, b := randomCodes(random, e4m3, m*k), randomCodes(random, e4m3, k*n)
	a.codes[7*k], b.codes[5] = 0x7f, 0x7f // NaN
	run("fp8_gemm_bf16", nil, outs(typeBF16, n, m), func(g *graph) []*tensor {
		return []*tensor{g.in(typeE4M3, a.codes, k, m), g.in(typeE4M3, b.codes, n, k), g.floats(normal(random, 1), 1), g.floats(normal(random, 1), 1)}
	})
	run("gemm", []byte{1, 0}, outs(typeF32, n, m), func(g *graph) []*tensor {
		return []*tensor{g.floats(normal(random, m*k), m, k), g.floats(normal(random, k*n), n, k)}
	})

	const rows, columns = 300, 500
	matrix := func(g *graph) *tensor { return g.floats(normal(random, rows*columns), columns, rows) }
	run("mult_fwd_f32", nil, outs(typeF32, columns, rows), func(g *graph) []*tensor {
		return []*tensor{matrix(g), g.floats(normal(random, rows), 1, rows)}
	})
	run("cast_f32_to_bf16", nil, outs(typeBF16, columns, rows), func(g *graph) []*tensor { return []*tensor{matrix(g)} })
	for _, guid := range []string{"reduce_sum_multi_dim_fwd_f32", "reduce_max_multi_dim_fwd_f32"} {
		run(guid, reduction(1, true), outs(typeF32, 1, rows), func(g *graph) []*tensor { return []*tensor{matrix(g)} })
		run(guid, reduction(2, true), outs(typeF32, columns, 1), func(g *graph) []*tensor { return []*tensor{matrix(g)} })
		run(guid, reduction(3, true), outs(typeF32, 1, 1), func(g *graph) []*tensor { return []*tensor{matrix(g)} })
	}
	for _, rounding := range []uint32{0, 3} { // to nearest, stochastic
		run("convert_to_fp8_hybrid_f32", castParams(rounding), func(g *graph) []*tensor {
			return []*tensor{g.out(typeE5M2, columns, rows), g.out(typeE4M3, columns, rows), g.out(typeF32, 1)}
		}, func(g *graph) []*tensor {
			return []*tensor{matrix(g), g.floats(normal(random, 1), 1), g.floats(normal(random, 1), 1)}
		})
	}

	const width, time, heads, shared, batch = 16, 40, 2, 3, 2 // 3 query heads share a key head
	q := []uint64{width, time, shared, heads, batch}
	keys := []uint64{width, time, 1, heads, batch}
	given := func(g *graph, sizes []uint64) *tensor {
		n := 1
		for _, size := range sizes {
			n *= int(size)
		}
		return g.in(typeBF16, bf16Bytes(normal(random, n)), sizes...)
	}
	params := make([]byte, 32)
	binary.LittleEndian.PutUint32(params, math.Float32bits(0.25))
	params[4] = 1 // causal
	statistics := []uint64{1, time, shared, heads, batch}
	run("sdpa_recomp_fwd_bf16", params, func(g *graph) []*tensor {
		return []*tensor{g.out(typeBF16, q...), g.out(typeBF16, statistics...), g.out(typeF32, statistics...)}
	}, func(g *graph) []*tensor { return []*tensor{given(g, q), given(g, keys), given(g, keys)} })
	run("sdpa_recomp_bwd_bf16", params, func(g *graph) []*tensor {
		return []*tensor{g.out(typeBF16, q...), g.out(typeBF16, keys...), g.out(typeBF16, keys...)}
	}, func(g *graph) []*tensor {
		return []*tensor{given(g, q), given(g, q), given(g, keys), given(g, keys), nil, given(g, statistics), g.floats(normal(random, time*shared*heads*batch), statistics...)}
	})
	return results
}

// Results, with stochastic rounding and sums, have the same bits on any number of threads.
func TestBitsOnAnyThreads(t *testing.T) {
	for _, model := range []int{gaudi2, gaudi3} {
		want := threaded(t, model, 1)
		require.Len(t, want, 22)
		for _, threads := range []int{2, 3, 7} {
			require.Equal(t, want, threaded(t, model, threads), "%d threads", threads)
		}
	}
}
