package train

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"octet/backend"
	"octet/backend/cost"
	"octet/fp8"
	"octet/internal/spelling"
	"octet/nn"
	"octet/recipe"
)

const (
	// maxSize bounds every single size. It exceeds that of any model, and the
	// product of two such sizes is far from overflow.
	maxSize = 1 << 24
	// maxLayers bounds the number of ops in a step. Planning their memory takes time
	// quadratic in it: half a minute at this bound.
	maxLayers = 1 << 10
	// maxCount bounds step counts and intervals.
	maxCount = 1 << 30
	// maxBeta bounds train.dpo_beta, whose products with sums of log-probabilities FP32 holds.
	maxBeta = 1e6
	// maxElements bounds products of sizes: the parameters and the largest
	// activation. At one byte each it is a petabyte, 1/9000 of what int64 holds.
	maxElements = 1e15
	// align divides every dimension of an FP8 GEMM: matrix units require it.
	align = 16
)

// Validate returns an error for every invalid value, joined one per line. Each is
// one sentence that names the key, the value and a valid one. The recipe must be
// one of knownRecipes.
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
	v.muon(c)
	if len(v.problems) == 0 {
		// totals assumes that every size is within its bounds.
		v.totals(c)
	}
	return errors.Join(v.problems...)
}

type validator struct {
	problems []error
	fp8      bool // sizes must be multiples of align
}

// multipliesFP8 reports whether any recipe of the run or any row of the configuration
// uses FP8. An unknown recipe counts as using it.
func (c Config) multipliesFP8() bool {
	isFP8 := func(row recipe.Row) bool { return row.DType.IsQuantized() }
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
		return err == nil && d.IsQuantized()
	})
}

func (v *validator) fail(format string, args ...any) {
	v.problems = append(v.problems, fmt.Errorf(format, args...))
}

// inRange requires low ≤ x ≤ high and reports whether it holds.
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
		v.fail("%s = %v is not a finite number of at least 0; use %v", key, x, use)
	}
}

func (v *validator) oneOf(key, value string, known []string) {
	if !slices.Contains(known, value) {
		v.fail("%s = %q is unknown; use one of %s%s", key, value, strings.TrimPrefix(strings.Join(known, ", "), ", "), spelling.DidYouMean(value, known))
	}
}

// parsed reports the error of parsing the value of a key.
func (v *validator) parsed(key string, err error) {
	if err != nil {
		v.fail("%s: %v", key, err)
	}
}

func (v *validator) aligned(key string, n int) {
	if v.fp8 && n%align != 0 {
		v.fail("%s = %d is not a multiple of %d, which FP8 GEMMs require; use %d", key, n, align, nearestMultiple(n, align))
	}
}

// nearestMultiple returns the positive multiple of m nearest to n > 0, the larger
// of two.
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
		case m.HeadDim != 0:
			v.headDim(m)
		case v.fp8 && m.Dim%align != 0: // already reported
		case m.Dim%2 != 0:
			v.fail("model.dim = %d is odd, but rotary embeddings need an even head size; use %d", m.Dim, nearestMultiple(m.Dim, 2))
		default:
			v.heads(m)
		}
	}
	if _, err := nn.LookupActivation(nn.Activation(m.Activation)); m.Activation != "" && err != nil {
		v.fail("model.activation: %v", err)
	}
	if !(m.RopeTheta > 1) || math.IsInf(m.RopeTheta, 1) {
		v.fail("model.rope_theta = %v is not a number above 1; use 10000", m.RopeTheta)
	}
	v.ropeScaling(m)
	v.positive("model.norm_eps", m.NormEps, 1e-5)
	v.positive("model.init_std", m.InitStd, 0.02)
	v.norms(m)
	v.experts(m)
	v.text("model.init", m.Init)
}

// heads checks the divisibility of the query and key/value widths. The sizes are
// in range and dim is even.
func (v *validator) heads(m Model) {
	kvHeadsFit := func(kv int) bool {
		return m.Heads%kv == 0 && (!v.fp8 || kv*(m.Dim/m.Heads)%align == 0)
	}
	switch {
	case m.Dim%m.Heads != 0:
		v.fail("model.heads = %d does not divide model.dim = %d; use model.heads = %d",
			m.Heads, m.Dim, nearestFit(m.Heads, m.Dim, m.headsFit))
	case !m.headsFit(m.Heads):
		v.fail("model.heads = %d gives a head size of %d, but rotary embeddings need an even one; use model.heads = %d",
			m.Heads, m.Dim/m.Heads, nearestFit(m.Heads, m.Dim, m.headsFit))
	case m.Heads%m.KVHeads != 0:
		v.fail("model.kv_heads = %d does not divide model.heads = %d; use model.kv_heads = %d",
			m.KVHeads, m.Heads, nearestFit(m.KVHeads, m.Heads, kvHeadsFit))
	case !kvHeadsFit(m.KVHeads):
		v.fail("model.kv_heads = %d gives keys and values of width %d, not a multiple of %d, which FP8 GEMMs require; use model.kv_heads = %d",
			m.KVHeads, m.KVHeads*(m.Dim/m.Heads), align, nearestFit(m.KVHeads, m.Heads, kvHeadsFit))
	}
}

