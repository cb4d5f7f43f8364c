package emu

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// oddShapes have wide rows, which are split, and narrow rows, which are grouped into
// tasks.
var oddShapes = [][2]int{{1, 1}, {1, 17}, {3, 17000}, {700, 33}, {50, 352}, {130, 1000}}

func TestQuantize(t *testing.T) {
	for _, shape := range oddShapes {
		rows, cols := shape[0], shape[1]
		tr := newTrial(t)
		values := tr.noise(rows * cols)
		values[rows*cols/2] = 1000
		x := tr.tensor("x", fp8.F32, values, rows, cols)
		c := tr.tensor("c", fp8.F32, []float32{1, 2, 0.5}, cols)
		scale := tr.tensor("scale", fp8.F32, []float32{16}, 1)
		amax := tr.tensor("amax", fp8.F32, []float32{0.25}, 1)
		control := tr.control(backend.Control{Seed: 5, Step: 7, Token: 11})
		nearest := tr.scaled(tr.tensor("nearest", fp8.E4M3, nil, rows, cols), 1)
		transposed := tr.scaled(tr.tensor("transposed", fp8.E4M3, nil, cols, rows), 1)
		random := tr.scaled(tr.tensor("random", fp8.E5M2, nil, rows, cols), 1)
		half := tr.tensor("half", fp8.BF16, nil, cols, rows)
		tr.program.Add(&backend.Quantize{X: x, ColScale: c, Out: []backend.Cast{
			{Out: nearest, Scale: scale, Amax: amax},
			{Out: transposed, Scale: scale, Transpose: true},
			{Out: random, Scale: scale, Control: control, Rounding: fp8.Stochastic, Tokens: true},
			{Out: half, Transpose: true},
		}})
		d := tr.run()

		key, top := fp8.StreamKey(5, 7, fp8.NameKey("random")), float32(0.25)
		colScales := []float32{1, 2, 0.5}
		codes := func(x *backend.Tensor) []byte { return d.memory[x] }
		for i, v := range values {
			row, col := i/cols, i%cols
			v *= colScales[col%3]
			top = max(top, float32(math.Abs(float64(v))))
			at, index := col*rows+row, uint64(11*cols+i)
			require.EqualValues(t, fp8.E4M3.Nearest(v*16, fp8.Saturate), codes(nearest)[i])
			require.EqualValues(t, fp8.E4M3.Nearest(v*16, fp8.Saturate), codes(transposed)[at])
			require.EqualValues(t, fp8.E5M2.Stochastic(v*16, fp8.Random(key, index), fp8.Saturate), codes(random)[i])
			require.EqualValues(t, fp8.BF16.Nearest(v, fp8.NonSaturating), uint16(codes(half)[2*at])|uint16(codes(half)[2*at+1])<<8)
		}
		require.EqualValues(t, top, d.values(amax)[0])
	}
}

// Quantize applies scale_inv in every format, and reads only a view's columns.
func TestQuantizeScaledViews(t *testing.T) {
	for _, dtype := range []fp8.DType{fp8.F32, fp8.BF16, fp8.F16} {
		tr := newTrial(t)
		base := tr.tensor("base", dtype, []float32{1, 2, 3, 4, 5, 6}, 2, 3)
		x := &backend.Tensor{Name: "view", DType: dtype, Shape: []int{2, 2}, Class: base.Class, Base: base, Offset: 1, LD: 3}
		tr.scaled(x, 0.5)
		wide := tr.tensor("wide", fp8.F32, nil, 2, 4)
		out := &backend.Tensor{Name: "out", DType: fp8.F32, Shape: []int{2, 2}, Class: wide.Class, Base: wide, Offset: 2, LD: 4}
		tr.program.Add(&backend.Quantize{X: x, Out: []backend.Cast{{Out: out}}})
		require.Equal(t, []float64{0, 0, 1, 1.5, 0, 0, 2.5, 3}, tr.run().values(wide), dtype)
	}
}

