package train

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"octet/fp8"
	"octet/internal/spelling"
	"octet/nn"
	"octet/recipe"
)

const (
	// maxSize bounds every single size. It is beyond any model and keeps the
	// product of two of them far from overflow.
	maxSize = 1 << 24
	// maxLayers bounds the list of a step's ops, which names those of every layer: to
	// plan their memory takes time by the square of it, half a minute here.
	maxLayers = 1 << 10
	// maxCount bounds numbers of steps.
	maxCount = 1 << 30
	// maxElements bounds the products: parameters, the largest activation, the
	// tokens of a run. A petabyte at one byte each; int64 holds it 9000 times.
	maxElements = 1e15
	// align is what FP8 matrix units want every side of a product to be a
	// multiple of.
	align = 16
)

// Validate reports every value that a run cannot start with. Each problem is
// one sentence that names the key, the value and a value that would do; several
// are joined, a line each. The recipe must be one of knownRecipes.
func (c Config) Validate(knownRecipes []string) error {
	v := validator{fp8: c.multipliesFP8()}
	v.oneOf("recipe", c.Recipe, knownRecipes)
	v.model(c.Model)
	v.data(c.Data, c.Train)
	v.loop(c.Train)
	v.optimizer(c.Optimizer)
	v.precision(c.Precision)
	v.schedule(c, knownRecipes)
	v.checkpoint(c.Checkpoint)
	v.contradictions(c)
	if len(v.problems) == 0 {
		// Only now are the sizes known to be sane enough to multiply.
		v.totals(c)
	}
	return errors.Join(v.problems...)
}

type validator struct {
	problems []error
	fp8      bool // sizes must suit GEMMs in FP8
}

// multipliesFP8 reports whether a recipe of the run, or a row of the configuration,
// asks for FP8. A recipe that is not known counts as one that does.
func (c Config) multipliesFP8() bool {
	isFP8 := func(row recipe.Row) bool { return row.DType.IsFP8() }
	names := []string{c.Recipe}
	for _, change := range c.Precision.Schedule {
		names = append(names, change.Recipe)
	}
	for _, name := range names {
		if r, err := recipe.Lookup(name); err != nil || slices.ContainsFunc(r.Rows, isFP8) {
			return true
		}
	}
	return slices.ContainsFunc(c.Precision.Rows, func(row PrecisionRow) bool {
		d, err := fp8.ParseDType(row.Format)
		return err == nil && d.IsFP8()
	})
}

func (v *validator) fail(format string, args ...any) {
	v.problems = append(v.problems, fmt.Errorf(format, args...))
}

// inRange wants low ≤ x ≤ high, and reports whether it is so.
func inRange[T cmp.Ordered](v *validator, key string, x, low, high T) bool {
	if x >= low && x <= high { // false for NaN
		return true
	}
	nearest := high
	if x < low {
		nearest = low
	}
	v.fail("%s = %v is out of range; use %v (it must be from %v to %v)", key, x, nearest, low, high)
	return false
}

func (v *validator) positive(key string, x, use float64) {
	if !(x > 0) || math.IsInf(x, 1) {
		v.fail("%s = %v is not a positive number; use %v", key, x, use)
	}
}

func (v *validator) notNegative(key string, x, use float64) {
	if !(x >= 0) || math.IsInf(x, 1) {
		v.fail("%s = %v is not a number from 0 up; use %v", key, x, use)
	}
}

func (v *validator) oneOf(key, value string, known []string) {
	if !slices.Contains(known, value) {
		v.fail("%s = %q is unknown; use one of %s%s", key, value, strings.TrimPrefix(strings.Join(known, ", "), ", "), spelling.DidYouMean(value, known))
	}
}

func (v *validator) aligned(key string, n int) {
	if v.fp8 && n%align != 0 {
		v.fail("%s = %d is not a multiple of %d, which FP8 products need; use %d", key, n, align, nearestMultiple(n, align))
	}
}

// nearestMultiple is the positive multiple of m that lies nearest to n > 0, the
// larger of two.
func nearestMultiple(n, m int) int { return max((n+m/2)/m*m, m) }