func (m Model) headsFit(heads int) bool { return m.Dim%heads == 0 && m.Dim/heads%2 == 0 }

// nearestFit returns the number from 1 to limit nearest to n that fits, the smaller
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

// data also checks the number of tokens of a micro-batch, which is the K of wgrad.
func (v *validator) data(d Data, l Loop) {
	okSeq := inRange(v, "data.seq", d.Seq, 1, maxSize)
	okBatch := inRange(v, "train.micro_batch", l.MicroBatch, 1, maxSize)
	inRange(v, "data.val_bytes", d.ValBytes, 0, 1<<50)
	v.oneOf("data.attention", d.Attention, []string{AttendCausal, AttendDocument})
	for _, p := range d.Paths {
		v.text("data.paths", p)
		if p == "" {
			v.fail(`data.paths holds an empty path; use "." for the current folder`)
		}
	}
	v.text("data.tokenizer", d.Tokenizer)
	v.oneOf("data.packing", d.Packing, []string{PackStream, PackDocuments})
	v.oneOf("data.loss", d.Loss, []string{LossAll, LossAnswers})
	v.sources(d)
	if v.fp8 && okSeq && okBatch && l.MicroBatch*d.Seq%align != 0 {
		fits := func(n int) bool { return n*d.Seq%align == 0 }
		v.fail("train.micro_batch = %d sequences of data.seq = %d are %d tokens, not a multiple of %d, which the FP8 GEMMs of weight gradients require; use data.seq = %d or train.micro_batch = %d",
			l.MicroBatch, d.Seq, l.MicroBatch*d.Seq, align, nearestMultiple(d.Seq, align), nearestFit(l.MicroBatch, l.MicroBatch+align, fits))
	}
}

// sources checks the sources with weights.
func (v *validator) sources(d Data) {
	if len(d.Sources) == 0 {
		return
	}
	if len(d.Paths) > 0 {
		v.fail("data.paths and data.sources both name the data; keep one of them")
	}
	zero := true
	for i, s := range d.Sources {
		v.text("data.sources", s.Path)
		if s.Path == "" {
			v.fail("data.sources: entry %d has no path", i+1)
		}
		if !(s.Weight >= 0 && s.Weight <= 1e9) {
			v.fail("data.sources: the weight of %q is %v; use a number from 0 to 1e9", s.Path, s.Weight)
		}
		zero = zero && s.Weight == 0
	}
	if zero {
		v.fail("data.sources: all weights are 0, so that no row has a source; raise one")
	}
}

// text requires valid UTF-8, since a configuration file is UTF-8.
func (v *validator) text(key, s string) {
	if !utf8.ValidString(s) {
		v.fail("%s = %q is not UTF-8, which a configuration file must be; rename the file", key, s)
	}
}

// errTensorRanks is the error of ranks that do not divide into groups that share layers.
func errTensorRanks(l Loop) error {
	return fmt.Errorf("train.tensor_parallel = %d does not divide train.ranks = %d; use train.tensor_parallel = 1, or ranks that it divides", l.Tensor, l.Ranks)
}

func (v *validator) loop(l Loop) {
	inRange(v, "train.steps", l.Steps, 1, maxCount)
	inRange(v, "train.accumulate", l.Accumulate, 1, maxSize)
	inRange(v, "train.ranks", l.Ranks, 1, cost.MaxDevices)
	inRange(v, "train.zero_stage", l.ZeroStage, 0, MaxZeroStage)
	inRange(v, "train.tensor_parallel", l.Tensor, 1, MaxRanks)
	if l.Tensor > 0 && l.Ranks > 1 && l.Ranks%l.Tensor != 0 { // a launcher may still give the ranks
		v.fail("%v", errTensorRanks(l))
	}
	inRange(v, "train.eval_every", l.EvalEvery, 0, maxCount)
	inRange(v, "train.health_every", l.HealthEvery, 0, maxCount)
	inRange(v, "train.on_nonfinite", l.OnNonfinite, 0, maxCount)
	v.oneOf("train.objective", l.Objective, []string{ObjectiveCrossEntropy, ObjectiveDPO})
	v.positive("train.dpo_beta", l.DPOBeta, 0.1)
	if l.DPOBeta > maxBeta {
		v.fail("train.dpo_beta = %v is more than %v; use 0.1", l.DPOBeta, maxBeta)
	}
	v.oneOf("train.recompute", l.Recompute, []string{"none", "attention", "block"})
	v.oneOf("train.on_spike", l.OnSpike, []string{"log", "rewind", "off"})
}

