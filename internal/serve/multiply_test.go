package serve

import (
	"encoding/binary"
	"math"
	"testing"

	"octet/backend"
	"octet/fp8"
	"octet/internal/gemm"

	"github.com/stretchr/testify/require"
)

func operandOf(format string, rows, cols int) map[string]any {
	return map[string]any{"format": format, "rows": rows, "cols": cols, "block": "tensor", "scale": "fp32"}
}

func multiplyOf(a, b gemm.Matrix, more map[string]any) (map[string]any, [][]byte) {
	h := map[string]any{"op": "scaled_mm", "out": "fp32", "device": "h100"}
	h["a"], h["b"] = operandOf(a.DType.String(), a.Rows, a.Cols), operandOf(b.DType.String(), b.Rows, b.Cols)
	for k, v := range more {
		h[k] = v
	}
	one := fp8.AppendFloats(nil, 1)
	return h, [][]byte{a.Codes, one, b.Codes, one}
}

// The GEMM is that of package gemm, which octet gemm prints, and stays so when a loaded one is used
// again with other operands.
func TestScaledMM(t *testing.T) {
	var requests, want [][]byte
	for i := range 2 * cachedGEMMs {
		rows := 1 + i%(cachedGEMMs+2)
		a, b := gemm.Random(uint64(i), fp8.E4M3, rows, 96), gemm.Random(uint64(i+50), fp8.E5M2, 7, 96)
		fast := i%3 == 0
		h, buffers := multiplyOf(a, b, map[string]any{"fast": fast})
		requests = append(requests, frame(t, h, buffers...))
		accum := backend.Promoted
		if fast {
			accum = backend.Fast
		}
		dev, err := backend.Open("emu:h100", backend.Options{Threads: 1})
		require.NoError(t, err)
		x, err := gemm.Multiply(t.Context(), dev, a.Operand(), b.Operand(), accum)
		require.NoError(t, err)
		require.NoError(t, dev.Close())
		want = append(want, fp8.AppendFloats(nil, x...))
	}
	for i, a := range exchange(t, requests...) {
		require.NotContains(t, a.fields, "error")
		require.Equal(t, want[i], a.buffers[0], i)
	}
}

// Fast and promoted sums of the same shape are two GEMMs.
func TestFastAndPromoted(t *testing.T) {
	a, b := gemm.Random(1, fp8.E4M3, 8, 4096), gemm.Random(2, fp8.E4M3, 8, 4096)
	var requests [][]byte
	for _, fast := range []bool{true, false, true} {
		h, buffers := multiplyOf(a, b, map[string]any{"fast": fast})
		requests = append(requests, frame(t, h, buffers...))
	}
	list := exchange(t, requests...)
	require.NotEqual(t, list[0].buffers, list[1].buffers)
	require.Equal(t, list[0].buffers, list[2].buffers)
}

// The server keeps the most recently used GEMMs, and no large one.
func TestCachedGEMMs(t *testing.T) {
	s := &server{threads: 1}
	run := func(rows int64, cols int) *gemm.Multiplier {
		m := multiplyRequest{Device: "emu", A: matrix{"e4m3", rows, int64(cols), "tensor", "fp32", 0}}
		m.B = m.A
		a, err := m.A.on(m.Device)
		require.NoError(t, err)
		loaded, done, err := s.multiplier(m, a, a, backend.Promoted)
		require.NoError(t, err)
		require.NoError(t, done())
		return loaded
	}
	first := run(1, 32)
	for rows := range int64(cachedGEMMs - 1) {
		run(2+rows, 32)
	}
	require.Same(t, first, run(1, 32))
	run(100, 32)
	require.Len(t, s.loaded.entries, cachedGEMMs)
	require.Same(t, first, run(1, 32), "the second shape was evicted")
	require.NotContains(t, rowsOf(s.loaded), int64(2))
	run(1<<11, 1<<10)
	require.NotContains(t, rowsOf(s.loaded), int64(1<<11))
	require.Len(t, s.loaded.entries, cachedGEMMs)
	require.NoError(t, s.loaded.trim(0))
	require.Empty(t, s.loaded.entries)
}

func rowsOf(c cache) (list []int64) {
	for _, e := range c.entries {
		list = append(list, e.key.A.Rows)
	}
	return list
}

// Codes of four bits, one in a byte, with two levels of scales.
func TestScaledMMOfBlocks(t *testing.T) {
	codes := func(rows, cols int) (list []byte) {
		for i := range rows * cols {
			list = append(list, byte(i*7%16))
		}
		return list
	}
	const rows, cols, k = 3, 2, 32
	format, err := fp8.ParseDType("e2m1")
	require.NoError(t, err)
	operand := func(rows int, outer float32) map[string]any {
		return map[string]any{"format": "e2m1", "rows": rows, "cols": k, "block": "1x16", "scale": "e4m3", "outer": outer}
	}
	scalesA, scalesB := []byte{0x38, 0x40, 0x30, 0x38, 0x44, 0x38}, []byte{0x38, 0x3c, 0x40, 0x28}
	h := map[string]any{"op": "scaled_mm", "out": "fp32", "device": "b200", "a": operand(rows, 0.5), "b": operand(cols, 3)}
	a := exchange(t, frame(t, h, codes(rows, k), scalesA, codes(cols, k), scalesB))[0]
	require.NotContains(t, a.fields, "error")
	e4m3, err := fp8.ParseDType("e4m3")
	require.NoError(t, err)
	for i := range rows {
		for j := range cols {
			sum := float32(0)
			for x := range k {
				value := format.Float32(uint32(codes(rows, k)[i*k+x])) * format.Float32(uint32(codes(cols, k)[j*k+x]))
				sum += value * e4m3.Float32(uint32(scalesA[2*i+x/16])) * e4m3.Float32(uint32(scalesB[2*j+x/16]))
			}
			got := math.Float32frombits(binary.LittleEndian.Uint32(a.buffers[0][4*(i*cols+j):]))
			require.InEpsilon(t, sum*1.5, got, 1e-5, "%d %d", i, j)
		}
	}
}

func TestRounded(t *testing.T) {
	raw := func() []byte { return fp8.AppendFloats(nil, 1.00390625, 65520, -1e30) }
	require.Equal(t, []byte{0x80, 0x3f, 0x80, 0x47, 0x4a, 0xf1}, rounded(raw(), fp8.BF16))
	require.Equal(t, []byte{0x04, 0x3c, 0x00, 0x7c, 0x00, 0xfc}, rounded(raw(), fp8.F16))
	require.Equal(t, raw(), rounded(raw(), fp8.F32))
}