func (v *validator) model(m Model) {
	v.oneOf("model.preset", m.Preset, PresetNames())
	ok := true
	for _, size := range []struct {
		key string
		n   int
	}{
		{"model.dim", m.Dim},
		{"model.heads", m.Heads},
		{"model.kv_heads", m.KVHeads},
		{"model.ffn", m.FFN},
		{"model.vocab", m.Vocab},
	} {
		ok = inRange(v, size.key, size.n, 1, maxSize) && ok
	}
	ok = inRange(v, "model.layers", m.Layers, 1, maxLayers) && ok
	if ok {
		v.aligned("model.dim", m.Dim)
		v.aligned("model.ffn", m.FFN)
		switch {
		case v.fp8 && m.Dim%align != 0: // which was told
		case m.Dim%2 != 0:
			v.fail("model.dim = %d is odd, and rotary embeddings need heads of an even width; use %d", m.Dim, nearestMultiple(m.Dim, 2))
		default:
			v.heads(m)
		}
	}
	if m.Activation != "" {
		var known []string
		for _, a := range nn.Activations {
			known = append(known, string(a))
		}
		v.oneOf("model.activation", m.Activation, known)
	}
	if !(m.RopeTheta > 1) || math.IsInf(m.RopeTheta, 1) {
		v.fail("model.rope_theta = %v is not a number above 1; use 10000", m.RopeTheta)
	}
	v.positive("model.norm_eps", m.NormEps, 1e-5)
	v.positive("model.init_std", m.InitStd, 0.02)
	v.text("model.init", m.Init)
}

// heads checks how the query and key/value widths divide. The sizes are in
// range and dim is even.
func (v *validator) heads(m Model) {
	kvHeadsFit := func(kv int) bool {
		return m.Heads%kv == 0 && (!v.fp8 || kv*(m.Dim/m.Heads)%align == 0)
	}
	switch {
	case m.Dim%m.Heads != 0:
		v.fail("model.heads = %d does not divide model.dim = %d; use model.heads = %d",
			m.Heads, m.Dim, nearestFit(m.Heads, m.Dim, m.headsFit))
	case !m.headsFit(m.Heads):
		v.fail("model.heads = %d makes a head %d wide, and rotary embeddings need an even width; use model.heads = %d",
			m.Heads, m.Dim/m.Heads, nearestFit(m.Heads, m.Dim, m.headsFit))
	case m.Heads%m.KVHeads != 0:
		v.fail("model.kv_heads = %d does not divide model.heads = %d; use model.kv_heads = %d",
			m.KVHeads, m.Heads, nearestFit(m.KVHeads, m.Heads, kvHeadsFit))
	case !kvHeadsFit(m.KVHeads):
		v.fail("model.kv_heads = %d makes keys and values %d wide, not a multiple of %d, which FP8 products need; use model.kv_heads = %d",
			m.KVHeads, m.KVHeads*(m.Dim/m.Heads), align, nearestFit(m.KVHeads, m.Heads, kvHeadsFit))
	}
}

func (m Model) headsFit(heads int) bool { return m.Dim%heads == 0 && m.Dim/heads%2 == 0 }

// nearestFit is the number from 1 to limit nearest to n that fits, the smaller
// of two; limit if none does.
func nearestFit(n, limit int, fits func(int) bool) int {
	for d := range limit {
		for _, x := range []int{n - d, n + d} {
			if x >= 1 && x <= limit && fits(x) {
				return x
			}
		}
	}
	return limit
}

// data also checks the tokens of a micro-batch, which are the K of wgrad.
func (v *validator) data(d Data, l Loop) {
	okSeq := inRange(v, "data.seq", d.Seq, 1, maxSize)
	okBatch := inRange(v, "train.micro_batch", l.MicroBatch, 1, maxSize)
	inRange(v, "data.val_bytes", d.ValBytes, 0, 1<<50)
	for _, p := range d.Paths {
		v.text("data.paths", p)
		if p == "" {
			v.fail(`data.paths holds an empty path; use "." for the current folder`)
		}
	}
	if v.fp8 && okSeq && okBatch && l.MicroBatch*d.Seq%align != 0 {
		fits := func(n int) bool { return n*d.Seq%align == 0 }
		v.fail("train.micro_batch = %d sequences of data.seq = %d are %d tokens, not a multiple of %d, which the weight gradients' FP8 products need; use data.seq = %d or train.micro_batch = %d",
			l.MicroBatch, d.Seq, l.MicroBatch*d.Seq, align, nearestMultiple(d.Seq, align), nearestFit(l.MicroBatch, l.MicroBatch+align, fits))
	}
}

