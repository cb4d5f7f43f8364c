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
	"octet/backend/ref"
	"octet/fp8"
)

// SquaredReLU is Out = max(X, 0)².
type SquaredReLU struct {
	backend.Custom
	X   *backend.Tensor `op:"in"`
	Out []backend.Cast  `op:"cast"`
}

func (o *SquaredReLU) Check(c *backend.Check) {
	c.Plain("X", o.X)
	c.Casts("Out", o.Out, o.X.Rows(), o.X.Cols())
}

func (o *SquaredReLU) Reference(a backend.Arguments) {
	y := a.Read(o.X)
	for i, x := range y {
		y[i] = max(x, 0) * max(x, 0)
	}
	a.Cast(o.Out, y, o.X.Cols())
}

func (o *SquaredReLU) Loop() backend.Loop {
	return backend.Loop{In: []*backend.Tensor{o.X}, Out: [][]backend.Cast{o.Out}, F: func(out, in [][]float32) {
		for i, x := range in[0] {
			out[0][i] = max(x, 0) * max(x, 0)
		}
	}}
}

// SquaredReLUGrad is DX = DOut ⊙ 2·max(X, 0).
type SquaredReLUGrad struct {
	backend.Custom
	DOut *backend.Tensor `op:"in"`
	X    *backend.Tensor `op:"in"`
	DX   []backend.Cast  `op:"cast"`
}

func (o *SquaredReLUGrad) Check(c *backend.Check) {
	c.Plain("X", o.X)
	c.Plain("DOut", o.DOut)
	c.Matrix("DOut", o.DOut, o.X.Rows(), o.X.Cols())
	c.Casts("DX", o.DX, o.X.Rows(), o.X.Cols())
}

func (o *SquaredReLUGrad) Reference(a backend.Arguments) {
	dx, dout := a.Read(o.X), a.Read(o.DOut)
	for i, x := range dx {
		dx[i] = dout[i] * 2 * max(x, 0)
	}
	a.Cast(o.DX, dx, o.X.Cols())
}

func (o *SquaredReLUGrad) Loop() backend.Loop {
	return backend.Loop{In: []*backend.Tensor{o.DOut, o.X}, Out: [][]backend.Cast{o.DX}, F: func(out, in [][]float32) {
		for i, x := range in[1] {
			out[0][i] = in[0][i] * (2 * max(x, 0))
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

func squared(b *conformance.Bench) backend.Op {
	return &SquaredReLU{X: b.Input("x", b.Rows, b.Cols), Out: b.Casts("out", b.Rows, b.Cols)}
}

func squaredGrad(b *conformance.Bench) backend.Op {
	return &SquaredReLUGrad{
		DOut: b.Input("dout", b.Rows, b.Cols), X: b.Input("x", b.Rows, b.Cols), DX: b.Casts("dx", b.Rows, b.Cols),
	}
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
		}{{"squared", 0, squared}, {"squared-grad", 0, squaredGrad}, {"gated-norm", 0x1p-22, gatedNorm}} {
			for c := range conformance.Of(op.name, op.tolerance, op.build) {
				t.Run(name+"/"+c.Name, func(t *testing.T) { require.NoError(t, c.Run(t.Context(), d, device)) })
			}
		}
	}
}

// SquaredReLUGrad is the derivative of SquaredReLU, by central differences in float64.
func TestSquaredReLUGradient(t *testing.T) {
	vars := backend.NewVars()
	x, y, one, dx := vars.Tensor(backend.Input, "x", fp8.F32, 5), vars.Tensor(backend.Output, "y", fp8.F32, 5),
		vars.Tensor(backend.Input, "one", fp8.F32, 5), vars.Tensor(backend.Output, "dx", fp8.F32, 5)
	p := vars.Program("p")
	p.Add(&SquaredReLU{X: x, Out: []backend.Cast{{Out: y}}})
	p.Add(&SquaredReLUGrad{DOut: one, X: x, DX: []backend.Cast{{Out: dx}}})
	b := ref.Open(1, ref.Exact)[0]
	run, err := backend.Load(b, p)
	require.NoError(t, err)
	require.NoError(t, b.SetValues(one, []float64{1, 1, 1, 1, 1}))
	at := func(shift float64, out *backend.Tensor) []float64 {
		values := []float64{-2, -0.5, 0.25, 1, 3}
		for i := range values {
			values[i] += shift
		}
		require.NoError(t, b.SetValues(x, values))
		require.NoError(t, run[0].Run(t.Context()))
		result, err := b.Values(out)
		require.NoError(t, err)
		return result
	}
	const h = 1e-4
	up, down := at(h, y), at(-h, y)
	for i, d := range at(0, dx) {
		require.InDelta(t, (up[i]-down[i])/(2*h), d, 1e-6)
	}
}

// Forward and backward in one program, with temps and FP8 operands of GEMMs between
// them: the codes on every backend are those of backend ref.
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
		p.Add(&SquaredReLU{X: x, Out: []backend.Cast{{Out: h}, {Out: out, Scale: one, Amax: amax}}})
		p.Phase(backend.Backward).Add(&SquaredReLUGrad{DOut: dy, X: h, DX: []backend.Cast{{Out: outT, Transpose: true}}})

		devices, err := backend.Open(name, backend.Options{})
		require.NoError(t, err)
		d := devices[0]
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
		require.Len(t, profile.Rows(backend.Peaks{}, backend.OpKind), 2)
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

// steep is Out = X, with a loop that is wrong by a unit in the last place.
type steep struct {
	backend.Custom
	X   *backend.Tensor `op:"in"`
	Out []backend.Cast  `op:"cast"`
}

func (o *steep) Check(*backend.Check) {}

func (o *steep) Reference(a backend.Arguments) { a.Cast(o.Out, a.Read(o.X), o.X.Cols()) }

func (o *steep) Loop() backend.Loop {
	return backend.Loop{In: []*backend.Tensor{o.X}, Out: [][]backend.Cast{o.Out}, F: func(out, in [][]float32) {
		for i, x := range in[0] {
			out[0][i] = x * (1 + 0x1p-23)
		}
	}}
}

func TestOfNoticesAWrongLoop(t *testing.T) {
	driver, device, err := backend.Find("emu")
	require.NoError(t, err)
	failed := 0
	for c := range conformance.Of("steep", 0, func(b *conformance.Bench) backend.Op {
		return &steep{X: b.Input("x", b.Rows, b.Cols), Out: b.Casts("out", b.Rows, b.Cols)}
	}) {
		if c.Run(t.Context(), driver, device) != nil {
			failed++
		}
	}
	require.Greater(t, failed, 3)
}