func (v *validator) optimizer(o Optimizer) {
	v.positive("optimizer.lr", o.LR, 2e-3)
	v.notNegative("optimizer.min_lr", o.MinLR, 3e-4)
	// A constant schedule does not use min_lr.
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
	v.notNegative("optimizer.l2", o.L2, 0.1)
	v.notNegative("optimizer.clip_rms", o.ClipRMS, 1)
	if o.ClipRMS > 0 && o.DirectionLR {
		v.fail("optimizer.direction_lr and optimizer.clip_rms = %v both lower the learning rates of tensors; use direction_lr = false or clip_rms = 0", o.ClipRMS)
	}
	if m, _ := math.Frexp(o.LossScale); m != 0.5 || o.LossScale < backend.MinLossScale || o.LossScale > backend.MaxLossScale {
		v.fail("optimizer.loss_scale = %v is no power of two from 2^-126 to 2^126; use %d", o.LossScale, int(nn.InitialLossScale))
	}
	v.notNegative("optimizer.clip", o.Clip, 1)
}

func (v *validator) schedule(c Config, knownRecipes []string) {
	step, name := 0, c.Recipe
	for i, change := range c.Precision.Schedule {
		at := fmt.Sprintf("precision.schedule[%d]", i)
		v.oneOf(at+".recipe", change.Recipe, knownRecipes)
		if inRange(v, at+".step", change.Step, 1, maxCount) && change.Step <= step {
			v.fail("%s.step = %d is not after step %d of the previous entry; list the entries in order", at, change.Step, step)
		}
		if change.Recipe == name {
			v.fail("%s.recipe = %q is already the run's recipe at that step; drop this entry", at, name)
		}
		step, name = change.Step, change.Recipe
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
		v.fail("checkpoint.keep_every = %d has no effect, since checkpoint.every = 0 writes no checkpoints before the end; use checkpoint.every = %d", k.KeepEvery, k.KeepEvery)
	} else if k.KeepEvery%k.Every != 0 {
		v.fail("checkpoint.keep_every = %d is not a multiple of checkpoint.every = %d, so most of those checkpoints are never written; use checkpoint.keep_every = %d",
			k.KeepEvery, k.Every, nearestMultiple(k.KeepEvery, k.Every))
	}
}

// contradictions reports values that are valid alone but not in combination.
func (v *validator) contradictions(c Config) {
	if c.Train.Objective == ObjectiveDPO {
		v.dpo(c)
	}
	// A spike is reported up to spikeSteps-1 steps after it began.
	if k := c.Checkpoint; c.Train.OnSpike == "rewind" && (k.KeepLast-1)*k.Every < spikeSteps-1 {
		v.fail("train.on_spike = \"rewind\" needs a checkpoint from before the spike, but checkpoint.every = %d with checkpoint.keep_last = %d may leave none; use checkpoint.every = %d and checkpoint.keep_last = %d",
			k.Every, k.KeepLast, max(cmp.Or(k.Every, 200), spikeSteps), max(k.KeepLast, 2))
	}
}

// dpo reports what train.objective = "dpo" cannot be combined with.
func (v *validator) dpo(c Config) {
	const why = `train.objective = "dpo" `
	if n := c.Train.MicroBatch; n%2 != 0 {
		v.fail(why+"has two rows for each pair, but train.micro_batch = %d is odd; use train.micro_batch = %d", n, n+1)
	}
	if c.Data.Packing == PackDocuments {
		v.fail(why + `has a row for each document; use data.packing = "stream", which it does not read`)
	}
	if len(c.Data.Sources) > 0 {
		v.fail(why + "draws pairs from all of data.paths alike; use data.paths in place of data.sources")
	}
	if c.Network != nil {
		v.fail(why + "needs the decoder of the section model, not a network of Config.Network")
	}
}

// totals bounds the products of sizes, which memory plans and token counts compute
// in int64. totals computes in float64, which cannot wrap.
func (v *validator) totals(c Config) {
	f := func(n int) float64 { return float64(n) }
	m, l := c.Model, c.Train
	params := parameters(c.ModelConfig())
	tokens := f(l.MicroBatch) * f(c.Data.Seq)
	activation := tokens * max(f(m.Dim), f(m.FFN), f(m.Vocab), f(m.Heads)*f(m.HeadDim))
	total := tokens * f(l.Accumulate) * f(l.Ranks) * f(l.Steps)
	switch {
	case params > maxElements:
		v.fail("the [model] section describes about %.2g parameters, more than the supported %.0e; use smaller sizes, such as those of a preset",
			params, maxElements)
	case activation > maxElements:
		v.fail("train.micro_batch = %d sequences of data.seq = %d make activations of about %.2g elements, more than the supported %.0e; use smaller sizes and a larger train.accumulate",
			l.MicroBatch, c.Data.Seq, activation, maxElements)
	case total > 1<<53: // JSON readers that use float64 read counts exactly up to here
		v.fail("train.steps = %d makes a run of about %.2g tokens, more than the supported 2^53; use fewer steps or smaller batches",
			l.Steps, total)
	}
}

// parameters returns the approximate number of parameters, computed in float64, which cannot wrap.
func parameters(m nn.Config) float64 {
	f := func(n int) float64 { return float64(n) }
	attention := 2 * (f(m.Heads) + f(m.KVHeads)) * f(m.HeadDim())
	return 2*f(m.Vocab)*f(m.Dim) + f(m.Layers)*f(m.Dim)*(attention+3*f(m.FFN)*f(max(1, m.MoE.Experts)))
}
