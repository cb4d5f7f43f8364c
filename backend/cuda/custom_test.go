package cuda

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// blend is Sum = A ⊙ W + B and Product = A ⊙ B, with one row W for all rows.
type blend struct {
	backend.Custom
	A       *backend.Tensor `op:"in"`
	B       *backend.Tensor `op:"in"`
	W       *backend.Tensor `op:"in"`
	Sum     []backend.Cast  `op:"cast"`
	Product []backend.Cast  `op:"cast"`

	Source    string
	WholeRows bool
}

const blended = `// the constants of this function
__device__ const float one = 1.0f;
enum Format { A, B, W }; // a name of the kernels, too
__device__ float weighted(float x, float w) { return one * x * w; }
__device__ void f(float *out, const float *in) {
	out[0] = weighted(in[A], in[W]) + in[B];
	out[1] = in[A] * in[B];
}`

func (o *blend) Check(*backend.Check) {}

func (o *blend) Reference(args backend.Arguments) {
	a, b, w := args.Read(o.A), args.Read(o.B), args.Read(o.W)
	sum := make([]float64, len(a))
	for i, x := range a {
		sum[i], a[i] = x*w[i%len(w)]+b[i], x*b[i]
	}
	args.Cast(o.Sum, sum, o.A.Cols())
	args.Cast(o.Product, a, o.A.Cols())
}

func (o *blend) Loop() backend.Loop {
	return backend.Loop{
		In: []*backend.Tensor{o.A, o.B, o.W}, Out: [][]backend.Cast{o.Sum, o.Product}, CUDA: o.Source, WholeRows: o.WholeRows,
		F: func(out, in [][]float32) {
			for i, x := range in[0] {
				out[0][i] = float32(x*in[2][i]) + in[1][i]
				out[1][i] = x * in[1][i]
			}
		},
	}
}

// blendOf returns variables and a program that blends tensors of 8×4 elements.
func blendOf(source string) (*backend.Vars, *backend.Program) {
	v := backend.NewVars()
	tensor := func(name string, shape ...int) *backend.Tensor {
		return v.Tensor(backend.Stash, name, fp8.F32, shape...)
	}
	p := v.Program("p")
	p.Scope("layer").Add(&blend{
		A: tensor("a", 8, 4), B: tensor("b", 8, 4), W: tensor("w", 4), Source: source,
		Sum: []backend.Cast{{Out: tensor("sum", 8, 4)}}, Product: []backend.Cast{{Out: tensor("product", 8, 4)}},
	})
	return v, p
}

// many is an op with N results, all equal to X.
type many struct {
	backend.Custom
	X   *backend.Tensor `op:"in"`
	Out []backend.Cast  `op:"cast"`
}

func (o *many) Check(*backend.Check)        {}
func (o *many) Reference(backend.Arguments) {}
func (o *many) Loop() backend.Loop {
	l := backend.Loop{In: []*backend.Tensor{o.X}, CUDA: blended, F: func(_, _ [][]float32) {}}
	for i := range o.Out {
		l.Out = append(l.Out, o.Out[i:i+1])
	}
	return l
}

type referenceAlone struct {
	backend.Custom
	Y *backend.Tensor `op:"out"`
}

func (o *referenceAlone) Check(*backend.Check)        {}
func (o *referenceAlone) Reference(backend.Arguments) {}

// An op that this backend cannot run is refused by name, on any machine, with what is
// missing.
func TestRefusedCustomOps(t *testing.T) {
	v := backend.NewVars()
	x, y := v.Tensor(backend.Stash, "x", fp8.F32, 8, 4), v.Tensor(backend.Stash, "y", fp8.F32, 8, 4)
	wide := slices.Repeat([]backend.Cast{{Out: y}}, 11)
	_, silent := blendOf("")
	_, rows := blendOf("")
	rows.Nodes()[0].Op.(*blend).WholeRows = true
	for message, p := range map[string]*backend.Program{
		"layer: cuda.blend: unsupported by backend cuda: the Loop of *cuda.blend has no CUDA source: set Loop.CUDA":                                                                                                 silent,
		"layer: cuda.blend: unsupported by backend cuda: the Loop of *cuda.blend has WholeRows, but CUDA source computes single elements: split the op into built-in ops and loops over elements, or run it on emu": rows,
		"cuda.referencealone: unsupported by backend cuda: no kernel for *cuda.referenceAlone; a custom op must implement backend.Looped, with CUDA source in its Loop":                                             single(v, &referenceAlone{Y: y}),
	} {
		require.NoError(t, p.Err())
		_, err := (&binder{address: newMap().of}).bind(p.Nodes()[0])
		require.ErrorIs(t, err, backend.ErrUnsupported)
		require.EqualError(t, err, message)
	}
	_, err := (&binder{address: newMap().of}).loop(&backend.Node{Op: &many{X: x, Out: wide}})
	require.ErrorIs(t, err, backend.ErrUnsupported)
	require.ErrorContains(t, err, "its 1 inputs and 11 results need 4456 bytes of kernel arguments, the maximum is 4096: split the op")
}

func single(v *backend.Vars, op backend.Op) *backend.Program {
	p := v.Program("p")
	p.Add(op)
	return p
}

// The op that writes the operand of an FP8 GEMM writes it in the layout that the GEMM
// requires, as the built-in ops do.
func TestCustomOpWritesTransposedCopies(t *testing.T) {
	v := backend.NewVars()
	tensor := func(name string, d fp8.DType, shape ...int) *backend.Tensor {
		return v.Tensor(backend.Stash, name, d, shape...)
	}
	x, scale, g := tensor("x", fp8.F32, 32, 16), tensor("scale", fp8.F32, 1), tensor("g", fp8.E5M2, 16, 32)
	p := v.Program("p")
	h := p.Temp("h", fp8.E4M3, 32, 16)
	h.Scale, g.Scale = scale, scale
	p.Add(&blend{
		A: x, B: x, W: x.RowRange(0, 1), Source: blended,
		Sum: []backend.Cast{{Out: h, Scale: scale}}, Product: []backend.Cast{{Out: tensor("product", fp8.F32, 32, 16)}},
	})
	p.Add(&backend.MatMul{A: h, TransA: true, B: g, TransB: true, Out: tensor("out", fp8.F32, 16, 16)})
	require.NoError(t, p.Err())
	lowered, err := lower(forDevice(t), []*backend.Program{p})
	require.NoError(t, err)
	nodes := lowered[0].Nodes()
	sum, operand := nodes[0].Op.(*blend).Sum, nodes[1].Op.(*backend.MatMul).A
	require.Len(t, sum, 1)
	require.True(t, sum[0].Transpose)
	require.Equal(t, []int{16, 32}, sum[0].Out.Shape)
	require.Equal(t, sum[0].Out, operand)
	_, err = (&binder{address: newMap().of}).bind(nodes[0])
	require.NoError(t, err)
}

// A custom op is planned without a device.
func TestCustomOpIsPlanned(t *testing.T) {
	_, p := blendOf(blended)
	s := forDevice(t)
	lowered, err := lower(s, []*backend.Program{p})
	require.NoError(t, err)
	_, err = outline(s, lowered)
	require.NoError(t, err)
	calls, err := (&binder{address: newMap().of}).bind(lowered[0].Nodes()[0])
	require.NoError(t, err)
	require.Len(t, calls, 1)
	require.Equal(t, "custom_cuda_blend", calls[0].launch.kernel)
	require.Equal(t, "cuda.blend", calls[0].launch.source.name)
	require.Len(t, calls[0].launch.args, 3*4+2*50+3)
	require.Zero(t, calls[0].launch.args[9], "all rows read one row")
}