// text wants what a configuration file can hold.
func (v *validator) text(key, s string) {
	if !utf8.ValidString(s) {
		v.fail("%s = %q is not UTF-8, which a configuration file must be; rename the file", key, s)
	}
}

func (v *validator) loop(l Loop) {
	inRange(v, "train.steps", l.Steps, 1, maxCount)
	inRange(v, "train.accumulate", l.Accumulate, 1, maxSize)
	inRange(v, "train.ranks", l.Ranks, 1, 1024)
	inRange(v, "train.zero_stage", l.ZeroStage, 0, 1)
	inRange(v, "train.eval_every", l.EvalEvery, 0, maxCount)
	inRange(v, "train.health_every", l.HealthEvery, 0, maxCount)
	inRange(v, "train.on_nonfinite", l.OnNonfinite, 0, maxCount)
	v.oneOf("train.recompute", l.Recompute, []string{"none", "attention", "block"})
	v.oneOf("train.on_spike", l.OnSpike, []string{"log", "rewind", "off"})
}

func (v *validator) optimizer(o Optimizer) {
	v.positive("optimizer.lr", o.LR, 2e-3)
	v.notNegative("optimizer.min_lr", o.MinLR, 3e-4)
	// A constant schedule never looks at min_lr.
	if o.MinLR >= o.LR && o.LR > 0 && o.Schedule != "constant" {
		v.fail("optimizer.min_lr = %v is not below optimizer.lr = %v; use optimizer.min_lr = %.3g", o.MinLR, o.LR, o.LR/10)
	}
	inRange(v, "optimizer.warmup", o.Warmup, 0, 1)
	v.oneOf("optimizer.schedule", o.Schedule, []string{"cosine", "wsd", "constant"})
	for i, beta := range o.Betas {
		if !(beta >= 0 && beta < 1) {
			v.fail("optimizer.betas holds %v; use a number from 0 up to but not including 1, such as %v", beta, []float64{0.9, 0.95}[i])
		}
	}
	v.positive("optimizer.eps", o.Eps, 1e-8)
	v.oneOf("optimizer.eps_form", o.EpsForm, []string{"hat", "corrected"})
	v.notNegative("optimizer.weight_decay", o.WeightDecay, 0.1)
	v.notNegative("optimizer.clip", o.Clip, 1)
}

func (v *validator) precision(p Precision) {
	v.format("precision.master", p.Master, fp8.F32, fp8.F16, fp8.BF16)
	v.format("precision.m1", p.M1, fp8.F32, fp8.F16, fp8.BF16, fp8.E4M3, fp8.E4M3IEEE, fp8.E5M2)
	v.format("precision.m2", p.M2, fp8.F32, fp8.F16, fp8.BF16, fp8.E4M3, fp8.E4M3IEEE, fp8.E5M2)
	m1, _ := fp8.ParseDType(p.M1) // what is none was reported
	m2, _ := fp8.ParseDType(p.M2)
	if m1 == fp8.E4M3 && m2 == fp8.E4M3IEEE || m1 == fp8.E4M3IEEE && m2 == fp8.E4M3 {
		v.fail("precision.m2 = %q is another E4M3 than precision.m1 = %q, and the file of a checkpoint's optimizer holds one of the two; use precision.m2 = %q", p.M2, p.M1, p.M1)
	}
	v.rounding("precision.rounding", p.Rounding)
	for _, f := range []struct {
		key       string
		value     *int
		low, high int
	}{
		{"precision.history", p.History, 1, 1 << 16},
		// E5M2 spans 32 binades: no more can be kept free.
		{"precision.margin", p.Margin, 0, 32},
		{"precision.weight_margin", p.WeightMargin, 0, 32},
		{"precision.grad_margin", p.GradMargin, 0, 32},
		{"precision.smooth_margin", p.SmoothMargin, 0, 32},
	} {
		if f.value != nil {
			inRange(v, f.key, *f.value, f.low, f.high)
		}
	}
	if b := p.StateBlock; b != nil && *b != 0 && *b != 256 {
		v.fail("precision.state_block = %d is no block that moments can have; use 256, or 0 for one scale per tensor", *b)
	}
	if p.Smooth != "" {
		v.oneOf("precision.smooth", p.Smooth, recipe.SmoothForms())
	}
	if p.SmoothFactors != "" {
		v.oneOf("precision.smooth_factors", p.SmoothFactors, []string{"current", "delayed"})
	}
	for i, row := range p.Rows {
		v.row(fmt.Sprintf("precision.rows[%d]", i), row)
	}
}

