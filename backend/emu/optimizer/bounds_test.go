package optimizer

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/backend/emu/simd"
	"octet/fp8"
)

// AdamW does not read a block without large values: a NaN written there directly does
// not reach the amaxes.
func TestAdamWSkipsBlocks(t *testing.T) {
	if !haveAVX2 {
		t.Skip("no kernels for extents")
	}
	a := testAdamW([3]fp8.DType{fp8.F16, fp8.E4M3, fp8.E5M2}, 7*spanElems+extentBlock)
	param, master := &a.Params[0], &a.Params[0].States[0]
	const quiet = 2*spanElems + extentBlock
	clear(master.U16[quiet:][:extentBlock])
	clear(param.States[1].U8[quiet:][:extentBlock])
	clear(param.Grad.F32[quiet:][:extentBlock])
	p := pool.New(2)
	defer p.Close()
	update := a.Bind(p)
	norm := SumSquares(p, []memory.Matrix{param.Grad}, []*Extents{param.Extents}, make([]float32, 1))
	run := func() {
		norm()
		update()
	}
	run()

	master.U16[quiet+7] = 0x7e00
	run()
	require.True(t, isFinite(a.Amaxes[0]))

	master.U16[quiet+7] = 0x7e00
	master.Extents.Forget()
	run()
	require.False(t, isFinite(a.Amaxes[0]))
	require.False(t, a.Params[0].States[1].Extents.known, "NaN codes have no extents")
}

// Maxima with an infinity bound nothing: new values may be NaN.
func TestAdamWBoundsAreFinite(t *testing.T) {
	var a bounds
	a.begin(&simd.AdamW{}, &[3]float32{})
	before := a.top
	a.found([3]float32{1, float32(math.Inf(1)), 1})
	require.Equal(t, before, a.top)
}

// Bounds are not used if a coefficient or a scale_inv is negative or NaN.
func TestAdamWBoundsNeedMonotonicUpdates(t *testing.T) {
	known := &Extents{known: true}
	a := bounds{master: known, m1: known, m2: known, grad: known}
	usable := func(edit func(r *simd.AdamW, inv *[3]float32)) bool {
		r, inv := simd.AdamW{Coef: 1, Beta1: 1, Rest1: 1, Beta2: 1, Rest2: 1, Decay: 1, Rate: 1, RootScale: 1, Epsilon: 1}, [3]float32{1, 1, 1}
		edit(&r, &inv)
		a.begin(&r, &inv)
		return a.usable
	}
	require.True(t, usable(func(*simd.AdamW, *[3]float32) {}))
	for _, x := range []float32{-1, float32(math.NaN())} {
		require.False(t, usable(func(r *simd.AdamW, _ *[3]float32) { r.Coef = x }))
		require.False(t, usable(func(r *simd.AdamW, _ *[3]float32) { r.Decay = x }))
		require.False(t, usable(func(r *simd.AdamW, _ *[3]float32) { r.Rate = x }))
		for i := range 3 {
			require.False(t, usable(func(_ *simd.AdamW, inv *[3]float32) { inv[i] = x }))
		}
	}
}
