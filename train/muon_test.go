package train

import (
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
	"octet/nn"
	"octet/recipe"
)

// product64 returns a·b of matrices of rows, inner and cols.
func product64(a, b []float64, rows, inner, cols int) []float64 {
	c := make([]float64, rows*cols)
	for i := range rows {
		for k := range inner {
			for j := range cols {
				c[i*cols+j] += a[i*inner+k] * b[k*cols+j]
			}
		}
	}
	return c
}

func transpose64(a []float64, rows, cols int) []float64 {
	t := make([]float64, len(a))
	for i := range rows {
		for j := range cols {
			t[j*rows+i] = a[i*cols+j]
		}
	}
	return t
}

func norm64(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v * v
	}
	return math.Sqrt(sum)
}

// published returns Newton-Schulz steps with these coefficients as Muon's authors write them, in
// float64: X = aX + (bA + cA²)X.
func published(u []float64, rows, cols, steps int, a, b, c float64) []float64 {
	if rows > cols {
		return transpose64(published(transpose64(u, rows, cols), cols, rows, steps, a, b, c), cols, rows)
	}
	x := make([]float64, len(u))
	for i, norm := 0, norm64(u); i < len(u); i++ {
		x[i] = u[i] / norm
	}
	for range steps {
		gram := product64(x, transpose64(x, rows, cols), rows, cols, rows)
		poly := product64(gram, gram, rows, rows, rows)
		for i := range poly {
			poly[i] = b*gram[i] + c*poly[i]
		}
		for i, v := range product64(poly, x, rows, rows, cols) {
			x[i] = a*x[i] + v
		}
	}
	return x
}

// polar returns UVᵀ of the singular value decomposition, by steps that converge to it.
func polar(u []float64, rows, cols int) []float64 {
	return published(u, rows, cols, 60, 1.5, -0.5, 0)
}

// singularValues returns those of x in ascending order: the roots of the eigenvalues of xxᵀ, by
// Jacobi rotations.
func singularValues(x []float64, rows, cols int) []float64 {
	if rows > cols {
		x, rows, cols = transpose64(x, rows, cols), cols, rows
	}
	a := product64(x, transpose64(x, rows, cols), rows, cols, rows)
	for range 12 {
		for p := range rows {
			for q := range p {
				if a[p*rows+q] == 0 {
					continue
				}
				theta := (a[p*rows+p] - a[q*rows+q]) / (2 * a[p*rows+q])
				t := math.Copysign(1/(math.Abs(theta)+math.Hypot(theta, 1)), theta)
				c := 1 / math.Hypot(t, 1)
				rotate := func(i, j int) {
					a[i], a[j] = c*a[i]-c*t*a[j], c*t*a[i]+c*a[j]
				}
				for k := range rows {
					rotate(k*rows+q, k*rows+p)
				}
				for k := range rows {
					rotate(q*rows+k, p*rows+k)
				}
			}
		}
	}
	values := make([]float64, rows)
	for i := range values {
		values[i] = math.Sqrt(max(0, a[i*rows+i]))
	}
	slices.Sort(values)
	return values
}

// onEmu runs a program on emu. given are the values of variables, wanted those to return.
func onEmu(t *testing.T, p *backend.Program, given map[*backend.Tensor][]byte, wanted ...*backend.Tensor) (results [][]float64) {
	t.Helper()
	require.NoError(t, p.Err())
	d, err := backend.Open("emu", backend.Options{Threads: 2})
	require.NoError(t, err)
	defer d.Close()
	loaded, err := d.Load(p)
	require.NoError(t, err)
	for x, raw := range given {
		require.NoError(t, d.Write(x, raw))
	}
	require.NoError(t, loaded[0].Run(t.Context()))
	for _, x := range wanted {
		raw := make([]byte, x.Bytes())
		require.NoError(t, d.Read(x, raw))
		results = append(results, decodeAll(x.DType, raw))
	}
	return results
}

// orthogonalized returns the recorded Newton-Schulz steps on u, on emu.
func orthogonalized(t *testing.T, u []float64, rows, cols, steps int) []float64 {
	t.Helper()
	vars := backend.NewVars()
	in := vars.Tensor(backend.Stash, "u", fp8.F32, rows, cols)
	out := vars.Tensor(backend.Stash, "o", fp8.F32, rows, cols)
	p := vars.Program("steps")
	r := newtonSchulz{p, steps, map[string]*backend.Tensor{}}
	y, scale := r.orthogonalize(p.Scope("w"), in)
	p.Add(&backend.Quantize{X: y, Out: []backend.Cast{{Out: out}}})
	o := onEmu(t, p, map[*backend.Tensor][]byte{in: fp8.AppendFloats(nil, floats32(u)...)}, out)[0]
	for i := range o {
		o[i] *= scale
	}
	return o
}

