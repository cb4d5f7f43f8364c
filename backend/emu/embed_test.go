package emu

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

func TestEmbed(t *testing.T) {
	tr := newTrial(t)
	table := tr.tensor("table", fp8.BF16, tr.noise(5*70), 5, 70)
	// The ids are columns 1 and 2 of a matrix, as shifted targets are.
	words := tr.tensor("words", fp8.I32, []float32{9, 4, 0, 9, 1, 4, 9, 5, -1}, 3, 3)
	ids := &backend.Tensor{Name: "ids", DType: fp8.I32, Shape: []int{3, 2}, Class: words.Class, Base: words, Offset: 1, LD: 3}
	out := tr.tensor("out", fp8.BF16, nil, 6, 70)
	tr.program.Add(&backend.Embed{Table: table, IDs: ids, Out: []backend.Cast{{Out: out}}})
	d := tr.run()
	rows, got := d.values(table), d.values(out)
	for token, id := range []int{4, 0, 1, 4} {
		require.Equal(t, rows[id*70:(id+1)*70], got[token*70:(token+1)*70])
	}
	for _, v := range got[4*70:] {
		require.True(t, math.IsNaN(v), "a token outside the table")
	}
}

func TestEmbedGrad(t *testing.T) {
	for _, accumulate := range []bool{false, true} {
		tr := newTrial(t)
		const tokens, vocab, cols = 300, 7, 70
		id := func(token int) int { return token * token % 6 } // row 6 is never touched
		ids := make([]float32, tokens)
		for i := range ids {
			ids[i] = float32(id(i))
		}
		dout := tr.tensor("dout", fp8.F32, tr.noise(tokens*cols), tokens, cols)
		wide := tr.tensor("wide", fp8.F32, []float32{2}, vocab, cols+3)
		table := &backend.Tensor{Name: "dtable", DType: fp8.F32, Shape: []int{vocab, cols}, Class: wide.Class, Base: wide, LD: cols + 3}
		tr.program.Add(&backend.EmbedGrad{
			IDs: tr.tensor("ids", fp8.I32, ids, tokens), DOut: dout, DTable: table, Accumulate: accumulate,
		})
		d := tr.run()
		want := make([]float32, vocab*(cols+3))
		for i := range want {
			if accumulate || i%(cols+3) >= cols {
				want[i] = 2
			}
		}
		grad := d.values(dout)
		for token := range tokens {
			for c := range cols {
				want[id(token)*(cols+3)+c] += float32(grad[token*cols+c])
			}
		}
		for i, v := range d.values(wide) {
			require.EqualValues(t, want[i], v, "tokens are added in ascending order, gaps stay")
		}
	}
}
