package train

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
	"octet/nn"
	"octet/recipe"
)

// plantOutlier multiplies one feature of the input of layer 0's MLP by size, in the gain of its
// norm, and divides its column of gate_proj and up_proj: the model computes the same function.
func plantOutlier(t *testing.T, tr *team, feature int, size float32) {
	t.Helper()
	change := func(name string, by float32) {
		for _, p := range tr.Model.Params {
			if !strings.HasSuffix(p.Name, "layers.0."+name+".weight") {
				continue
			}
			x := readMaster(t, tr, p)
			width := len(x)
			if p.Matrix {
				width = p.Cols()
			}
			for i := feature; i < len(x); i += width {
				x[i] *= by
			}
			require.NoError(t, tr.ranks[0].device.Write(p.Master, fp8.AppendFloats(nil, x...)))
			return
		}
		require.Fail(t, "no parameter "+name)
	}
	change("post_attention_layernorm", size)
	change("mlp.gate_proj", 1/size)
	change("mlp.up_proj", 1/size)
}

// readMaster returns the values of an FP32 master.
func readMaster(t *testing.T, tr *team, p *nn.Param) []float32 {
	t.Helper()
	raw := make([]byte, p.Master.Bytes())
	require.NoError(t, tr.ranks[0].device.Read(p.Master, raw))
	x := make([]float32, p.Master.Elems())
	fp8.F32.Decode(x, raw)
	return x
}

// Relative errors of layer 0's up_proj, which SwitchBack's choice of granularities and formats
// explains: INT8 with a scale per row costs little in fprop and dgrad; a scale for all gradients
// costs more, and so does wgrad in INT8. With one input feature 128 times as large, the other
// features' wgrad is lost, unless each feature has a scale. OCTET_LONG uses the model tiny.
func TestSwitchBackErrors(t *testing.T) {
	c, count := small(t, "bf16"), 40
	c.Model.Dim, c.Model.FFN, c.Data.Seq = 64, 144, 64
	if os.Getenv("OCTET_LONG") != "" {
		var err error
		c, err = Preset("tiny")
		require.NoError(t, err)
		count = 300
	}
	const feature, size = 5, 128
	type errors struct{ fprop, dgrad, wgrad, others float64 }
	measure := func(name string, planted bool, rows ...PrecisionRow) (e errors) {
		c := c
		c.Recipe, c.Precision.Rows = name, rows
		tr := newTrainer(t, c, 2, false)
		steps(t, tr, count)
		if planted {
			plantOutlier(t, tr, feature, size)
		}
		upProj := func(n *backend.Node, _ *backend.MatMul) bool { return n.Scope == "layers.0.mlp.up_proj" }
		observeGEMMs(t, tr, upProj, func(r gemmResult) {
			switch gemm, _, _ := roleOf(r.node, r.op); gemm {
			case recipe.Fprop:
				e.fprop = r.error(nil)
			case recipe.Dgrad:
				e.dgrad = r.error(nil)
			case recipe.Wgrad:
				e.wgrad, e.others = r.error(nil), r.error(func(col int) bool { return col != feature })
			}
		})
		t.Logf("%-28s outlier %-5v fprop %.4f dgrad %.4f wgrad %.4f, of other features %.4f",
			strings.Join(append([]string{name}, rowNames(rows)...), " "), planted, e.fprop, e.dgrad, e.wgrad, e.others)
		return e
	}
	tensor := PrecisionRow{Scope: "layers.*", Operand: "grad", Granularity: "tensor"}
	perRow := PrecisionRow{Scope: "layers.*", GEMM: "wgrad", Granularity: "row"}
	plain, planted := measure("int8-switchback", false), measure("int8-switchback", true)
	perTensor := measure("int8-switchback", false, tensor)
	control, lost := measure("int8-wgrad", false), measure("int8-wgrad", true)
	features := measure("int8-wgrad", true, perRow)
	require.Less(t, plain.fprop, 0.02)
	require.Less(t, plain.dgrad, 0.025)
	require.Less(t, plain.wgrad, 1e-4, "wgrad in BF16")
	require.Greater(t, perTensor.dgrad, 3*plain.dgrad)
	require.Greater(t, control.wgrad, 3*plain.fprop)
	require.Less(t, planted.others, 1e-4)
	require.Greater(t, lost.others, 0.3)
	require.Less(t, features.others, 0.1)
}

func rowNames(rows []PrecisionRow) (list []string) {
	for _, r := range rows {
		list = append(list, fmt.Sprint(r.GEMM, r.Operand, " ", r.Granularity))
	}
	return list
}
