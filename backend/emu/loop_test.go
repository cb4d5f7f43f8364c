package emu

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// weighted is Y = X ⊙ W, by element, or divided by the sum of |X| over a row. X may have
// any float format.
type weighted struct {
	backend.Custom
	X *backend.Tensor `op:"in"`
	W *backend.Tensor `op:"in"` // one row
	Y []backend.Cast  `op:"cast"`

	Normalized bool
}

func (o *weighted) Check(c *backend.Check) { c.Casts("Y", o.Y, o.X.Rows(), o.X.Cols()) }

func (o *weighted) Reference(backend.Arguments) { panic("emu runs loops alone") }

func (o *weighted) Loop() backend.Loop {
	return backend.Loop{
		In: []*backend.Tensor{o.X, o.W}, Out: [][]backend.Cast{o.Y}, WholeRows: o.Normalized,
		F: func(out, in [][]float32) {
			sum := float32(1)
			if o.Normalized {
				for _, x := range in[0] {
					sum += max(x, -x)
				}
			}
			for i, x := range in[0] {
				out[0][i] = x * in[1][i] / sum
			}
		},
	}
}

// A loop gives the same bits on any number of threads, allocates nothing and reads
// scaled codes; its casts are those of Quantize.
func TestLoop(t *testing.T) {
	const rows, cols = 70, 2100
	for _, normalized := range []bool{false, true} {
		for _, d := range []fp8.DType{fp8.F32, fp8.BF16, fp8.F16, fp8.E4M3} {
			tr := newTrial(t)
			x := tr.tensor("x", d, tr.noise(rows*cols), rows, cols)
			if d.Size() < 4 && d != fp8.BF16 {
				tr.scaled(x, 0.25)
			}
			w := tr.tensor("w", fp8.BF16, tr.noise(cols), cols)
			control := tr.control(backend.Control{Seed: 5, Step: 9})
			casts := func(name string) []backend.Cast {
				amax, scale := tr.tensor(name+".amax", fp8.F32, nil, 1), tr.tensor(name+".scale", fp8.F32, []float32{30}, 1)
				return []backend.Cast{
					{
						Out: tr.scaled(tr.tensor(name+".s", fp8.E5M2, nil, rows, cols), 1), Scale: scale, Amax: amax,
						Rounding: fp8.Stochastic, Control: control, Stream: "same",
					},
					{Out: tr.scaled(tr.tensor(name+".t", fp8.E4M3, nil, cols, rows), 1), Scale: scale, Transpose: true},
				}
			}
			wide, fused, separate := tr.tensor("wide", fp8.F32, nil, rows, cols), casts("fused"), casts("separate")
			tr.program.Add(&weighted{X: x, W: w, Y: append([]backend.Cast{{Out: wide}}, fused...), Normalized: normalized})
			tr.program.Add(&backend.Quantize{X: wide, Out: separate})
			dev := tr.run()
			for i := range fused {
				require.Equal(t, dev.memory[separate[i].Out], dev.memory[fused[i].Out])
			}
			require.Equal(t, dev.memory[separate[0].Amax], dev.memory[fused[0].Amax])

			xs, ws, got := dev.values(x), dev.values(w), dev.values(wide)
			for r := range rows {
				sum := 1.0
				for _, v := range xs[r*cols : (r+1)*cols] {
					if normalized {
						sum += math.Abs(v)
					}
				}
				for i := range cols {
					require.InDelta(t, xs[r*cols+i]*ws[i]/sum, got[r*cols+i], 1e-5)
				}
			}
		}
	}
}

type referenceAlone struct {
	backend.Custom
	Y *backend.Tensor `op:"out"`
}

func (o *referenceAlone) Check(*backend.Check)        {}
func (o *referenceAlone) Reference(backend.Arguments) {}

func TestRefusesAnOpWithAReferenceAlone(t *testing.T) {
	dev, err := backend.Open("emu", backend.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	vars := backend.NewVars()
	p := vars.Program("p")
	p.Add(&referenceAlone{Y: p.Temp("y", fp8.F32, 3)})
	_, err = dev.Load(p)
	require.ErrorIs(t, err, backend.ErrUnsupported)
	require.ErrorContains(t, err, "*emu.referenceAlone; a custom op must implement backend.Looped")
}
