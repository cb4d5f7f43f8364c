package quantize

import (
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	_ "octet/backend/emu"
	"octet/backend/ref"
	"octet/fp8"
	"octet/internal/arrays"
	"octet/internal/gemm"
	"octet/recipe"
)

func open(t *testing.T, name string) backend.Backend {
	if name == "ref" {
		dev := ref.Open(nil, ref.Rounded)
		t.Cleanup(func() { require.NoError(t, dev.Close()) })
		return dev
	}
	dev, err := backend.Open(name, backend.Options{Threads: 2})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return dev
}

func describe(t *testing.T, format, granularity, scale, rounding string) (c recipe.Cast) {
	var err error
	c.Scaling = recipe.Current
	c.DType, err = fp8.ParseDType(format)
	require.NoError(t, err)
	c.Granularity, err = recipe.ParseGranularity(granularity)
	require.NoError(t, err)
	c.Scale, err = recipe.ParseScaleFormat(scale)
	require.NoError(t, err)
	c.Rounding, err = fp8.ParseRounding(rounding)
	require.NoError(t, err)
	return c
}

func normal(rows, cols int) arrays.Matrix {
	r := rand.New(rand.NewPCG(3, 4))
	m := arrays.Matrix{Name: "w", Rows: rows, Cols: cols, Values: make([]float32, rows*cols)}
	for i := range m.Values {
		m.Values[i] = float32(r.NormFloat64())
	}
	return m
}

// Signal-to-noise ratios in dB of N(0, 1), from independent programs for 2048² elements.
func TestNoise(t *testing.T) {
	m := normal(256, 512)
	for _, c := range []struct {
		format, granularity, scale string
		want, bits                 float64
	}{
		{"e4m3", "1x32", "e8m0", 31.52, 8.25},
		{"e2m3", "1x32", "e8m0", 30.96, 6.25},
		{"e3m2", "1x32", "e8m0", 25.54, 6.25},
		{"e2m1", "1x32", "e8m0", 18.76, 4.25},
		{"e2m1", "1x16", "e4m3+fp32", 20.43, 4.5},
		{"e2m1", "16x16", "e4m3+fp32", 19.07, 4 + 8./256},
		{"int8", "1x128", "fp32", 43.79, 8.25},
		{"int4", "1x32", "fp32", 20.26, 5},
	} {
		r, err := Cast(t.Context(), open(t, "emu"), m, describe(t, c.format, c.granularity, c.scale, "nearest"), 1)
		require.NoError(t, err)
		require.InDelta(t, c.want, -10*math.Log10(float64(r.Health[backend.HealthNoise])), 0.1, "%+v", c)
		require.InDelta(t, c.bits, r.Bits(), 1e-3, "%+v", c)
		n := 0
		for _, b := range r.Histogram() {
			n += b.Count
		}
		require.Equal(t, m.Rows*m.Cols, n)
	}
}

// ref and emu give the same codes and scales, with stochastic rounding, too.
func TestBackendsAgree(t *testing.T) {
	m := normal(12, 40)
	clear(m.Values[:40])
	for _, rounding := range []string{"nearest", "stochastic"} {
		for _, c := range [][3]string{{"e2m1", "1x16", "e4m3+fp32"}, {"e5m2", "tensor", "pow2"}, {"int8", "row", "fp32"}, {"e3m2", "1x32", "e8m0:floor"}} {
			cast := describe(t, c[0], c[1], c[2], rounding)
			want, err := Cast(t.Context(), open(t, "ref"), m, cast, 7)
			require.NoError(t, err)
			got, err := Cast(t.Context(), open(t, "emu"), m, cast, 7)
			require.NoError(t, err)
			require.Equal(t, want.Codes, got.Codes, "%v %s", c, rounding)
			require.Equal(t, want.Scale, got.Scale, "%v %s", c, rounding)
			require.Equal(t, want.Outer, got.Outer)
			other, err := Cast(t.Context(), open(t, "emu"), m, cast, 8)
			require.NoError(t, err)
			require.Equal(t, rounding == "nearest", string(other.Codes) == string(got.Codes), "%v %s", c, rounding)
		}
	}
}

