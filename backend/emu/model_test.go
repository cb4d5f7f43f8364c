package emu

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/conformance"
	"octet/fp8"
)

// The device model emu:amx computes FP8 GEMMs in the arithmetic of AMX, and Spec says
// so. In long sums its last bits differ from those of the FMA chain. E8M0 scales of blocks
// multiply elements: where all are 1, the bits are those of per-tensor scales of 1.
func TestDeviceModelAMX(t *testing.T) {
	const m, n, k = 16, 32, 512
	r := rand.New(rand.NewPCG(1, 2))
	codes := func(count int) []byte {
		x := make([]byte, count)
		for i := range x {
			x[i] = byte(r.IntN(0x70)) | byte(r.IntN(2))<<7
		}
		return x
	}
	ca, cb := codes(m*k), codes(k*n)
	multiply := func(model string, blocked bool) []byte {
		d, err := Open(model, backend.Options{Threads: 2})
		require.NoError(t, err)
		defer func() { require.NoError(t, d.Close()) }()
		vars := backend.NewVars()
		one := vars.Tensor(backend.Input, "one", fp8.F32, 1)
		a := vars.Tensor(backend.Input, "a", fp8.E4M3, m, k)
		b := vars.Tensor(backend.Input, "b", fp8.E5M2, k, n)
		a.Scale, b.Scale = one, one
		if blocked {
			a.Scale, a.Block = vars.Tensor(backend.Input, "sa", fp8.E8M0, m, k/32), backend.ScaleBlock{Rows: 1, Cols: 32}
			b.Scale, b.Block = vars.Tensor(backend.Input, "sb", fp8.E8M0, k/32, n), backend.ScaleBlock{Rows: 32, Cols: 1}
		}
		out := vars.Tensor(backend.Output, "out", fp8.F32, m, n)
		p := vars.Program("product")
		p.Add(&backend.MatMul{A: a, B: b, Out: out})
		list, err := d.Load(p)
		require.NoError(t, err)
		if blocked {
			require.NoError(t, d.Write(a.Scale, bytes.Repeat([]byte{127}, m*k/32)))
			require.NoError(t, d.Write(b.Scale, bytes.Repeat([]byte{127}, k/32*n)))
		} else {
			require.NoError(t, d.Write(one, []byte{0, 0, 0x80, 0x3f}))
		}
		require.NoError(t, d.Write(a, ca))
		require.NoError(t, d.Write(b, cb))
		require.NoError(t, list[0].Run(context.Background()))
		got := make([]byte, out.Bytes())
		require.NoError(t, d.Read(out, got))
		return got
	}
	chain, amx := multiply("", false), multiply(modelAMX, false)
	require.NotEqual(t, chain, amx)
	require.Equal(t, chain, multiply("", true))
	require.Equal(t, amx, multiply(modelAMX, true))

	d, err := Open(modelAMX, backend.Options{})
	require.NoError(t, err)
	require.Contains(t, d.Spec().Arithmetic, modelAMX)
	require.NoError(t, d.Close())
	_, err = spec("amx512")
	require.ErrorContains(t, err, "emu:amx")
}

// emu:accum16 and emu:accum16,saturate add up INT8 products in 16 bits, and FP8 ones as emu.
func TestDeviceModelAccumulator(t *testing.T) {
	multiply := func(model string, d fp8.DType, code byte) float32 {
		dev, err := Open(model, backend.Options{Threads: 1})
		require.NoError(t, err)
		defer func() { require.NoError(t, dev.Close()) }()
		vars := backend.NewVars()
		one := vars.Tensor(backend.Input, "one", fp8.F32, 1)
		a, b := vars.Tensor(backend.Input, "a", d, 1, 3), vars.Tensor(backend.Input, "b", d, 1, 3)
		a.Scale, b.Scale = one, one
		out := vars.Tensor(backend.Output, "out", fp8.F32, 1, 1)
		p := vars.Program("product")
		p.Add(&backend.MatMul{A: a, B: b, TransB: true, Out: out})
		list, err := dev.Load(p)
		require.NoError(t, err)
		require.NoError(t, dev.Write(one, fp8.AppendFloats(nil, 1)))
		require.NoError(t, dev.Write(a, []byte{code, code, code}))
		require.NoError(t, dev.Write(b, []byte{code, code, code}))
		require.NoError(t, list[0].Run(context.Background()))
		bytes := make([]byte, out.Bytes())
		require.NoError(t, dev.Read(out, bytes))
		return math.Float32frombits(binary.LittleEndian.Uint32(bytes))
	}
	require.EqualValues(t, 3*127*127, multiply("", fp8.INT8, 127))
	require.EqualValues(t, 3*127*127-1<<16, multiply("accum16", fp8.INT8, 127))
	require.EqualValues(t, 1<<15-1, multiply("accum16,saturate", fp8.INT8, 127))
	require.EqualValues(t, 3*448*448, multiply("accum16", fp8.E4M3, 0x7e))

	// Sums that fit the register are exact: doctor compares these with ref.
	driver, _, err := backend.Find("emu")
	require.NoError(t, err)
	for c := range conformance.Cases() {
		if strings.HasPrefix(c.Name, "matmul/integers/") {
			require.NoError(t, c.Run(t.Context(), driver, "accum16"))
			require.NoError(t, c.Run(t.Context(), driver, "accum12,saturate"))
		}
	}

	_, err = spec("accum64")
	require.EqualError(t, err, `backend emu: device model accum64: "64" is no number of bits from 2 to 32: give one, such as accum16`)
	_, err = spec("accumulator")
	require.ErrorContains(t, err, "accumulator")
	_, err = spec("a100")
	require.ErrorContains(t, err, "emu:accum16 adds up products of integers in 16 bits")
}
