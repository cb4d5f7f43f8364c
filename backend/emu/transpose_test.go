package emu

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// Rows may be stored in any order and in pieces.
func TestStrips(t *testing.T) {
	const rows, cols = 150, 40
	for _, dtype := range []fp8.DType{fp8.F32, fp8.BF16, fp8.F16, fp8.E4M3} {
		tr := newTrial(t)
		wide := tr.tensor("wide", dtype, nil, cols, rows+9)
		out := &backend.Tensor{Name: "out", DType: dtype, Shape: []int{cols, rows}, Class: wide.Class, Base: wide, Offset: 4, LD: rows + 9}
		if dtype == fp8.F16 || dtype == fp8.E4M3 {
			tr.scaled(out, 1)
		}
		amax := tr.tensor("amax", fp8.F32, nil, 1)
		tr.program.Add(&backend.Quantize{
			X:   tr.tensor("x", fp8.F32, nil, rows, cols),
			Out: []backend.Cast{{Out: out, Amax: amax, Transpose: true}},
		})
		d, _ := tr.load(2)
		b := &binder{device: d}
		e := b.emitter(tr.program.Nodes()[0].Op.(*backend.Quantize).Out, cols)
		value := func(row, col int) float32 { return dtype.Float32(dtype.Nearest(float32(row+col%13), fp8.Saturate)) }
		store := func(worker, row, col, n int) {
			x := make([]float32, n)
			for i := range x {
				x[i] = value(row, col+i)
			}
			e.store(worker, row, col, x)
		}
		e.begin()
		for row := range 100 { // more than a strip
			store(0, row, 0, 24)
		}
		for row := 99; row >= 0; row-- { // in descending order
			store(1, row, 24, 16)
		}
		for row := 100; row < rows; row++ { // by alternating workers
			store(row%2, row, 0, 10)
			store(row%2, row, 10, 30)
		}
		e.end()
		for i, v := range d.values(out) {
			require.EqualValues(t, value(i%rows, i/rows), v, "%s: column %d, row %d", dtype, i/rows, i%rows)
		}
		for i, v := range d.values(wide) {
			if at := i % (rows + 9); at < 4 || at >= rows+4 {
				require.Zero(t, v, "%s: written beyond the view", dtype)
			}
		}
		require.EqualValues(t, value(rows-1, 12), d.values(amax)[0])
	}
}

// A large result is stored past the caches, in either orientation and in both.
func TestResultsStream(t *testing.T) {
	const rows, cols = 2048, streamBytes / 2048
	tr := newTrial(t)
	noise := tr.noise(251)
	for i, v := range noise {
		noise[i] = fp8.BF16.Float32(fp8.BF16.Nearest(v, fp8.NonSaturating)) // exact in both formats
	}
	var rowwise, transposed []*backend.Tensor
	for i, dtype := range []fp8.DType{fp8.F32, fp8.BF16} {
		x := tr.tensor(fmt.Sprintf("x%d", i), dtype, noise, rows, cols)
		one := tr.scaled(tr.tensor(fmt.Sprintf("one%d", i), fp8.E4M3, nil, rows, cols), 1)
		both := tr.scaled(tr.tensor(fmt.Sprintf("both%d", i), fp8.E4M3, nil, rows, cols), 1)
		columnwise := tr.scaled(tr.tensor(fmt.Sprintf("transposed%d", i), fp8.E4M3, nil, cols, rows), 1)
		tr.program.Add(&backend.Quantize{X: x, Out: []backend.Cast{{Out: one}}})
		tr.program.Add(&backend.Quantize{X: x, Out: []backend.Cast{{Out: both}, {Out: columnwise, Transpose: true}}})
		rowwise, transposed = append(rowwise, one, both), append(transposed, columnwise)
	}
	d, run := tr.load(2)
	require.NoError(t, run.Run(t.Context()))
	want := make([]byte, rows*cols)
	for i := range want {
		if i < len(noise) {
			want[i] = byte(fp8.E4M3.Nearest(noise[i], fp8.Saturate))
		} else {
			want[i] = want[i-len(noise)]
		}
	}
	for _, out := range rowwise {
		require.True(t, slices.Equal(want, d.memory[out]), out.Name)
	}
	for _, out := range transposed {
		for i, code := range d.memory[out] {
			if col, row := i/rows, i%rows; code != want[row*cols+col] {
				t.Fatalf("%s: row %d, column %d: %#x, not %#x", out.Name, row, col, code, want[row*cols+col])
			}
		}
	}
}