func (v *validator) row(at string, r PrecisionRow) {
	if _, err := path.Match(r.Scope, ""); err != nil {
		v.fail("%s: scope = %q is not a pattern; close its bracket, or escape it as \\[", at, r.Scope)
	}
	if r.Scope == "" {
		v.fail(`%s: scope is missing; use scope = "layers.*" for all layers`, at)
	}
	v.text(at+".scope", r.Scope)
	v.oneOf(at+".gemm", r.GEMM, []string{"", "fprop", "dgrad", "wgrad"})
	v.oneOf(at+".operand", r.Operand, []string{"", "input", "weight", "grad"})
	v.oneOf(at+".scaling", r.Scaling, []string{"", "unit", "current", "delayed"})
	v.format(at+".format", r.Format, fp8.F32, fp8.BF16, fp8.E4M3, fp8.E4M3IEEE, fp8.E5M2)
	v.oneOf(at+".granularity", r.Granularity, []string{"", "tensor", "row", "1x128", "128x128", "1x32"})
	v.oneOf(at+".scale", r.Scale, []string{"", "pow2", "fp32", "e8m0"})
	v.rounding(at+".rounding", r.Rounding)
	if r.Format == "" && r.Scaling == "" && r.Granularity == "" && r.Scale == "" && r.Rounding == "" {
		v.fail("%s changes nothing; give it a format, a scaling, a granularity, a scale or a rounding", at)
	}
	if d, err := fp8.ParseDType(r.Format); err == nil && !d.IsFP8() {
		for _, f := range []struct{ name, value string }{{"scaling", r.Scaling}, {"granularity", r.Granularity}, {"scale", r.Scale}} {
			if f.value != "" {
				v.fail("%s: %s = %q has no meaning for format = %q, which is not scaled; drop one of them", at, f.name, f.value, r.Format)
			}
		}
	}
	if r.Operand == "grad" && r.GEMM == "fprop" || r.Operand == "weight" && r.GEMM == "wgrad" || r.Operand == "input" && r.GEMM == "dgrad" {
		v.fail("%s matches nothing: %s does not read the operand %s", at, r.GEMM, r.Operand)
	}
}

func (v *validator) schedule(c Config, knownRecipes []string) {
	step, name := 0, c.Recipe
	for i, change := range c.Precision.Schedule {
		at := fmt.Sprintf("precision.schedule[%d]", i)
		v.oneOf(at+".recipe", change.Recipe, knownRecipes)
		if inRange(v, at+".step", change.Step, 1, maxCount) && change.Step <= step {
			v.fail("%s.step = %d does not come after step %d of the entry before it; list them in order", at, change.Step, step)
		}
		if change.Recipe == name {
			v.fail("%s.recipe = %q is what the run computes under already; drop it", at, name)
		}
		step, name = change.Step, change.Recipe
	}
}

// format wants one of some number formats, or nothing.
func (v *validator) format(key, name string, known ...fp8.DType) {
	d, err := fp8.ParseDType(name)
	if name == "" || err == nil && slices.Contains(known, d) {
		return
	}
	v.fail("%s = %q does not work here; use one of %s", key, name, strings.Trim(fmt.Sprint(known), "[]"))
}

func (v *validator) rounding(key, name string) {
	if name != "" {
		v.oneOf(key, name, []string{"nearest", "stochastic"})
	}
}

