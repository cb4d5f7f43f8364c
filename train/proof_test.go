package train

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// TestFP8Ran shows that the GEMMs of a step were computed in FP8 and not in a wider
// format. Every cast is unfused, so that the values before it can be read. For every
// GEMM with FP8 operands the test measures
//
//	e_A, e_B   the relative error of each operand's cast
//	e          the relative error of the result against float64 on the uncast operands
//	κ          √(Σ_k A²B² summed over the result) / ‖A·B‖
//
// and requires e ≈ κ·√(e_A² + e_B²), within a factor of 2: the errors of casts are
// independent and their squares add up, while the terms of a dot product in a trained
// model are correlated (κ < 1; random operands have κ = 1). With BF16 operands e would be
// a tenth of that.
func TestFP8Ran(t *testing.T) {
	gemms := map[string]int{"torchao-row-gw-hp": 2} // number of a linear layer's GEMMs in FP8, if not 3
	for _, name := range []string{
		"fp8-current", "fp8-delayed", "fp8-smooth", "fp8-smooth-token", "fp8-paper", "te-delayed", "te-current", "te-block",
		"torchao-tensor", "torchao-row", "torchao-row-gw-hp", "deepseek-v3", "mxfp8",
	} {
		t.Run(name, func(t *testing.T) {
			c := small(t, name)
			c.Model.Dim, c.Model.FFN, c.Data.Seq = 64, 144, 64 // more than one block of 128
			tr := newTrainer(t, c, 2, false)
			steps(t, tr, 12)
			want := 7 * cmp.Or(gemms[name], 3) * c.Model.Layers
			require.Equal(t, want, requireCastErrors(t, tr), "three GEMMs of each of the seven linear layers of every decoder layer")
		})
	}
}

// requireCastErrors requires that errors of casts explain those of all GEMMs with FP8 operands,
// and returns their number.
func requireCastErrors(t *testing.T, tr *team) (seen int) {
	t.Helper()
	quantized := func(_ *backend.Node, op *backend.MatMul) bool {
		return op.A.DType.IsQuantized() && op.B.DType.IsQuantized()
	}
	observeGEMMs(t, tr, quantized, func(r gemmResult) {
		seen++
		r.requireError(t)
	})
	return seen
}

// gemmObserver computes the exact results of the GEMMs of a step.
type gemmObserver struct {
	t     *testing.T
	wants func(*backend.Node, *backend.MatMul) bool
	visit func(gemmResult)
	// wide holds the values before a cast, keyed by the tensor with the codes.
	wide map[*backend.Tensor]matrix64
	last map[*backend.Tensor][]float64 // the previous value of an accumulating output
}

// gemmResult is the result of a GEMM without what it adds to, and the exact one of the operands
// before their casts, both [rows, cols].
type gemmResult struct {
	node       *backend.Node
	op         *backend.MatMul
	got, exact []float64
	cols       int
	terms      float64 // Σ over results and k of the squared terms
	eA, eB     float64 // relative errors of the operands' casts
}

// error returns the relative error of the columns that keep selects; nil selects all.
func (r gemmResult) error(keep func(col int) bool) float64 {
	num, den := 0.0, 0.0
	for i, x := range r.exact {
		if keep == nil || keep(i%r.cols) {
			num += (r.got[i] - x) * (r.got[i] - x)
			den += x * x
		}
	}
	return math.Sqrt(num / den)
}

// requireError requires the error that the errors of the casts explain.
func (r gemmResult) requireError(t *testing.T) {
	den := 0.0
	for _, x := range r.exact {
		den += x * x
	}
	e, expected := r.error(nil), math.Hypot(r.eA, r.eB)*math.Sqrt(r.terms/den)
	where := fmt.Sprintf("%s: error %.4f, casts %.4f and %.4f", r.node.Path(), e, r.eA, r.eB)
	require.Greater(t, e, expected/2, where)
	require.Less(t, e, expected*2, where)
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

// observeGEMMs casts the weights, runs the micro-batch of the last step and visits the GEMMs that
// wants selects.
func observeGEMMs(t *testing.T, tr *team, wants func(*backend.Node, *backend.MatMul) bool, visit func(gemmResult)) {
	p := &gemmObserver{t: t, wants: wants, visit: visit, wide: map[*backend.Tensor]matrix64{}, last: map[*backend.Tensor][]float64{}}
	r := tr.ranks[0]
	var programs []*backend.Program
	for _, q := range []*backend.Program{tr.Prepare, tr.Micro[Variant{true, true}]} {
		q, err := backend.Unfuse(q, func(backend.Op) bool { return false })
		require.NoError(t, err)
		programs = append(programs, q)
	}
	loaded, err := r.device.Load(programs...)
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
				p.gemm(n, op, values)
			}
			return nil
		}))
	}
}