// By hand: the amax 12 gives scale_inv 2 in E8M0, and the second block has one of 2^-127.
func TestByHand(t *testing.T) {
	m := arrays.Matrix{Name: "w", Rows: 1, Cols: 8, Values: []float32{12, -6, 1, 0.4, 0, 0, 0, 0}}
	r, err := Cast(t.Context(), open(t, "emu"), m, describe(t, "e2m1", "1x4", "e8m0", "nearest"), 1)
	require.NoError(t, err)
	require.Equal(t, []byte{0x7 | 0xd<<4, 0x1, 0, 0}, r.Codes)
	require.Equal(t, []byte{128, 0}, r.Scale)
	require.EqualValues(t, float32(1./8), r.Health[backend.HealthFlushed])
	require.EqualValues(t, 0.5, r.Health[backend.HealthZeroBlocks])
	require.EqualValues(t, 0.5, r.Health[backend.HealthLowestScales])
	require.EqualValues(t, 12, r.Health[backend.HealthAmax])
	require.Equal(t, []Bin{{"0", 5}, {"0.5", 1}, {"1", 0}, {"1.5", 0}, {"2", 0}, {"3", 1}, {"4", 0}, {"6", 1}}, r.Histogram())
	wide, err := Cast(t.Context(), open(t, "emu"), arrays.Matrix{Name: "w", Rows: 1, Cols: 3, Values: []float32{448, 60, float32(math.NaN())}},
		describe(t, "e4m3", "1x2", "fp32", "nearest"), 1)
	require.NoError(t, err)
	require.Equal(t, []Bin{{"0", 0}, {"2^5", 1}, {"2^6", 0}, {"2^7", 0}, {"2^8", 1}, {"nan", 1}}, wide.Histogram())
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		cast recipe.Cast
		cols int
		want string
	}{
		{recipe.Cast{DType: fp8.BF16}, 8, "format bf16: expected one of up to eight bits"},
		{describe(t, "e4m3", "tensor", "e8m0", "nearest"), 8, "block scales"},
		{describe(t, "e2m1", "tensor", "fp32", "nearest"), 7, "a byte holds two codes of e2m1"},
	} {
		_, err := Cast(t.Context(), open(t, "emu"), normal(2, c.cols), c.cast, 1)
		require.ErrorContains(t, err, c.want)
	}
}

// A product of casts is the product of the values that codes and scales stand for.
func TestMultiply(t *testing.T) {
	a, b := normal(3, 64), normal(5, 64)
	for _, c := range [][3]string{{"e2m1", "1x16", "e4m3+fp32"}, {"e4m3", "tensor", "fp32"}, {"e3m2", "1x32", "e8m0"}} {
		cast := describe(t, c[0], c[1], c[2], "nearest")
		var operands [2]*Result
		var values [2][]float64
		for i, m := range []arrays.Matrix{a, b} {
			r, err := Cast(t.Context(), open(t, "emu"), m, cast, 1)
			require.NoError(t, err)
			operands[i], values[i] = r, valuesOf(r)
		}
		got, err := gemm.Multiply(t.Context(), open(t, "emu"), operands[0].Operand, operands[1].Operand, backend.Promoted)
		require.NoError(t, err)
		for i := range a.Rows {
			for j := range b.Rows {
				sum := 0.0
				for k := range a.Cols {
					sum += values[0][i*a.Cols+k] * values[1][j*a.Cols+k]
				}
				require.InDelta(t, sum, got[i*b.Rows+j], 1e-4, "%v", c)
			}
		}
	}
}

// valuesOf dequantizes.
func valuesOf(r *Result) []float64 {
	codes, scales := make([]float32, r.Rows*r.Cols), make([]float32, r.ScaleRows*r.ScaleCols)
	r.Cast.DType.Decode(codes, r.Codes)
	r.ScaleDType.Decode(scales, r.Scale)
	t := backend.Tensor{Shape: []int{r.Rows, r.Cols}, Block: r.Block}
	outer := 1.0
	if r.Outer != 0 {
		outer = float64(r.Outer)
	}
	x := make([]float64, len(codes))
	for i, c := range codes {
		x[i] = float64(c) * float64(scales[t.ScaleIndex(i)]) * outer
	}
	return x
}