func floats32(x []float64) []float32 {
	y := make([]float32, len(x))
	for i, v := range x {
		y[i] = float32(v)
	}
	return y
}

func noise64(seed uint64, n int) []float64 {
	rng, x := rand.New(rand.NewPCG(seed, 7)), make([]float64, n)
	for i := range x {
		x[i] = rng.NormFloat64()
	}
	return x
}

// Five steps in BF16 are the published iteration, and bring the singular values of a
// well-conditioned matrix to [0.7, 1.2]: near UVᵀ of its singular value decomposition. No step,
// and five steps with coefficients in another order, do not.
func TestNewtonSchulz(t *testing.T) {
	for _, shape := range [][2]int{{48, 96}, {96, 48}, {20, 70}} {
		rows, cols := shape[0], shape[1]
		u := noise64(1, rows*cols)
		for i := range u { // a scale that matters where X is not normalized
			u[i] *= 1e-3
		}
		spread := func(name string, o []float64) (lowest, highest, fromUV float64) {
			s, exact := singularValues(o, rows, cols), polar(u, rows, cols)
			lowest, highest, fromUV = s[0], s[len(s)-1], distance(o, exact)
			t.Logf("%v %-22s singular values %.3f to %.3f, error against UVᵀ %.3f", shape, name, lowest, highest, fromUV)
			return lowest, highest, fromUV
		}
		o := orthogonalized(t, u, rows, cols, 5)
		exact := published(u, rows, cols, 5, muonA, muonB, muonC)
		require.Less(t, distance(o, exact), 0.03, shape)
		require.Greater(t, distance(orthogonalized(t, u, rows, cols, 4), exact), 0.06, shape)

		lowest, highest, fromUV := spread("5 steps", o)
		require.Greater(t, lowest, 0.68)
		require.Less(t, highest, 1.21)
		require.Less(t, fromUV, 0.22)
		_, highest, fromUV = spread("no step", orthogonalized(t, u, rows, cols, 0))
		require.Less(t, highest, 0.5)
		require.Greater(t, fromUV, 0.6)
		_, _, fromUV = spread("wrong coefficients", published(u, rows, cols, 5, muonA, muonC, muonB))
		require.False(t, fromUV < 0.5) // NaN, too
	}
	require.Equal(t, make([]float64, 12), orthogonalized(t, make([]float64, 12), 3, 4, 5), "zeros")
}

// The recorded update of a wide and of a tall matrix is the published one, with clipping, momentum,
// look-ahead, weight decay, and the factor and sign of the direction. Without steps it has the
// direction of the momentum and the same root mean square.
func TestMuonUpdate(t *testing.T) {
	const lr, decay, beta, coef = 0.02, 0.3, 0.95, 0.25
	for _, c := range []struct{ rows, cols, steps int }{{16, 48, 5}, {48, 16, 5}, {16, 48, 0}} {
		rows, cols, shape := c.rows, c.cols, []int{c.rows, c.cols}
		n := rows * cols
		vars := backend.NewVars()
		f32 := func(name string, shape ...int) *backend.Tensor {
			return vars.Tensor(backend.Stash, name, fp8.F32, shape...)
		}
		param := &nn.Param{Name: "w", Shape: shape, Matrix: true, Quantized: true, Master: f32("w", rows, cols), Grad: f32("w.grad", rows, cols)}
		o := &AdamW{
			config: Optimizer{Kind: "muon", Momentum: beta, NSSteps: c.steps, WeightDecay: decay},
			model:  &nn.Base{Vars: vars}, m1: map[*nn.Param]*backend.Tensor{param: f32("w.m1", rows, cols)},
		}
		gate := &backend.StepGate{Coef: f32("coef", 1), Skip: vars.Tensor(backend.Stash, "skip", fp8.I32, 1)}
		control := vars.Tensor(backend.Input, "step.control", fp8.I32, backend.ControlWords)
		p := vars.Program("update")
		o.recordMuon(p, gate, control, []*nn.Param{param})
		g, m, w := noise64(2, n), noise64(3, n), noise64(4, n)
		got := onEmu(t, p, map[*backend.Tensor][]byte{
			param.Grad: fp8.AppendFloats(nil, floats32(g)...), o.m1[param]: fp8.AppendFloats(nil, floats32(m)...),
			param.Master: fp8.AppendFloats(nil, floats32(w)...), gate.Coef: fp8.AppendFloats(nil, coef), gate.Skip: make([]byte, 4),
			control: backend.Control{LR: lr}.AppendTo(nil),
		}, o.m1[param], param.Master)

		ahead, step := make([]float64, n), make([]float64, n)
		for i := range m {
			m[i] = beta*m[i] + coef*g[i]
			ahead[i] = beta*m[i] + coef*g[i]
		}
		require.Less(t, distance(got[0], m), 1e-6)
		direction := published(ahead, rows, cols, c.steps, muonA, muonB, muonC)
		for i := range w {
			step[i] = (got[1][i] - w[i]*(1-lr*decay)) / lr
			direction[i] *= -0.2 * math.Sqrt(48)
			if c.steps == 0 {
				direction[i] *= math.Sqrt(16)
			}
		}
		require.Less(t, distance(step, direction), 0.03, c)
		rms := norm64(step) / math.Sqrt(float64(n))
		t.Logf("%+v: update of RMS %.3f times the learning rate", c, rms)
		require.InDelta(t, 0.2, rms, 0.05) // that of AdamW
	}
}

