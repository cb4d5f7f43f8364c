package train

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/recipe"
)

// TestFP8Ran proves that the products of a step were computed in FP8 and not
// in something wider under its name. Every cast is unfused, so that the values
// before it can be seen; then, for every product with FP8 operands,
//
//	e_A, e_B   the measured error of each operand's cast
//	e          the error of the product against float64 on the uncast operands
//	κ          √(Σ_k A²B² summed over the result) / ‖A·B‖
//
// must satisfy e ≈ κ·√(e_A² + e_B²): errors of casts are independent and add up
// in squares, while the terms of a product that means something pull in one
// direction (κ < 1; random operands have κ = 1). The limits are half and
// double. A product in BF16 would be tenfold too good.
func TestFP8Ran(t *testing.T) {
	products := map[string]int{"torchao-row-gw-hp": 2} // of a linear layer, in FP8
	for _, name := range []string{
		"fp8-current", "fp8-delayed", "fp8-smooth", "fp8-smooth-token", "fp8-paper", "te-delayed", "te-current", "te-block",
		"torchao-tensor", "torchao-row", "torchao-row-gw-hp", "deepseek-v3", "mxfp8",
	} {
		t.Run(name, func(t *testing.T) {
			c := small(t, name)
			c.Model.Dim, c.Model.FFN, c.Data.Seq = 64, 144, 64 // of more than one block of 128
			tr := newTrainer(t, c, 2, false)
			steps(t, tr, 40)
			p := newProof(t, tr)
			want := 7 * cmp.Or(products[name], 3) * c.Model.Layers
			require.Equal(t, want, p.products, "seven linear layers, three products each, in every layer")
		})
	}
}

type proof struct {
	t        *testing.T
	products int
	// wide holds what was cast, keyed by the tensor that holds the codes.
	wide map[*backend.Tensor]matrix64
	last map[*backend.Tensor][]float64 // what an accumulating output held before
}

type matrix64 struct {
	x          []float64
	rows, cols int
}

func (m matrix64) at(i, j int, transposed bool) float64 {
	if transposed {
		i, j = j, i
	}
	return m.x[i*m.cols+j]
}

func newProof(t *testing.T, tr *Trainer) *proof {
	p := &proof{t: t, wide: map[*backend.Tensor]matrix64{}, last: map[*backend.Tensor][]float64{}}
	r := tr.ranks[0]
	var programs []*backend.Program
	for _, q := range []*backend.Program{tr.Prepare, tr.Micro[Variant{true, true}]} {
		q, err := backend.Unfuse(q, func(backend.Op) bool { return false })
		require.NoError(t, err)
		programs = append(programs, q)
	}
	loaded, err := r.backend.Load(programs...)
	require.NoError(t, err)
	for _, x := range loaded {
		require.NoError(t, x.RunObserved(context.Background(), func(n *backend.Node, m backend.Memory) error {
			values := func(x *backend.Tensor) []float64 {
				list, err := backend.Values(m, x)
				require.NoError(t, err)
				return list
			}
			switch op := n.Op.(type) {
			case *backend.Quantize:
				p.cast(op, values)
			case *backend.MatMul:
				p.product(n, op, values)
			}
			return nil
		}))
	}
	return p
}

func (p *proof) cast(op *backend.Quantize, values func(*backend.Tensor) []float64) {
	x := values(op.X)
	if op.RowScale != nil {
		for i, r := 0, values(op.RowScale); i < len(x); i++ {
			x[i] *= r[i/op.X.Cols()]
		}
	}
	if op.ColScale != nil {
		for i, c := 0, values(op.ColScale); i < len(x); i++ {
			x[i] *= c[i%len(c)]
		}
	}
	for _, c := range op.Out {
		p.wide[c.Out] = matrix64{x, op.X.Rows(), op.X.Cols()}
	}
}

func (p *proof) product(n *backend.Node, op *backend.MatMul, values func(*backend.Tensor) []float64) {
	out := values(op.Out)
	defer func() { p.last[op.Out] = out }()
	if !op.A.DType.IsFP8() || !op.B.DType.IsFP8() {
		return
	}
	p.products++
	a, okA := p.wide[op.A]
	b, okB := p.wide[op.B]
	require.True(p.t, okA && okB, "%s: an operand without a cast", n.Path())
	eA, eB := distance(values(op.A), a.x), distance(values(op.B), b.x)

	var add, rowScale, colScale []float64
	switch {
	case op.Residual != nil:
		add = values(op.Residual)
	case op.Accumulate:
		add = p.last[op.Out]
	}
	if op.ColScale != nil {
		colScale = values(op.ColScale)
	}
	if op.RowScale != nil {
		rowScale = values(op.RowScale)
	}
	rows, cols, depth := op.Dims()
	num, den, terms := 0.0, 0.0, 0.0
	for i := range rows {
		for j := range cols {
			scale := 1.0
			if rowScale != nil {
				scale = rowScale[i]
			}
			if colScale != nil {
				scale *= colScale[j]
			}
			exact := 0.0
			for k := range depth {
				term := scale * a.at(i, k, op.TransA) * b.at(k, j, op.TransB)
				exact += term
				terms += term * term
			}
			got := out[i*cols+j]
			if add != nil {
				got -= add[i*cols+j]
			}
			num += (got - exact) * (got - exact)
			den += exact * exact
		}
	}
	e, expected := math.Sqrt(num/den), math.Hypot(eA, eB)*math.Sqrt(terms/den)
	where := fmt.Sprintf("%s: error %.4f, casts %.4f and %.4f", n.Path(), e, eA, eB)
	require.Greater(p.t, e, expected/2, where)
	require.Less(p.t, e, expected*2, where)
}