// The direct casts from BF16 and F16 to FP8 give the codes and amaxes of casts through
// FP32.
func TestQuantizeNarrow(t *testing.T) {
	for _, dtype := range []fp8.DType{fp8.BF16, fp8.F16} {
		for _, shape := range oddShapes {
			rows, cols := shape[0], shape[1]
			tr := newTrial(t)
			base := tr.tensor("base", dtype, tr.noise(rows*(cols+3)), rows, cols+3)
			x := &backend.Tensor{Name: "x", DType: dtype, Shape: []int{rows, cols}, Class: base.Class, Base: base, Offset: 2, LD: cols + 3}
			tr.scaled(x, 0.3)
			scale, other := tr.tensor("scale", fp8.F32, []float32{100}, 1), tr.tensor("other", fp8.F32, []float32{7}, 1)
			amax := tr.tensor("amax", fp8.F32, nil, 1)
			out := func(name string, d fp8.DType, rows, cols int) *backend.Tensor {
				return tr.scaled(tr.tensor(name, d, nil, rows, cols), 1)
			}
			casts := []backend.Cast{
				{Out: out("a", fp8.E4M3, rows, cols), Scale: scale, Amax: amax},
				{Out: out("b", fp8.E4M3, cols, rows), Scale: scale, Transpose: true},
				{Out: out("c", fp8.E4M3, cols, rows), Scale: other, Transpose: true},
				{Out: out("d", fp8.E5M2, cols, rows), Scale: scale, Transpose: true},
				{Out: out("e", fp8.E5M2, rows, cols), Scale: scale},
			}
			tr.program.Add(&backend.Quantize{X: x, Out: casts})
			d := tr.run()
			top := float32(0)
			for i, v := range float32s(d.values(x)) {
				at := i%cols*rows + i/cols
				top = max(top, float32(math.Abs(float64(v))))
				require.EqualValues(t, fp8.E4M3.Nearest(v*100, fp8.Saturate), d.memory[casts[0].Out][i])
				require.EqualValues(t, fp8.E4M3.Nearest(v*100, fp8.Saturate), d.memory[casts[1].Out][at])
				require.EqualValues(t, fp8.E4M3.Nearest(v*7, fp8.Saturate), d.memory[casts[2].Out][at])
				require.EqualValues(t, fp8.E5M2.Nearest(v*100, fp8.Saturate), d.memory[casts[3].Out][at])
				require.EqualValues(t, fp8.E5M2.Nearest(v*100, fp8.Saturate), d.memory[casts[4].Out][i])
			}
			require.EqualValues(t, top, d.values(amax)[0])
		}
	}
}

func TestAmax(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(-1))
	for _, shape := range oddShapes {
		rows, cols := shape[0], shape[1]
		tr := newTrial(t)
		x := tr.tensor("x", fp8.BF16, tr.noise(rows*cols), rows, cols)
		all, each := tr.tensor("all", fp8.F32, []float32{99}, 1), tr.tensor("each", fp8.F32, []float32{99}, cols)
		tr.program.Add(&backend.Amax{X: x, Out: all})
		tr.program.Add(&backend.Amax{X: x, Out: each})
		d := tr.run()
		want, top := make([]float64, cols), 0.0
		for i, v := range d.values(x) {
			want[i%cols] = max(want[i%cols], math.Abs(v))
			top = max(top, math.Abs(v))
		}
		require.Equal(t, want, d.values(each))
		require.Equal(t, top, d.values(all)[0])
	}
	tr := newTrial(t)
	x := tr.tensor("x", fp8.F32, []float32{1, -3, nan, inf, inf, 2}, 2, 3)
	all, each := tr.tensor("all", fp8.F32, nil, 1), tr.tensor("each", fp8.F32, nil, 3)
	tr.program.Add(&backend.Amax{X: x, Out: all})
	tr.program.Add(&backend.Amax{X: x, Out: each})
	d := tr.run()
	require.True(t, math.IsNaN(d.values(all)[0]), "NaN counts as larger than infinity")
	got := d.values(each)
	require.Equal(t, []float64{math.Inf(1), math.Inf(1)}, got[:2])
	require.True(t, math.IsNaN(got[2]))

	d, run := tr.load(2)
	require.NoError(t, run.Run(t.Context()))
	require.NoError(t, d.Write(x, make([]byte, x.Bytes())))
	require.NoError(t, run.Run(t.Context()))
	require.Equal(t, []float64{0, 0, 0, 0}, append(d.values(each), d.values(all)...), "a run does not depend on earlier runs")
}