func (p *gemmObserver) cast(op *backend.Quantize, values func(*backend.Tensor) []float64) {
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

func (p *gemmObserver) gemm(n *backend.Node, op *backend.MatMul, values func(*backend.Tensor) []float64) {
	out := values(op.Out)
	previous := p.last[op.Out]
	p.last[op.Out] = slices.Clone(out)
	if !p.wants(n, op) {
		return
	}
	wide := func(x *backend.Tensor) (matrix64, float64) {
		m, ok := p.wide[x]
		if !ok {
			require.False(p.t, x.DType.IsQuantized(), "%s: no cast of %s was seen", n.Path(), x)
			return matrix64{values(x), x.Rows(), x.Cols()}, 0
		}
		return m, distance(values(x), m.x)
	}
	r := gemmResult{node: n, op: op, got: out}
	a, eA := wide(op.A)
	b, eB := wide(op.B)
	r.eA, r.eB = eA, eB
	var rowScale, colScale []float64
	add := previous
	switch {
	case op.Residual != nil:
		add = values(op.Residual)
	case !op.Accumulate:
		add = nil
	}
	if op.ColScale != nil {
		colScale = values(op.ColScale)
	}
	if op.RowScale != nil {
		rowScale = values(op.RowScale)
	}
	rows, cols, depth := op.Dims()
	r.cols = cols
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
				r.terms += term * term
			}
			r.exact = append(r.exact, exact)
			if add != nil {
				out[i*cols+j] -= add[i*cols+j]
			}
		}
	}
	p.visit(r)
}

// The GEMMs of a recorded program have the formats of the recipe.
func TestProgramsFollowTheRecipe(t *testing.T) {
	for _, name := range recipe.Names() {
		c := small(t, name)
		c.Precision.Rows = []PrecisionRow{{Scope: "layers.0.mlp.up_proj", Format: recipeCompute(t, name)}}
		j, err := NewJob(c, specOf(t, "emu"))
		require.NoError(t, err)
		seen := 0
		layers := map[string]recipe.Layer{}
		for _, l := range j.Model.Linears() {
			layers[l.Scope] = l
		}
		precision := map[*backend.Tensor]fp8.DType{}
		for _, p := range j.Programs() {
			for _, n := range p.Nodes() {
				for c := range backend.Casts(n.Op) {
					precision[c.Out] = c.Precision
				}
			}
		}
		format := func(t *backend.Tensor) fp8.DType { return cmp.Or(precision[t], t.DType) }
		for _, n := range j.Micro[Variant{true, true}].Nodes() {
			op, ok := n.Op.(*backend.MatMul)
			l, known := layers[n.Scope]
			if !ok || l.Head {
				continue
			}
			require.True(t, known, n.Path())
			gemm, a, b := roleOf(n, op)
			require.Equal(t, j.Recipe.Cast(l, gemm, a).DType, format(op.A), "%s %s A", n.Path(), gemm)
			require.Equal(t, j.Recipe.Cast(l, gemm, b).DType, format(op.B), "%s %s B", n.Path(), gemm)
			seen++
		}
		require.Equal(t, 7*3*c.Model.Layers, seen, name)
	}
}

// The operands of the GEMMs in the recipes of other systems, as stored: format, block
// that shares a scale, and scale format. The long side of a block extends along K, which
// is along the rows of x and W in fprop and of dy in dgrad, and along the columns of W in
// dgrad and of both operands in wgrad.
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
		"int8-switchback": {
			recipe.Fprop: "int8 1x* fp32 * int8 tensor fp32",
			recipe.Dgrad: "int8 1x* fp32 * int8 tensor fp32",
			recipe.Wgrad: "bf16 * bf16",
		},
		"int8-unified": {
			recipe.Fprop: "int8 1x* fp32 * int8 tensor fp32",
			recipe.Dgrad: "int8 tensor fp32 * int8 tensor fp32",
			recipe.Wgrad: "int8 tensor fp32 * int8 tensor fp32",
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

// roleOf returns the GEMM that a node is and the roles of its operands, derived from
// its phase, transposes and output.
func roleOf(n *backend.Node, op *backend.MatMul) (recipe.GEMM, recipe.Operand, recipe.Operand) {
	switch {
	case n.Phase == backend.Forward:
		return recipe.Fprop, recipe.Input, recipe.Weight
	case op.TransA && strings.HasSuffix(op.Out.Name, ".grad"):
		return recipe.Wgrad, recipe.Grad, recipe.Input
	}
	return recipe.Dgrad, recipe.Grad, recipe.Weight
}