// The dumped program reads the formats that the recipe's table promises.
func TestProgramsFollowTheRecipe(t *testing.T) {
	for _, name := range recipe.Names() {
		c := small(t, name)
		c.Precision.Rows = []PrecisionRow{{Scope: "layers.0.mlp.up_proj", Format: recipeCompute(t, name)}}
		j, err := NewJob(c, specOf(t, "emu"))
		require.NoError(t, err)
		seen := 0
		for _, n := range j.Micro[Variant{true, true}].Nodes() {
			op, ok := n.Op.(*backend.MatMul)
			if !ok || n.Scope == "lm_head" {
				continue
			}
			gemm, a, b := roleOf(n, op)
			require.Equal(t, j.Recipe.Cast(n.Scope, gemm, a).DType, op.A.DType, "%s %s A", n.Path(), gemm)
			require.Equal(t, j.Recipe.Cast(n.Scope, gemm, b).DType, op.B.DType, "%s %s B", n.Path(), gemm)
			seen++
		}
		require.Equal(t, 7*3*c.Model.Layers, seen, name)
	}
}

// What the peers multiply, operand by operand as it is stored: format, elements
// that share a scale and the scale's format. Along K, which is the columns of
// x and dy in fprop and dgrad, the rows of W in dgrad and of both operands in
// wgrad, lies the long side of their blocks.
func TestProgramsOfThePeers(t *testing.T) {
	hybrid := map[recipe.GEMM]string{
		recipe.Fprop: "e4m3 tensor fp32 * e4m3 tensor fp32",
		recipe.Dgrad: "e5m2 tensor fp32 * e4m3 tensor fp32",
		recipe.Wgrad: "e5m2 tensor fp32 * e4m3 tensor fp32",
	}
	blocks := map[recipe.GEMM]string{
		recipe.Fprop: "e4m3 1x128 fp32 * e4m3 128x128 fp32",
		recipe.Dgrad: "e4m3 1x128 fp32 * e4m3 128x128 fp32",
		recipe.Wgrad: "e4m3 128x1 fp32 * e4m3 128x1 fp32",
	}
	for name, want := range map[string]map[recipe.GEMM]string{
		"te-delayed": hybrid, "te-current": hybrid, "torchao-tensor": hybrid,
		"te-block": blocks, "deepseek-v3": blocks,
		"torchao-row": {
			recipe.Fprop: "e4m3 1x* fp32 * e4m3 1x* fp32",
			recipe.Dgrad: "e4m3 1x* fp32 * e4m3 *x1 fp32",
			recipe.Wgrad: "e4m3 *x1 fp32 * e4m3 *x1 fp32",
		},
		"torchao-row-gw-hp": {
			recipe.Fprop: "e4m3 1x* fp32 * e4m3 1x* fp32",
			recipe.Dgrad: "e4m3 1x* fp32 * e4m3 tensor fp32",
			recipe.Wgrad: "bf16 * bf16",
		},
		"mxfp8": {
			recipe.Fprop: "e4m3 1x32 e8m0 * e4m3 1x32 e8m0",
			recipe.Dgrad: "e4m3 1x32 e8m0 * e4m3 32x1 e8m0",
			recipe.Wgrad: "e4m3 32x1 e8m0 * e4m3 32x1 e8m0",
		},
	} {
		j, err := NewJob(small(t, name), specOf(t, "emu"))
		require.NoError(t, err)
		seen := 0
		for _, n := range j.Micro[Variant{true, true}].Nodes() {
			op, ok := n.Op.(*backend.MatMul)
			if !ok || n.Scope == "lm_head" {
				continue
			}
			gemm, _, _ := roleOf(n, op)
			require.Equal(t, want[gemm], storedAs(op.A)+" * "+storedAs(op.B), "%s: %s %s", name, n.Path(), gemm)
			seen++
		}
		require.Equal(t, 7*3*j.Config.Model.Layers, seen, name)
	}
}

func storedAs(t *backend.Tensor) string {
	if t.Scale == nil {
		return t.DType.String()
	}
	return fmt.Sprintf("%s %s %s", t.DType, t.Block, t.Scale.DType)
}

func recipeCompute(t *testing.T, name string) string {
	r, err := recipe.Lookup(name)
	require.NoError(t, err)
	return r.Compute.String()
}

// roleOf tells the three products apart by their transposes, and the order of
// operands that goes with each.
func roleOf(n *backend.Node, op *backend.MatMul) (recipe.GEMM, recipe.Operand, recipe.Operand) {
	switch {
	case n.Phase == backend.Forward:
		return recipe.Fprop, recipe.Input, recipe.Weight
	case op.TransA && strings.HasSuffix(op.Out.Name, ".grad"):
		return recipe.Wgrad, recipe.Grad, recipe.Input
	}
	return recipe.Dgrad, recipe.Grad, recipe.Weight
}
