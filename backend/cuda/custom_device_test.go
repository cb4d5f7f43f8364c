//go:build cuda && cgo && linux

package cuda

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/conformance"
	"octet/fp8"
)

// A custom op with CUDA source computes what its Reference defines: of operands with and
// without scales, in odd sizes, with every cast.
func TestCustomOp(t *testing.T) {
	standIns(t)
	d, _, err := backend.Find("cuda")
	require.NoError(t, err)
	const tolerance = 0x1p-20
	for _, format := range []fp8.DType{fp8.F32, fp8.BF16, fp8.F16, fp8.E4M3, fp8.E5M2} {
		for c := range conformance.Of(format.String(), tolerance, func(b *conformance.Bench) backend.Op {
			return &blend{
				A: b.Input("a", b.Rows, b.Cols), B: b.Result("b", format, b.Rows, b.Cols), W: b.Vector("w", b.Cols), Source: blended,
				Sum: b.Casts("sum", b.Rows, b.Cols), Product: b.Casts("product", b.Rows, b.Cols),
			}
		}) {
			require.NoError(t, c.Run(t.Context(), d, ""))
		}
	}
}

func loadBlend(t *testing.T, source string) error {
	_, p := blendOf(source)
	_, err := openOne(t).Load(p)
	return err
}

// Errors of the source name the op, and count lines from the source's first.
func TestWrongCUDASource(t *testing.T) {
	standIns(t)
	require.NoError(t, loadBlend(t, blended))
	for _, c := range []struct{ from, to, message string }{
		{"out[1] =", "out[1] = nonsense +", "cuda.blend:7"},
		{"void f(", "void g(", "call of __device__ void f(float *out, const float *in)"},
		{"void f(float *out, const float *in)", "void f(const float *in, float *out)", "call of __device__ void f(float *out, const float *in)"},
	} {
		source := strings.Replace(blended, c.from, c.to, 1)
		require.NotEqual(t, source, blended)
		err := loadBlend(t, source)
		require.ErrorContains(t, err, "compile cuda.blend for sm_")
		// NVRTC writes name(line): error.
		require.Contains(t, strings.Replace(err.Error(), "cuda.blend(", "cuda.blend:", 1), c.message)
	}
}

// Two sources of one op are two kernels.
func TestSourcesOfOneOp(t *testing.T) {
	standIns(t)
	var got [2][]byte
	for i, source := range []string{blended, strings.Replace(blended, "one = 1.0f", "one = 2.0f", 1)} {
		v, p := blendOf(source)
		d := openOne(t)
		list, err := d.Load(p)
		require.NoError(t, err)
		for _, name := range []string{"a", "w"} {
			x := v.Lookup(name)
			require.NoError(t, d.Write(x, floats(x.Elems(), func(i int) float32 { return float32(i + 1) })))
		}
		require.NoError(t, list[0].Run(t.Context()))
		out := v.Lookup("sum")
		got[i] = make([]byte, out.Bytes())
		require.NoError(t, d.Read(out, got[i]))
	}
	require.Equal(t, floats(32, func(i int) float32 { return float32(i+1) * float32(i%4+1) }), got[0])
	require.Equal(t, floats(32, func(i int) float32 { return 2 * float32(i+1) * float32(i%4+1) }), got[1])
}
