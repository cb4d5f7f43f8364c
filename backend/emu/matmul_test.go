package emu

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

func TestMatMul(t *testing.T) {
	tr := newTrial(t)
	const m, n, k = 5, 7, 33
	a := tr.scaled(tr.tensor("a", fp8.E4M3, tr.noise(m*k), k, m), 0.5)
	b := tr.scaled(tr.tensor("b", fp8.E5M2, tr.noise(k*n), n, k), 0.25)
	rowScale := tr.tensor("row", fp8.F32, []float32{1, 2, 4}, m)
	colScale := tr.tensor("col", fp8.F32, []float32{3, 1}, n)
	residual := tr.tensor("residual", fp8.BF16, tr.noise(m*n), m, n)
	outScale := tr.tensor("scale", fp8.F32, []float32{8}, 1)
	amax := tr.tensor("amax", fp8.F32, nil, 1)
	codes := tr.scaled(tr.tensor("codes", fp8.E4M3, nil, m, n), 1.0/8)
	first, sum := tr.tensor("first", fp8.F32, nil, m, n), tr.tensor("sum", fp8.F32, []float32{100}, m, n)
	tr.program.Add(&backend.MatMul{
		A: a, B: b, TransA: true, TransB: true, RowScale: rowScale, ColScale: colScale,
		Residual: residual, Out: codes, OutScale: outScale, Amax: amax,
	})
	tr.program.Add(&backend.MatMul{A: a, B: b, TransA: true, TransB: true, Out: first})
	tr.program.Add(&backend.MatMul{A: a, B: b, TransA: true, TransB: true, Out: sum, Accumulate: true})
	tr.run()
	d, x := tr.load(2)
	require.NoError(t, x.Run(t.Context()))

	as, bs, rs := d.values(a), d.values(b), d.values(residual)
	plain, scaled := make([]float64, m*n), make([]float64, m*n)
	maximum := 0.0
	for i := range m {
		for j := range n {
			for l := range k {
				plain[i*n+j] += as[l*m+i] * bs[j*k+l]
			}
			scaled[i*n+j] = plain[i*n+j]*[]float64{1, 2, 4}[i%3]*[]float64{3, 1}[j%2] + rs[i*n+j]
			maximum = max(maximum, scaled[i*n+j], -scaled[i*n+j])
		}
	}
	near(t, plain, d.values(first), 1e-6, "plain")
	near(t, scaled, d.values(codes), 0.04, "codes")
	require.InEpsilon(t, maximum, d.values(amax)[0], 1e-6)
	for i := range plain {
		plain[i] += 100
	}
	near(t, plain, d.values(sum), 1e-6, "accumulated")

	// Scales are read in each run.
	require.NoError(t, d.Write(a.Scale, []byte{0, 0, 0x80, 0x3f}))
	before := d.values(first)
	require.NoError(t, x.Run(t.Context()))
	for i, v := range d.values(first) {
		require.Equal(t, 2*before[i], v)
	}
}
