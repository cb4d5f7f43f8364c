package ptq

import (
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	_ "octet/backend/emu"
	"octet/fp8"
	"octet/internal/arrays"
	"octet/internal/quantize"
	"octet/recipe"
)

func normal(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// correlated returns inputs [tokens, n] whose channels share a component and differ in size.
func correlated(r *rand.Rand, tokens, n int) []float32 {
	x := normal(r, tokens*n)
	for t := range tokens {
		common := float32(r.NormFloat64())
		for j := range n {
			x[t*n+j] = (x[t*n+j] + 2*common) * float32(1+j%3)
		}
	}
	return x
}

// By hand: max/7.5 for codes from -8 to 7, ties to even; a group of zeros has the scale 1; a
// short last group has a scale of its own.
func TestNearestByHand(t *testing.T) {
	w := []float32{7.5, -7.5, 2.5, -0.5, 0, 0, 0, 0, -15, 3}
	m := Scheme{Bits: 4, Group: 4}.nearest(w, 1, len(w))
	require.Equal(t, []float32{1, 1, 2}, m.ScaleInv)
	low := int8(-8)
	require.Equal(t, []uint8{7, uint8(low), 2, 0, 0, 0, 0, 0, uint8(low), 2}, m.Codes)
	require.Equal(t, []float32{7, -8, 2, 0, 0, 0, 0, 0, -16, 4}, m.Values())
	for bits, half := range map[int]float64{4: 7.5, 3: 3.5, 2: 1.5} {
		require.EqualValues(t, 3, groupScale([]float64{-3 * half, half}, bits))
	}
	require.EqualValues(t, 1.0078125, groupScale([]float64{7.5 * 1.006}, 4), "rounded to BF16")
}

// The codes and scales of W8A8 are those of the cast that a recipe makes on a device.
func TestPerRowIsTheDevicesCast(t *testing.T) {
	w := normal(rand.New(rand.NewPCG(1, 2)), 5*64)
	clear(w[64:128])
	for _, d := range []fp8.DType{fp8.E4M3, fp8.INT8} {
		dev, err := backend.Open("emu", backend.Options{})
		require.NoError(t, err)
		want, err := quantize.Cast(t.Context(), dev, arrays.Matrix{Name: "w", Rows: 5, Cols: 64, Values: w},
			recipe.Cast{DType: d, Scaling: recipe.Current, Granularity: recipe.PerRow, Scale: recipe.Exact}, 1)
		require.NoError(t, err)
		require.NoError(t, dev.Close())
		got := Scheme{Input: d}.nearest(w, 5, 64)
		require.Equal(t, want.Codes, got.Codes)
		require.Equal(t, want.Scale, fp8.AppendFloats(nil, got.ScaleInv...))
	}
}

// H is 2XᵀX in FP64, bit for bit on any number of threads.
func TestHessian(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	const n = 7
	var all []float32
	sums := []*hessian{newHessian(n), newHessian(n)}
	for _, tokens := range []int{8, 5} {
		x := normal(r, tokens*n)
		all = append(all, x...)
		for i, h := range sums {
			before := runtime.GOMAXPROCS(1 + 3*i)
			h.add(x)
			runtime.GOMAXPROCS(before)
		}
	}
	require.Equal(t, sums[0], sums[1])
	for i := range n {
		for j := i; j < n; j++ {
			want := 0.0
			for at := 0; at < len(all); at += n {
				want += 2 * float64(all[at+i]) * float64(all[at+j])
			}
			require.InDelta(t, want, sums[0].h[i*n+j], 1e-12)
		}
	}
}

// inverse inverts a matrix by Gauss-Jordan elimination.
func inverse(a [][]float64) [][]float64 {
	n := len(a)
	m := make([][]float64, n)
	for i := range m {
		m[i] = append(append([]float64(nil), a[i]...), make([]float64, n)...)
		m[i][n+i] = 1
	}
	for i := range n {
		pivot := m[i][i]
		for k := range m[i] {
			m[i][k] /= pivot
		}
		for r := range m {
			if f := m[r][i]; r != i {
				for k := range m[r] {
					m[r][k] -= f * m[i][k]
				}
			}
		}
	}
	for i := range m {
		m[i] = m[i][n:]
	}
	return m
}

// definition quantizes a row as Optimal Brain Surgeon does with the columns in order: it
// rounds one weight, and changes the later ones by -(w - q)/[H⁻¹]_00 · H⁻¹'s first column,
// with H⁻¹ the inverse of the damped H of the weights that are left.
func definition(row []float64, x []float32, group, bits int) (codes []int8) {
	n := len(row)
	h := make([][]float64, n)
	mean := 0.0
	for i := range h {
		h[i] = make([]float64, n)
		for j := range n {
			for at := 0; at < len(x); at += n {
				h[i][j] += 2 * float64(x[at+i]) * float64(x[at+j])
			}
		}
		mean += h[i][i] / float64(n)
	}
	for i := range h {
		h[i][i] += 0.01 * mean
	}
	scale := 0.0
	for j := range n {
		if j%group == 0 {
			scale = float64(groupScale(row[j:min(j+group, n)], bits))
		}
		left := make([][]float64, 0, n-j)
		for i := j; i < n; i++ {
			left = append(left, h[i][j:])
		}
		inv := inverse(left)
		q := min(max(math.RoundToEven(row[j]/scale), -math.Exp2(float64(bits-1))), math.Exp2(float64(bits-1))-1)
		e := (row[j] - q*scale) / inv[0][0]
		for k := range inv {
			row[j+k] -= e * inv[k][0]
		}
		codes = append(codes, int8(q))
	}
	return codes
}

// GPTQ with Cholesky factors is the definition: order, damping, and scales of groups from
// the changed weights. With fewer tokens than columns H is singular without damping.
func TestGPTQIsItsDefinition(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	const n, rows = 20, 4
	for _, tokens := range []int{6, 40} {
		for _, bits := range []int{2, 3, 4} {
			x, w := correlated(r, tokens, n), normal(r, rows*n)
			h := newHessian(n)
			h.add(x)
			u, err := h.factor()
			require.NoError(t, err)
			m := Scheme{Bits: bits, Group: 8}.gptq(w, u, rows, n)
			for i := range rows {
				row := make([]float64, n)
				for j := range row {
					row[j] = float64(w[i*n+j])
				}
				for j, q := range definition(row, x, 8, bits) {
					require.Equal(t, q, int8(m.Codes[i*n+j]), "%d bits, %d tokens, row %d, column %d", bits, tokens, i, j)
				}
			}
		}
	}
}

// productError returns |X(W - Q)ᵀ|².
func productError(x, w, q []float32, n int) (sum float64) {
	for at := 0; at < len(x); at += n {
		for row := 0; row < len(w); row += n {
			y := 0.0
			for j := range n {
				y += float64(x[at+j]) * (float64(w[row+j]) - float64(q[row+j]))
			}
			sum += y * y
		}
	}
	return sum
}

// On the inputs that it observed, GPTQ's products have smaller errors than those of rounding
// to nearest, less than half where channels are correlated.
func TestGPTQBeatsRounding(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	const n, rows = 48, 8
	for _, bits := range []int{2, 3, 4} {
		ratios := 0.0
		for range 20 {
			x, w := correlated(r, 200, n), normal(r, rows*n)
			h := newHessian(n)
			h.add(x)
			u, err := h.factor()
			require.NoError(t, err)
			s := Scheme{Bits: bits, Group: 16}
			spread, nearest := productError(x, w, s.gptq(w, u, rows, n).Values(), n), productError(x, w, s.nearest(w, rows, n).Values(), n)
			require.Less(t, spread, nearest)
			ratios += spread / nearest
		}
		t.Logf("%d bits: %.2f of the error of rounding", bits, ratios/20)
		require.Less(t, ratios/20, 0.5, "%d bits", bits)
	}
}

// With a diagonal H no weight takes over an error: GPTQ rounds to nearest. So it does with
// an H of zeros.
func TestGPTQOfDiagonalHRoundsToNearest(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	const n, rows = 24, 3
	w := normal(r, rows*n)
	x := make([]float32, n*n)
	s := Scheme{Bits: 4, Group: 8}
	for range 2 {
		h := newHessian(n)
		h.add(x)
		u, err := h.factor()
		require.NoError(t, err)
		require.Equal(t, s.nearest(w, rows, n), s.gptq(w, u, rows, n))
		for i := range n {
			x[i*n+i] = float32(1 + i)
		}
	}
	x[0] = float32(math.NaN())
	h := newHessian(n)
	h.add(x)
	_, err := h.factor()
	require.ErrorIs(t, err, errNotPositive)
}

// s is max|X|^α / max|W|^(1-α), 1 without values.
func TestSmoothingByHand(t *testing.T) {
	x, w := make([]float32, 4), make([]float32, 4)
	columnMax(x, []float32{-4, 1, 0, 2, 2, -1, 0, 1})
	columnMax(w, []float32{1, -4, 1, 0})
	require.Equal(t, []float32{2, 0.5, 1, 1}, smoothing(x, w, 0.5))
	require.Equal(t, []float32{4, 1, 1, 2}, smoothing(x, w, 1))
	require.Equal(t, []float32{1, 0.25, 1, 1}, smoothing(x, w, 0))
}

// An input channel of 100 times the others' values, whose weights are 1/100 of the others',
// costs INT8 inputs ten times the error. SmoothQuant takes that back; FP8 does not need it.
func TestPlantedChannel(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	const tokens, n, rows = 64, 64, 32
	x, w := normal(r, tokens*n), normal(r, rows*n)
	relative := func(d fp8.DType, x, w []float32) float64 {
		a, b := perRow(x, tokens, n, d).Values(), perRow(w, rows, n, d).Values()
		errors, values := 0.0, 0.0
		for i := range tokens {
			for o := range rows {
				y, q := 0.0, 0.0
				for j := range n {
					y += float64(x[i*n+j]) * float64(w[o*n+j])
					q += float64(a[i*n+j]) * float64(b[o*n+j])
				}
				errors, values = errors+(q-y)*(q-y), values+y*y
			}
		}
		return math.Sqrt(errors / values)
	}
	scaled := func(x []float32, by func(j int) float32) []float32 {
		y := make([]float32, len(x))
		for i, v := range x {
			y[i] = v * by(i%n)
		}
		return y
	}
	plain := relative(fp8.INT8, x, w)
	px := scaled(x, func(j int) float32 { return []float32{1, 100}[b2i(j == 7)] })
	pw := scaled(w, func(j int) float32 { return []float32{1, 0.01}[b2i(j == 7)] })
	planted := relative(fp8.INT8, px, pw)
	most, largest := make([]float32, n), make([]float32, n)
	columnMax(most, px)
	columnMax(largest, pw)
	s := smoothing(most, largest, 0.5)
	smoothed := relative(fp8.INT8, scaled(px, func(j int) float32 { return 1 / s[j] }), scaled(pw, func(j int) float32 { return s[j] }))
	t.Logf("relative errors: plain %.4f, planted %.4f, smoothed %.4f; FP8 %.4f, planted %.4f", plain, planted, smoothed, relative(fp8.E4M3, x, w), relative(fp8.E4M3, px, pw))
	require.Greater(t, planted, 10*plain)
	require.Less(t, smoothed, 1.2*plain)
	require.Less(t, relative(fp8.E4M3, px, pw), 1.2*relative(fp8.E4M3, x, w))
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

func TestRefusedSchemes(t *testing.T) {
	_, err := Lookup("w4a16-g12")
	require.EqualError(t, err, `unknown quantization "w4a16-g12"; did you mean w4a16-g128? (known: w8a8-fp8, w8a8-int8, w8a8-int8-smooth, w4a16-g128, w4a16-g128-rtn, w4a16-g32, w4a16-g32-rtn, w3a16-g128, w3a16-g128-rtn, w2a16-g128, w2a16-g128-rtn)`)
	for _, name := range Names() {
		s, err := Lookup(name)
		require.NoError(t, err)
		for _, other := range []string{"fp8-smooth", "bf16-e8m5"} {
			r, err := recipe.Lookup(other)
			require.NoError(t, err)
			_, err = s.Recipe(r)
			require.ErrorContains(t, err, other+" has formats of its own")
		}
	}
}

// W8A8 casts inputs per token and weights per row in the forward GEMM, but for the head.
func TestRecipe(t *testing.T) {
	plain, err := recipe.Lookup("bf16")
	require.NoError(t, err)
	for _, d := range []fp8.DType{fp8.E4M3, fp8.INT8} {
		r, err := Scheme{Input: d}.Recipe(plain)
		require.NoError(t, err)
		require.NoError(t, r.Validate())
		for _, o := range []recipe.Operand{recipe.Input, recipe.Weight} {
			require.Equal(t, recipe.Cast{DType: d, Scaling: recipe.Current, Granularity: recipe.PerRow, Scale: recipe.Exact},
				r.Cast(recipe.Layer{Scope: "layers.0.mlp.down_proj"}, recipe.Fprop, o))
			require.Equal(t, recipe.Cast{DType: fp8.BF16}, r.Cast(recipe.Layer{Scope: "lm_head"}, recipe.Fprop, o))
		}
	}
	r, err := Scheme{Bits: 4, Group: 128}.Recipe(plain)
	require.NoError(t, err)
	require.Equal(t, plain, r)
}