// Codes and scales come back from a file as they were.
func TestRead(t *testing.T) {
	dir := t.TempDir()
	for i, c := range [][3]string{
		{"e2m1", "1x16", "e4m3+fp32"},
		{"e2m1", "16x16", "e4m3+fp32"},
		{"e4m3", "tensor", "fp32"},
		{"e5m2", "row", "pow2"},
		{"e3m2", "1x32", "e8m0"},
		{"e2m3", "1x32", "e8m0"},
		{"int8", "row", "fp32"},
		{"int4", "1x32", "fp32"},
		{"e3m4", "tensor", "pow2"},
		{"e4m3fnuz", "tensor", "pow2"},
	} {
		r, err := Cast(t.Context(), open(t, "emu"), normal(18, 72), describe(t, c[0], c[1], c[2], "nearest"), 1) // the last blocks are shorter
		require.NoError(t, err)
		file := filepath.Join(dir, fmt.Sprint(i, ".safetensors"))
		require.NoError(t, arrays.Write(file, r.Tensors(), nil))
		require.True(t, arrays.HoldsCodes(file))
		got, err := Read(file)
		require.NoError(t, err)
		require.Equal(t, r.Operand, got, "%v", c)
	}
}

func TestReadRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.safetensors")
	codes := arrays.Tensor{Name: "w", DType: fp8.E4M3, Shape: []int{2, 4}, Data: make([]byte, 8), Block: "1x2"}
	scale := arrays.Tensor{Name: "w.scale_inv", DType: fp8.F32, Shape: []int{1, 1}, Data: make([]byte, 4)}
	wide := func(rows, cols int) arrays.Tensor {
		return arrays.Tensor{Name: "w.scale_inv", DType: fp8.F32, Shape: []int{rows, cols}, Data: make([]byte, 4*rows*cols)}
	}
	for _, c := range []struct {
		list     []arrays.Tensor
		metadata map[string]string
		want     string
	}{
		{[]arrays.Tensor{codes}, nil, "holds 0 tensors with scales"},
		{[]arrays.Tensor{codes, scale, {Name: "v", DType: fp8.E4M3, Shape: []int{1}, Data: []byte{1}}, {Name: "v.scale_inv", DType: fp8.F32, Shape: []int{1}, Data: make([]byte, 4)}}, nil, "holds 2 tensors with scales"},
		{[]arrays.Tensor{scale}, nil, "it has no tensor w"},
		{[]arrays.Tensor{codes, wide(1, 3)}, nil, "w.scale_inv has shape [1 3], expected [2 2]: w has shape [2 4] and blocks of 1x2"},
		{[]arrays.Tensor{codes, scale}, map[string]string{"block.w": ""}, `metadata block.w: unknown block ""`},
		{[]arrays.Tensor{codes, scale}, map[string]string{"block.w": "*x*"}, `metadata block.w: unknown block "*x*"`},
		{[]arrays.Tensor{codes, scale}, map[string]string{"block.w": "0x2"}, `metadata block.w: unknown block "0x2"`},
		{[]arrays.Tensor{{Name: "w", DType: fp8.E4M3, Shape: []int{8}, Data: make([]byte, 8)}, scale}, nil, "expected a matrix"},
		{[]arrays.Tensor{codes, scale, {Name: "w.outer", DType: fp8.F32, Shape: []int{2}, Data: make([]byte, 8)}}, nil, "expected one fp32"},
		{[]arrays.Tensor{codes, scale}, map[string]string{"format.w": "e9m9"}, "format.w: "},
		{[]arrays.Tensor{codes, scale}, map[string]string{"format.w": "e5m2"}, "has dtype F8_E4M3 and 8 bytes, which is not e5m2"},
		{[]arrays.Tensor{{Name: "w", DType: fp8.INT4, Shape: []int{1, 2}, Data: []byte{0x21}}, scale}, map[string]string{"format.w": "fp16"}, "is not fp16"},
	} {
		require.NoError(t, arrays.WriteSafetensors(file, c.list, c.metadata))
		_, err := Read(file)
		require.ErrorContains(t, err, c.want)
	}
}