func (v *validator) checkpoint(k Checkpoint) {
	inRange(v, "checkpoint.every", k.Every, 0, maxCount)
	inRange(v, "checkpoint.keep_last", k.KeepLast, 1, maxCount)
	v.oneOf("checkpoint.on_error", k.OnError, []string{"stop", "continue"})
	if !inRange(v, "checkpoint.keep_every", k.KeepEvery, 0, maxCount) || k.KeepEvery == 0 || k.Every < 0 {
		return
	}
	if k.Every == 0 {
		v.fail("checkpoint.keep_every = %d keeps nothing while checkpoint.every = 0 writes no checkpoints; use checkpoint.every = %d", k.KeepEvery, k.KeepEvery)
	} else if k.KeepEvery%k.Every != 0 {
		v.fail("checkpoint.keep_every = %d is not a multiple of checkpoint.every = %d, so most of those checkpoints are never written; use checkpoint.keep_every = %d",
			k.KeepEvery, k.Every, nearestMultiple(k.KeepEvery, k.Every))
	}
}

// contradictions are values that are fine by themselves.
func (v *validator) contradictions(c Config) {
	// A spike is told up to spikeSteps-1 steps after it began.
	if k := c.Checkpoint; c.Train.OnSpike == "rewind" && (k.KeepLast-1)*k.Every < spikeSteps-1 {
		v.fail("train.on_spike = \"rewind\" goes back to the checkpoint before a spike, and checkpoint.every = %d with checkpoint.keep_last = %d may leave none; use checkpoint.every = %d and checkpoint.keep_last = %d",
			k.Every, k.KeepLast, max(cmp.Or(k.Every, 200), spikeSteps), max(k.KeepLast, 2))
	}
	if c.shards() > 1 && len(v.problems) == 0 {
		v.shards(c)
	}
}

// shards wants ranks that can share every matrix.
func (v *validator) shards(c Config) {
	fits := func(ranks int) bool {
		return !slices.ContainsFunc(c.ModelConfig().MatrixRows(), func(rows int) bool { return rows%ranks != 0 })
	}
	if ranks := c.Train.Ranks; !fits(ranks) {
		v.fail("train.zero_stage = 1 shares matrices by rows, of which this model's have %s, and train.ranks = %d does not divide all of these; use train.ranks = %d or train.zero_stage = 0",
			strings.Trim(fmt.Sprint(c.ModelConfig().MatrixRows()), "[]"), ranks, nearestFit(ranks, ranks, fits))
	}
}

// totals bounds what is multiplied later: memory plans and token counts are
// int64. The arithmetic here is float64, which cannot wrap.
func (v *validator) totals(c Config) {
	f := func(n int) float64 { return float64(n) }
	m, l := c.Model, c.Train
	params := parameters(c.ModelConfig())
	tokens := f(l.MicroBatch) * f(c.Data.Seq)
	activation := tokens * f(max(m.Dim, m.FFN, m.Vocab))
	total := tokens * f(l.Accumulate) * f(l.Ranks) * f(l.Steps)
	switch {
	case params > maxElements:
		v.fail("the [model] section describes about %.2g parameters, beyond what can be planned (%.0e); use smaller numbers, such as those of a preset",
			params, maxElements)
	case activation > maxElements:
		v.fail("train.micro_batch = %d sequences of data.seq = %d make activations of about %.2g numbers, beyond what can be planned (%.0e); use smaller ones and a larger train.accumulate",
			l.MicroBatch, c.Data.Seq, activation, maxElements)
	case total > 1<<53: // up to here a JSON reader that knows only float64 gets the count exactly
		v.fail("train.steps = %d makes a run of about %.2g tokens, more than can be counted (2^53); use fewer steps or smaller batches",
			l.Steps, total)
	}
}

// parameters is about how many a model has, in an arithmetic that cannot wrap.
func parameters(m nn.Config) float64 {
	f := func(n int) float64 { return float64(n) }
	return 2*f(m.Vocab)*f(m.Dim) + f(m.Layers)*f(m.Dim)*(4*f(m.Dim)+3*f(m.FFN))
}
