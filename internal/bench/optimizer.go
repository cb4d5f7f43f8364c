package bench

import (
	"fmt"
	"math"
	"regexp"
	"strconv"

	"octet/backend"
	"octet/fp8"
)

// Sizes is the default: the parameter counts of small and 124m.
var Sizes = []int{14_000_000, 124_000_000}

var sizeText = regexp.MustCompile(`^([0-9]{1,9})([kMG]?)$`)

// ParseSize reads a number of parameters: "14000000" or "14M".
func ParseSize(text string) (int, error) {
	n := 0
	if m := sizeText.FindStringSubmatch(text); m != nil {
		n, _ = strconv.Atoi(m[1]) // nine digits
		n *= map[string]int{"": 1, "k": 1e3, "M": 1e6, "G": 1e9}[m[2]]
	}
	if n < 1 || n > math.MaxInt32 {
		return 0, fmt.Errorf("size %q is not a number of parameters, such as 14000000 or 14M, up to 2G", text)
	}
	return n, nil
}

// states are the formats of master weights and moments.
type states struct {
	name           string
	master, m1, m2 fp8.DType
	rounding       fp8.Rounding
}

// Optimizer returns the cases of AdamW over one tensor of each size, in FP32 and in the
// formats of the FP8 recipes.
func (b *Bench) Optimizer(sizes []int) ([]Case, error) {
	var list []Case
	for _, n := range sizes {
		for _, s := range []states{
			{"fp32", fp8.F32, fp8.F32, fp8.F32, fp8.Nearest},
			{"fp16, e4m3, e5m2, nearest", fp8.F16, b.spec.E4M3, fp8.E5M2, fp8.Nearest},
			{"fp16, e4m3, e5m2, stochastic", fp8.F16, b.spec.E4M3, fp8.E5M2, fp8.Stochastic},
		} {
			list = append(list, s.record(n))
		}
	}
	return b.check(list)
}

func (s states) record(n int) Case {
	fill, vars := contents{}, backend.NewVars()
	list := func(t *backend.Tensor) []*backend.Tensor { return []*backend.Tensor{t} }
	state := func(name string, class backend.Class, d fp8.DType) *backend.Tensor {
		t := vars.Tensor(class, name, d, n)
		if d != fp8.F32 {
			t.Scale = fill.one(vars, name+".scale_inv")
		}
		return t
	}
	grad, master := state("grad", backend.Stash, fp8.F32), state("master", backend.Stash, s.master)
	// The moments start at zero; after the warm-up they are those of the gradient.
	m1, m2 := state("m1", backend.State, s.m1), state("m2", backend.State, s.m2)
	step := vars.Tensor(backend.State, "step", fp8.I32, 1)
	fill[step] = []byte{1, 0, 0, 0}
	p := vars.Program("optimizer")
	p.Add(&backend.AdamW{
		Grad: list(grad), Master: list(master), M1: list(m1), M2: list(m2),
		MasterScale: list(master.Scale), M1Scale: list(m1.Scale), M2Scale: list(m2.Scale),
		Control: fill.control(vars), Step: step, Coef: fill.one(vars, "coef"),
		Skip:   vars.Tensor(backend.State, "skip", fp8.I32, 1),
		Amaxes: p.Temp("amax", fp8.F32, 3),
		Beta1:  0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, Rounding: s.rounding,
	})
	norm := vars.Program("norm") // as in a step: the maxima that it finds in the gradient may let AdamW skip blocks
	norm.Add(&backend.SumSquares{X: list(grad), Out: norm.Temp("norm", fp8.F32, 1)})
	return Case{bench: "optimizer", name: s.name, shape: strconv.Itoa(n), program: p, prepare: norm, fill: fill, limit: byBytes}
}