// momentumErrors returns the error of O by the format of the momentum, from the momenta of a run.
func momentumErrors(t *testing.T, tr *team, formats []recipe.Optimizer) (medians []float64) {
	t.Helper()
	for _, f := range formats {
		var errors []float64
		for _, p := range tr.Model.Params {
			if !tr.optimizer.usesMuon(p) {
				continue
			}
			exact, err := tr.ranks[0].readMoment(tr.optimizer.m1[p])
			require.NoError(t, err)
			o := AdamW{model: &nn.Base{Vars: backend.NewVars()}}
			m := o.moment(p, "m1", f.M1, f)
			codes, scaleInv := encodeMoment(m, exact, fp8.Amax(exact), false, false)
			x := make([]float32, len(exact))
			f.M1.Decode(x, codes)
			if m.Scale != nil {
				dequantizeMoment(m, x, scaleInv)
			}
			was, is := make([]float64, len(x)), make([]float64, len(x))
			for i := range x {
				was[i], is[i] = float64(exact[i]), float64(x[i])
			}
			steps := func(u []float64) []float64 {
				return published(u, p.Shape[0], p.Shape[1], 5, muonA, muonB, muonC)
			}
			errors = append(errors, distance(steps(is), steps(was)))
		}
		slices.Sort(errors)
		medians = append(medians, errors[len(errors)/2])
		t.Logf("%-5s block %-4d: error of O %.4f, median of %d matrices, %.4f to %.4f", f.M1, f.Block, medians[len(medians)-1], len(errors), errors[0], errors[len(errors)-1])
	}
	return medians
}

// INT8 in blocks holds a momentum better than E4M3, and that better than E5M2: a direction of a
// small singular value counts as much as one of the largest, so that the error relative to the
// largest value of a block matters. OCTET_LONG uses the model tiny.
func TestMomentumFormats(t *testing.T) {
	c, count := small(t, "bf16"), 60
	if os.Getenv("OCTET_LONG") != "" {
		var err error
		c, err = Preset("tiny")
		require.NoError(t, err)
		c.Recipe, count = "bf16", 300
	}
	c.Optimizer.Kind = "muon"
	tr := newTrainer(t, c, 2, false)
	steps(t, tr, count)
	flat := func(d fp8.DType, block int) recipe.Optimizer {
		return recipe.Optimizer{M1: d, Block: block, Flat: true}
	}
	e := momentumErrors(t, tr, []recipe.Optimizer{
		{M1: fp8.BF16}, flat(fp8.INT8, 2048), flat(fp8.E4M3, 2048), flat(fp8.E4M3, 128), flat(fp8.E5M2, 2048),
	})
	bf16, integer, e4m3, groups, e5m2 := e[0], e[1], e[2], e[3], e[4]
	require.Less(t, 4*bf16, integer)
	require.Less(t, 1.3*integer, e4m3)
	require.Less(t, 1.4*e4m3, e5m2)
	require.InEpsilon(t, e4m3, groups, 0.15, "smaller groups do not help E4M3")
}

