package conformance_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/conformance"
	_ "octet/backend/emu"
	"octet/fp8"
)

// product is Out = A ⊙ B. Its loop has the relative error Error.
type product struct {
	backend.Custom
	A     *backend.Tensor `op:"in"`
	B     *backend.Tensor `op:"in"`
	Out   []backend.Cast  `op:"cast"`
	Error float32
}

func (o *product) Check(*backend.Check) {}

func (o *product) Reference(a backend.Arguments) {
	y, b := a.Read(o.A), a.Read(o.B)
	for i := range y {
		y[i] *= b[i]
	}
	a.Cast(o.Out, y, o.A.Cols())
}

func (o *product) Loop() backend.Loop {
	return backend.Loop{In: []*backend.Tensor{o.A, o.B}, Out: [][]backend.Cast{o.Out}, F: func(out, in [][]float32) {
		for i, x := range in[0] {
			out[0][i] = x * in[1][i] * (1 + o.Error)
		}
	}}
}

// GatedNorm is H, Gate = halves of X, Out = H/√(mean(H²)+1) ⊙ Gain and Max = max |Gate|:
// operands of different widths.
type GatedNorm struct {
	backend.Custom
	X    *backend.Tensor `op:"in"`
	Gain *backend.Tensor `op:"in"`
	Out  []backend.Cast  `op:"cast"`
	Max  *backend.Tensor `op:"out"`
}

func (o *GatedNorm) Check(c *backend.Check) {
	n := o.X.Cols() / 2
	c.Matrix("X", o.X, o.X.Rows(), 2*n)
	c.Vector("Gain", o.Gain, n)
	c.Casts("Out", o.Out, o.X.Rows(), n)
	c.Matrix("Max", o.Max, o.X.Rows(), 1)
}

func (o *GatedNorm) Reference(a backend.Arguments) {
	n := o.Gain.Elems()
	x, gain, out, largest := a.Read(o.X), a.Read(o.Gain), make([]float64, o.X.Rows()*n), make([]float64, o.X.Rows())
	for r := range largest {
		row, sum := x[2*n*r:2*n*(r+1)], 0.0
		for i, h := range row[:n] {
			sum += h * h
			largest[r] = max(largest[r], math.Abs(row[n+i]))
		}
		for i, h := range row[:n] {
			out[n*r+i] = h / math.Sqrt(sum/float64(n)+1) * gain[i]
		}
	}
	a.Cast(o.Out, out, n)
	a.Store(o.Max, largest)
}

func (o *GatedNorm) Loop() backend.Loop {
	f := func(out, in [][]float32) {
		gain, sum, largest := in[1], 0.0, float32(0)
		n := len(gain)
		for i, h := range in[0][:n] {
			sum += float64(h) * float64(h)
			largest = fp8.MaxAmax(largest, in[0][n+i])
		}
		for i, h := range in[0][:n] {
			out[0][i] = float32(float64(h) / math.Sqrt(sum/float64(n)+1) * float64(gain[i]))
		}
		out[1][0] = largest
	}
	return backend.Loop{In: []*backend.Tensor{o.X, o.Gain}, Out: [][]backend.Cast{o.Out, {{Out: o.Max}}}, F: f, WholeRows: true}
}

func multiply(b *conformance.Bench) backend.Op {
	return &product{A: b.Input("a", b.Rows, b.Cols), B: b.Input("b", b.Rows, b.Cols), Out: b.Casts("out", b.Rows, b.Cols)}
}

func gatedNorm(b *conformance.Bench) backend.Op {
	return &GatedNorm{
		X: b.Input("x", b.Rows, 2*b.Cols), Gain: b.Vector("gain", b.Cols),
		Out: b.Casts("out", b.Rows, b.Cols), Max: b.Result("max", fp8.F32, b.Rows, 1),
	}
}

func TestCustomOps(t *testing.T) {
	for _, name := range []string{"ref", "emu", "emu:h100", "emu:gaudi2"} {
		d, device, err := backend.Find(name)
		require.NoError(t, err)
		for _, op := range []struct {
			name      string
			tolerance float64
			build     func(*conformance.Bench) backend.Op
		}{{"product", 0, multiply}, {"gated-norm", 0x1p-22, gatedNorm}} {
			for c := range conformance.Of(op.name, op.tolerance, op.build) {
				t.Run(name+"/"+c.Name, func(t *testing.T) { require.NoError(t, c.Run(t.Context(), d, device)) })
			}
		}
	}
}

// Two ops in one program, forward and backward, with a temp between them: the codes that
// they store for GEMMs are on every backend those of backend ref.
func TestCustomOpsInAProgram(t *testing.T) {
	const tokens, ffn = 48, 80
	var want [][]byte
	for _, name := range []string{"ref", "emu", "emu:h100", "emu:gaudi2"} {
		vars := backend.NewVars()
		p := vars.Program("micro").Scope("mlp")
		x, dy := vars.Tensor(backend.Input, "x", fp8.F32, tokens, ffn), vars.Tensor(backend.Input, "dy", fp8.F32, tokens, ffn)
		amax, one := vars.Tensor(backend.Output, "amax", fp8.F32, 1), vars.Tensor(backend.Input, "one", fp8.F32, 1)
		out, outT := vars.Tensor(backend.Output, "out", fp8.E4M3IEEE, tokens, ffn), vars.Tensor(backend.Output, "out.t", fp8.E5M2, ffn, tokens)
		out.Scale, outT.Scale = one, one
		h := p.Temp("h", fp8.F32, tokens, ffn)
		p.Add(&product{A: x, B: x, Out: []backend.Cast{{Out: h}, {Out: out, Scale: one, Amax: amax}}})
		p.Phase(backend.Backward).Add(&product{A: dy, B: h, Out: []backend.Cast{{Out: outT, Transpose: true}}})

		d, err := backend.Open(name, backend.Options{})
		require.NoError(t, err)
		run, err := backend.Load(d, p)
		require.NoError(t, err)
		for i, in := range []*backend.Tensor{x, dy, one} {
			var raw []byte
			for j := range in.Elems() {
				raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(float32(math.Sin(float64(j*(i+1))))))
			}
			if in == one {
				raw = binary.LittleEndian.AppendUint32(nil, math.Float32bits(1))
			}
			require.NoError(t, d.Write(in, raw))
		}
		profile := backend.NewProfile()
		profile.Begin()
		require.NoError(t, profile.Run(t.Context(), "micro", run[0]))
		profile.End()
		rows := profile.Rows(backend.Peaks{}, backend.OpKind)
		require.Len(t, rows, 1)
		require.Equal(t, 2, rows[0].Calls)
		var got [][]byte
		for _, tensor := range []*backend.Tensor{out, outT, amax} {
			raw := make([]byte, tensor.Bytes())
			require.NoError(t, d.Read(tensor, raw))
			got = append(got, raw)
		}
		require.NoError(t, d.Close())
		if want == nil {
			want = got
			require.Positive(t, len(bytes.Trim(got[0], "\x00")))
		}
		require.Equal(t, want, got, name)
	}
}

func TestOfNoticesAWrongLoop(t *testing.T) {
	driver, device, err := backend.Find("emu")
	require.NoError(t, err)
	failed := 0
	for c := range conformance.Of("wrong", 0, func(b *conformance.Bench) backend.Op {
		op := multiply(b).(*product)
		op.Error = 0x1p-23 // a unit in the last place
		return op
	}) {
		if c.Run(t.Context(), driver, device) != nil {
			failed++
		}
	}
	require.Greater(t, failed, 3)
}