func TestUpdateScale(t *testing.T) {
	inf := float32(math.Inf(1))
	history := []float32{
		1, 0, 3, inf,
		7, 0, 2, 1,
	}
	for _, c := range []struct {
		name        string
		skip        float32
		pow2, keep  bool
		scale, seen []float64
	}{
		{"exact, keep", 0, false, true, []float64{64, 9, float64(float32(448) / 3), 9}, []float64{7, 0, 4, math.Inf(1)}},
		{"power of two, keep", 0, true, true, []float64{64, 9, 128, 9}, []float64{7, 0, 4, math.Inf(1)}},
		{"power of two, reset", 0, true, false, []float64{64, 1, 128, 1}, []float64{7, 0, 4, math.Inf(1)}},
		{"skipped", 1, true, true, []float64{9, 9, 9, 9}, []float64{7, 0, 4, math.Inf(1)}},
	} {
		tr := newTrial(t)
		h := tr.tensor("history", fp8.F32, history, 2, 4)
		scale, inv := tr.tensor("scale", fp8.F32, []float32{9}, 4), tr.tensor("scale_inv", fp8.F32, []float32{9}, 4)
		seen := tr.tensor("seen", fp8.F32, []float32{0, 0, 4, 0}, 4)
		op := &backend.UpdateScale{History: h, Seen: seen, Scale: scale, ScaleInv: inv, Limit: 448, Pow2: c.pow2, Keep: c.keep}
		if c.keep {
			op.Skip = tr.tensor("skip", fp8.I32, []float32{c.skip}, 1)
		}
		tr.program.Add(op)
		d := tr.run()
		require.Equal(t, c.scale, d.values(scale), c.name)
		require.Equal(t, c.seen, d.values(seen), c.name)
		for i, s := range d.values(scale) {
			switch got := d.values(inv)[i]; {
			case s == 9:
			case math.IsInf(d.values(seen)[i], 1):
				require.True(t, math.IsNaN(got), c.name)
			default:
				require.EqualValues(t, 1/float32(s), got, c.name)
			}
		}
	}
}

func TestPushHistory(t *testing.T) {
	for _, skip := range []float32{0, 1} {
		tr := newTrial(t)
		base := tr.tensor("base", fp8.F32, []float32{1, 2, 100, 3, 4, 100, 5, 6, 100}, 3, 3)
		h := &backend.Tensor{Name: "history", DType: fp8.F32, Shape: []int{3, 2}, Class: base.Class, Base: base, LD: 3}
		tr.program.Add(&backend.PushHistory{
			Value:   tr.tensor("value", fp8.F32, []float32{8, 9}, 2),
			Skip:    tr.tensor("skip", fp8.I32, []float32{skip}, 1),
			History: h,
		})
		d, x := tr.load(1)
		require.NoError(t, x.Run(t.Context()))
		want := []float64{8, 9, 100, 1, 2, 100, 3, 4, 100}
		if skip != 0 {
			want = []float64{1, 2, 100, 3, 4, 100, 5, 6, 100}
		}
		require.Equal(t, want, d.values(base))
	}
}

func TestFill(t *testing.T) {
	tr := newTrial(t)
	wide := tr.tensor("wide", fp8.BF16, []float32{1}, 3, 4)
	view := &backend.Tensor{Name: "view", DType: fp8.BF16, Shape: []int{3, 2}, Class: wide.Class, Base: wide, Offset: 1, LD: 4}
	long := tr.tensor("long", fp8.F32, nil, 30001)
	tr.program.Add(&backend.Fill{Out: view, Value: -3})
	tr.program.Add(&backend.Fill{Out: long, Value: 0.1})
	d := tr.run()
	require.Equal(t, []float64{1, -3, -3, 1, 1, -3, -3, 1, 1, -3, -3, 1}, d.values(wide))
	for _, v := range d.values(long) {
		require.EqualValues(t, float32(0.1), v)
	}
}

func float32s(x []float64) []float32 {
	y := make([]float32, len(x))
	for i, v := range x {
		y[i] = float32(v)
	}
	return y
}