// A run with Muon resumes bit for bit on another number of threads, with a momentum in each format, and
// two ranks have equal states.
func TestMuonRuns(t *testing.T) {
	for _, f := range []struct {
		recipe, m1 string
		block      int
	}{{"bf16", "fp32", 0}, {"bf16", "int8", 2048}, {"fp8-smooth", "int8", 2048}, {"fp8-smooth", "e4m3", 0}} {
		c := small(t, f.recipe)
		c.Optimizer.Kind, c.Precision.M1, c.Precision.StateBlock, c.Precision.StateFlat = "muon", f.m1, &f.block, new(f.block > 0)
		c.Train.Steps = 6
		require.NoError(t, c.Resolve())
		whole, stopped, resumed := newTrainer(t, c, 3, false), newTrainer(t, c, 1, false), newTrainer(t, c, 2, false)
		want := steps(t, whole, 6)
		require.Less(t, want[5].Loss, want[0].Loss, f)
		steps(t, stopped, 3)
		require.NoError(t, resumed.Restore(t.Context(), snapshot(t, stopped)))
		require.Equal(t, want[3:], steps(t, resumed, 3), f)

		c.Train.Ranks, c.Train.MicroBatch = 2, 2
		both := newTrainer(t, c, 2, false)
		steps(t, both, 2)
		requireRanksAgree(t, both)
	}
}

// A change of recipe keeps the momentum, in another format.
func TestMuonChangesTheRecipe(t *testing.T) {
	c := small(t, "bf16")
	c.Optimizer.Kind = "muon"
	c.Precision.Schedule = []RecipeChange{{2, "fp8-smooth"}}
	tr := newTrainer(t, c, 2, false)
	steps(t, tr, 2)
	p := tr.param("model.layers.0.mlp.down_proj.weight")
	before, err := tr.ranks[0].readMoment(tr.optimizer.m1[p])
	require.NoError(t, err)
	require.NoError(t, tr.each(func(r *Trainer) error { return r.followSchedule(t.Context()) }))
	p = tr.param("model.layers.0.mlp.down_proj.weight")
	require.Equal(t, fp8.E4M3, tr.optimizer.m1[p].DType)
	require.Nil(t, tr.optimizer.m2[p])
	after, err := tr.ranks[0].readMoment(tr.optimizer.m1[p])
	require.NoError(t, err)
	require.Less(t, distance(toFloat64(after), toFloat64(before)), 0.06)
	steps(t, tr, 2)
}

func toFloat64(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

// Muon refuses by name what it lacks.
func TestMuonRefuses(t *testing.T) {
	for want, edit := range map[string]func(*Config){
		"train.zero_stage = 1 shards them; use train.zero_stage = 0": func(c *Config) { c.Train.Ranks, c.Train.ZeroStage = 2, 1 },
		"optimizer.l2 = 0.1 is AdamW's":                              func(c *Config) { c.Optimizer.L2 = 0.1 },
		"precision.state_expand = true is AdamW's": func(c *Config) {
			c.Precision.StateBlock, c.Precision.StateExpand = new(128), new(true)
		},
		`precision.grad_accum = "e4m3" is a format that AdamW reads`: func(c *Config) { c.Precision.GradAccum = "e4m3" },
		"optimizer.direction_lr = true lowers AdamW's": func(c *Config) {
			c.Recipe, c.Optimizer.DirectionLR, c.Precision = "int8-unified", true, Precision{}
		},
		`precision.m1 = "int8" is a format of Muon's`: func(c *Config) { c.Optimizer.Kind, c.Precision.M1 = "adamw", "int8" },
		`precision.m1 = "int8" with precision.state_scope = "all"`: func(c *Config) {
			c.Precision.M1, c.Precision.StateScope = "int8", "all"
		},
		`precision.m2 = "int8" is not supported`:                             func(c *Config) { c.Precision.M2 = "int8" },
		"optimizer.momentum = 1 is out of range":                             func(c *Config) { c.Optimizer.Momentum = 1 },
		`optimizer.momentum = 0.5 with optimizer.ns_steps = 5 has no effect`: func(c *Config) { c.Optimizer.Kind, c.Optimizer.Momentum = "adamw", 0.5 },
		`optimizer.momentum = 0.95 with optimizer.ns_steps = 1 has`:          func(c *Config) { c.Optimizer.Kind, c.Optimizer.NSSteps = "adamw", 1 },
		"optimizer.ns_steps = 21":                                            func(c *Config) { c.Optimizer.NSSteps = 21 },
		`optimizer.kind = "lion" is unknown`:                                 func(c *Config) { c.Optimizer.Kind = "lion" },
	} {
		c := small(t, "fp8-smooth")
		c.Optimizer.Kind = "muon"
		edit(&c)
		require.ErrorContains(t, c.Resolve(), want)
	}
}
