package train

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
	"octet/nn"
)

// The scope decides which matrices have moments in the recipe's formats. Masters and gains
// never change.
func TestStateScope(t *testing.T) {
	for _, test := range []struct {
		scope           string
		tied            bool
		embedding, head fp8.DType // of m1
	}{
		{"layers", false, fp8.F32, fp8.F32},
		{"head", false, fp8.F32, fp8.E4M3},
		{"embedding", false, fp8.E4M3, fp8.F32},
		{"all", false, fp8.E4M3, fp8.E4M3},
		{"layers", true, fp8.F32, fp8.F32},
		{"head", true, fp8.E4M3, fp8.E4M3},
		{"embedding", true, fp8.E4M3, fp8.E4M3},
	} {
		c := small(t, "fp8-smooth")
		c.Precision.StateScope, c.Model.Tied = test.scope, test.tied
		j, err := NewJob(c, backend.Spec{})
		require.NoError(t, err)
		for _, p := range j.Model.Params {
			want, master := fp8.E4M3, fp8.F16
			switch {
			case !p.Matrix:
				want, master = fp8.F32, fp8.F32
			case p.Embedding:
				want, master = test.embedding, fp8.F32
			case p.Head:
				want, master = test.head, fp8.F32
			}
			require.Equal(t, want, j.optimizer.m1[p].DType, "%s: %s", test.scope, p.Name)
			require.Equal(t, master, p.Master.DType, p.Name)
		}
	}
}

// largestUpdate returns the largest |m/(√v + ε)| of a parameter whose moments are stored in
// formats m1 and m2 with one scale each, and the share of v that becomes 0.
func largestUpdate(t *testing.T, tr *team, p *nn.Param, m1, m2 fp8.DType) (largest, flushed float64) {
	t.Helper()
	stored := func(x *backend.Tensor, d fp8.DType) []float64 {
		list := values(t, tr.ranks[0], x)
		amax := float32(0)
		for _, v := range list {
			amax = fp8.MaxAmax(amax, float32(v))
		}
		scale, _ := fp8.ScaleFor(amax, d.Max(), false)
		if d == fp8.F32 {
			scale = 1
		}
		for i, v := range list {
			list[i] = float64(d.Float32(d.Nearest(float32(v)*scale, fp8.Saturate)) / scale)
		}
		return list
	}
	m, v := stored(tr.optimizer.m1[p], m1), stored(tr.optimizer.m2[p], m2)
	exact := values(t, tr.ranks[0], tr.optimizer.m2[p])
	for i := range m {
		largest = max(largest, math.Abs(m[i])/(math.Sqrt(v[i])+tr.Config.Optimizer.Eps))
		if v[i] == 0 && exact[i] > 0 {
			flushed += 1 / float64(len(m))
		}
	}
	return largest, flushed
}

// In the layers, whose second moments span few decades, E4M3 serves for them as well as E5M2. In
// the head most of them become 0 in E4M3, and the update explodes; E5M2 has the range.
func TestSecondMomentsOfTheHead(t *testing.T) {
	tr := newTrainer(t, small(t, "bf16"), 2, false)
	steps(t, tr, 60)
	for _, p := range tr.Model.Params {
		if !p.Matrix {
			continue
		}
		exact, _ := largestUpdate(t, tr, p, fp8.F32, fp8.F32)
		wide, _ := largestUpdate(t, tr, p, fp8.E4M3, fp8.E5M2)
		require.InEpsilon(t, exact, wide, 0.15, p.Name)
		narrow, flushed := largestUpdate(t, tr, p, fp8.E4M3, fp8.E4M3)
		if p.Head {
			require.Greater(t, narrow, 1000., p.Name)
			require.Greater(t, flushed, 0.005, p.Name)
		} else {
			require.InEpsilon(t, exact, narrow, 0.15, p.Name)
		}
	}
}
