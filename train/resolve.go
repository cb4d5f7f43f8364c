package train

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"octet/backend"
	"octet/fp8"
	"octet/nn"
	"octet/recipe"
)

// ModelConfig returns the model section as an nn.Config. The activation must be
// filled in.
func (c Config) ModelConfig() nn.Config {
	m := nn.Config{
		Layers: c.Model.Layers, Dim: c.Model.Dim, Heads: c.Model.Heads, KVHeads: c.Model.KVHeads,
		FFN: c.Model.FFN, Vocab: c.Model.Vocab, Tied: c.Model.Tied,
		Activation: nn.Activation(c.Model.Activation),
		RopeTheta:  c.Model.RopeTheta, NormEps: c.Model.NormEps, InitStd: c.Model.InitStd,
		HeadSize: c.Model.hfHeadDim(), RopeScaling: nn.RopeScaling(c.Model.ropeScaling()), QKVBias: c.Model.QKVBias,
	}
	c.Model.setNorms(&m)
	m.MoE = c.Model.moe()
	return m
}

// tensor returns the number of ranks that share each layer.
func (c Config) tensor() int { return max(1, c.Train.Tensor) }

// dataRanks returns the number of ranks, or of groups that share layers, with batches of their own.
func (c Config) dataRanks() int { return c.Train.Ranks / c.tensor() }

// shards returns the number of ranks that share the optimizer state of a parameter, or of the part of it
// that each has by train.tensor_parallel.
func (c Config) shards() int {
	if c.Train.ZeroStage == 0 {
		return 1
	}
	return c.dataRanks()
}

// Choices returns a recipe's values for the fields that a config may leave out.
func Choices(r recipe.Recipe) RecipeChoices {
	activation := nn.SwiGLU
	if r.Smooth.On() {
		activation = nn.SmoothSwiGLU
	}
	factors := recipe.Current
	if r.Smooth.Smoothing == recipe.Delayed {
		factors = recipe.Delayed
	}
	reduce, saved := r.Reduce.Cast(), r.Activations.Given()
	return RecipeChoices{
		Activation: string(activation),
		Precision: Precision{
			Master: r.Optimizer.Master.String(), M1: r.Optimizer.M1.String(), M2: r.Optimizer.M2.String(),
			Rounding:  r.Optimizer.Rounding.String(),
			StatePow2: &r.Optimizer.Pow2, StateBlock: &r.Optimizer.Block, StateExpand: &r.Optimizer.Expand, StateFlat: &r.Optimizer.Flat,
			StateScope: r.Optimizer.Scope.String(), FloorV: &r.Optimizer.FloorV,
			GradAccum: r.Optimizer.GradFormat().String(),
			Reduce:    reduce.DType.String(), ReduceGranularity: cmp.Or(reduce.Granularity, recipe.By(1, 128)).String(),
			ReduceScale: r.Reduce.Scale.String(), ReduceSum: r.Reduce.Sum.String(),
			Activations: r.Activations.Format(), ActivationsGranularity: saved.Granularity.String(), ActivationsScale: saved.Scale.String(),
			History: &r.History, Margin: &r.Margin, WeightMargin: &r.WeightMargin, GradMargin: &r.GradMargin,
			L1Bits: &r.L1Bits, ColdStart: &r.ColdStart,
			Smooth: r.Smooth.Form.String(), SmoothExact: &r.Smooth.Exact,
			SmoothScaling: factors.String(), SmoothMargin: &r.Smooth.Margin,
		},
	}
}

// Resolve fills in the recipe's choices and validates the config under every recipe
// of its schedule, without a device: it also declares the model, whose layers refuse casts
// that they cannot use. A run makes no further choices.
func (c *Config) Resolve() error {
	r, err := recipe.Lookup(c.Recipe)
	if err != nil {
		return err
	}
	if err := c.reconcileSmooth(r.Smooth); err != nil {
		return err
	}
	c.FillFromRecipe(Choices(r))
	if err := c.Validate(recipe.Names()); err != nil {
		return err
	}
	layers, err := c.linears()
	if err != nil {
		return err
	}
	for i, row := range c.Precision.Rows {
		if err := checkScope(row, layers); err != nil {
			return fmt.Errorf("precision.rows[%d]: scope %q %w", i, row.Scope, err)
		}
	}
	if r, err = c.ResolvedRecipe(); err != nil {
		return err
	}
	if err := c.checkDirection(r, layers); err != nil {
		return err
	}
	if err := c.checkRotations(r, layers); err != nil {
		return err
	}
	if r.L1Bits != 0 && !r.MultipliesIntegers(layers) {
		return fmt.Errorf("precision.l1_bits = %d bounds integer weights, but recipe %s has none; use recipe int8-switchback, or l1_bits = 0", r.L1Bits, r.Name)
	}
	if !r.Reduce.FP32() && c.dataRanks() > 1 && c.Train.ZeroStage == 0 {
		return fmt.Errorf("precision.reduce = %q needs ranks that share the optimizer state: with train.zero_stage = 0 every rank needs all sums, which travel in FP32; use train.zero_stage = 1", c.Precision.Reduce)
	}
	if r.Optimizer.Flat && c.tensor() > 1 {
		return fmt.Errorf("precision.state_flat = true needs whole tensors on every rank: with train.tensor_parallel = %d blocks would end where ranks do; use train.tensor_parallel = 1, or precision.state_flat = false", c.tensor())
	}
	if m, n := c.ModelConfig(), r.Optimizer.Block; c.tensor() > 1 && n > 0 {
		for _, width := range []int{m.FFN, m.Heads * m.HeadDim()} {
			if width%(c.tensor()*n) != 0 {
				return fmt.Errorf("precision.state_block = %d: with train.tensor_parallel = %d a rank has %d columns of a weight, of which a block would end where the rank does; use a block that divides them, or train.tensor_parallel = 1", n, c.tensor(), width/c.tensor())
			}
		}
	}
	if r.Optimizer.Flat && c.Train.Ranks > 1 && c.Train.ZeroStage > 0 {
		return fmt.Errorf("precision.state_flat = true needs whole tensors on every rank: with train.zero_stage = %d blocks would end where ranks do; use train.zero_stage = 0, or precision.state_flat = false", c.Train.ZeroStage)
	}
	if _, _, err := c.network(r, backend.NewVars()); err != nil { // casts that the layers cannot use
		return err
	}
	if len(c.Precision.Schedule) > 0 {
		_, err := c.phases()
		return err
	}
	if c.Network == nil && r.Smooth.On() && !slices.ContainsFunc(layers, r.QuantizesHidden) {
		return fmt.Errorf("model.activation = smooth-swiglu has no effect: no layer reads the MLPs' hidden activation in FP8 under recipe %s and the configured rows; use swiglu", c.Recipe)
	}
	return nil
}

// checkScope returns an error for a row that matches no linear layer of the model. The
// error continues "scope X".
func checkScope(row PrecisionRow, layers []recipe.Layer) error {
	last := ""
	for _, l := range layers {
		if !l.Head {
			last = l.Scope
		}
	}
	if len(recipe.Select(row.Scope, layers)) == 0 {
		return fmt.Errorf("matches none of the linear layers up to %s; use one of the paths %s, where * matches anything",
			last, strings.Join(recipe.Paths(layers), ", "))
	}
	return nil
}

// checkRotations returns an error if a rotation of the recipe does not divide the tokens of
// a micro-batch, the K of wgrad.
func (c Config) checkRotations(r recipe.Recipe, layers []recipe.Layer) error {
	tokens := c.Train.MicroBatch * c.Data.Seq
	for _, h := range r.Hadamards(layers) {
		if tokens%h.Size != 0 {
			return fmt.Errorf("recipe %s rotates groups of %d tokens (hadamard), but train.micro_batch = %d sequences of data.seq = %d are %d tokens; use data.seq = %d",
				r.Name, h.Size, c.Train.MicroBatch, c.Data.Seq, tokens, nearestMultiple(c.Data.Seq, h.Size))
		}
	}
	return nil
}

// checkDirection returns an error if optimizer.direction_lr has no distance to read.
func (c Config) checkDirection(r recipe.Recipe, layers []recipe.Layer) error {
	if !c.Optimizer.DirectionLR {
		return nil
	}
	for _, l := range layers {
		if r.Cast(l, recipe.Dgrad, recipe.Grad).Scaling == recipe.Direction || r.Cast(l, recipe.Wgrad, recipe.Grad).Scaling == recipe.Direction {
			return nil
		}
	}
	return fmt.Errorf("optimizer.direction_lr = true needs a gradient with scaling = \"direction\", and recipe %s has none; use recipe = \"int8-unified\", or optimizer.direction_lr = false", r.Name)
}

// ResolvedRecipe returns the named recipe with the config's rows before its own and
// its settings overridden by the config's [precision] keys, for the layers of its model.
func (c Config) ResolvedRecipe() (recipe.Recipe, error) {
	r, err := recipe.Lookup(c.Recipe)
	if err != nil {
		return r, err
	}
	var rows []recipe.Row
	for i, row := range c.Precision.Rows {
		parsed, err := parseRow(row)
		if err != nil {
			return r, fmt.Errorf("precision.rows[%d]: %w", i, err)
		}
		rows = append(rows, parsed)
	}
	r.Rows = append(rows, r.Rows...)
	if err := c.overrideOptimizer(&r.Optimizer); err != nil {
		return r, err
	}
	if err := c.overrideSmooth(&r.Smooth); err != nil {
		return r, err
	}
	if err := c.overrideReduce(&r.Reduce); err != nil {
		return r, err
	}
	if err := c.Precision.overrideActivations(&r.Activations); err != nil {
		return r, fmt.Errorf("precision.activations: %w", err)
	}
	override(&r.History, c.Precision.History)
	override(&r.Margin, c.Precision.Margin)
	override(&r.WeightMargin, c.Precision.WeightMargin)
	override(&r.GradMargin, c.Precision.GradMargin)
	override(&r.L1Bits, c.Precision.L1Bits)
	override(&r.ColdStart, c.Precision.ColdStart)
	if err := r.Validate(); err != nil || !r.NeedsLayers() {
		return r, err
	}
	layers, err := c.linears()
	return r.Over(layers), err
}

// RecipeFor returns the ResolvedRecipe adapted to a device, and notes: see [nn.RecipeFor].
func (c Config) RecipeFor(s backend.Spec) (recipe.Recipe, []string, error) {
	r, err := c.ResolvedRecipe()
	if err != nil {
		return r, nil, err
	}
	if err := c.Model.needsExperts(s); err != nil {
		return r, nil, err
	}
	layers, err := c.linears()
	if err != nil {
		return r, nil, err
	}
	r, notes, err := nn.RecipeFor(s, r, layers)
	if c.Optimizer.Kind == "muon" {
		notes = append(notes, "optimizer.kind is muon: m1 is the momentum of linear layers, which lack m2")
	}
	if g := r.Optimizer.GradFormat(); g.IsQuantized() && c.Train.Accumulate > recipe.MaxAccumulate {
		notes = append(notes, fmt.Sprintf("a sum of %d micro-batches in %s loses small gradients: use precision.grad_accum=bf16, or a train.accumulate of at most %d", c.Train.Accumulate, g, recipe.MaxAccumulate))
	}
	return r, notes, err
}

// override sets *to to a config's value, if given.
func override[T any](to, value *T) {
	if value != nil {
		*to = *value
	}
}

func (c Config) overrideOptimizer(o *recipe.Optimizer) (err error) {
	for _, f := range []struct {
		key, value string
		to         *fp8.DType
	}{
		{"master", c.Precision.Master, &o.Master},
		{"m1", c.Precision.M1, &o.M1},
		{"m2", c.Precision.M2, &o.M2},
		{"grad_accum", c.Precision.GradAccum, &o.Grad},
	} {
		if f.value == "" {
			continue
		}
		if *f.to, err = fp8.ParseDType(f.value); err != nil {
			return fmt.Errorf("precision.%s: %w", f.key, err)
		}
	}
	if c.Precision.Rounding != "" {
		if o.Rounding, err = fp8.ParseRounding(c.Precision.Rounding); err != nil {
			return fmt.Errorf("precision.rounding: %w", err)
		}
	}
	if c.Precision.StateScope != "" {
		if o.Scope, err = recipe.ParseStateScope(c.Precision.StateScope); err != nil {
			return fmt.Errorf("precision.state_scope: %w", err)
		}
	}
	override(&o.Pow2, c.Precision.StatePow2)
	override(&o.Block, c.Precision.StateBlock)
	override(&o.Expand, c.Precision.StateExpand)
	override(&o.Flat, c.Precision.StateFlat)
	override(&o.FloorV, c.Precision.FloorV)
	return nil
}

func (c Config) overrideReduce(r *recipe.Reduce) (err error) {
	if c.Precision.Reduce != "" {
		if r.DType, err = fp8.ParseDType(c.Precision.Reduce); err != nil {
			return fmt.Errorf("precision.reduce: %w", err)
		}
	}
	if c.Precision.ReduceGranularity != "" {
		if r.Granularity, err = recipe.ParseGranularity(c.Precision.ReduceGranularity); err != nil {
			return fmt.Errorf("precision.reduce_granularity: %w", err)
		}
	}
	if c.Precision.ReduceScale != "" {
		if r.Scale, err = recipe.ParseReduceScale(c.Precision.ReduceScale); err != nil {
			return fmt.Errorf("precision.reduce_scale: %w", err)
		}
	}
	if c.Precision.ReduceSum != "" {
		if r.Sum, err = recipe.ParseReduceSum(c.Precision.ReduceSum); err != nil {
			return fmt.Errorf("precision.reduce_sum: %w", err)
		}
	}
	return nil
}

func (p Precision) overrideActivations(a *recipe.Activations) (err error) {
	switch p.Activations {
	case "":
	case "none":
		a.DType = fp8.Invalid
	default:
		if a.DType, err = fp8.ParseDType(p.Activations); err != nil {
			return err
		}
	}
	if p.ActivationsGranularity != "" {
		if a.Granularity, err = recipe.ParseGranularity(p.ActivationsGranularity); err != nil {
			return err
		}
	}
	if p.ActivationsScale != "" {
		a.Scale, err = recipe.ParseScaleFormat(p.ActivationsScale)
	}
	return err
}

// reconcileSmooth makes model.activation and precision.smooth consistent: if one is
// given, it decides the other.
func (c *Config) reconcileSmooth(recipes recipe.Smooth) error {
	none := recipe.NoSmooth.String()
	activation, form := nn.Activation(c.Model.Activation), c.Precision.Smooth
	switch {
	case activation == "" && form == "":
	case activation == "" && form == none:
		c.Model.Activation = string(nn.SwiGLU)
	case activation == "":
		c.Model.Activation = string(nn.SmoothSwiGLU)
	case activation == nn.SmoothSwiGLU && form == none && recipes.On():
		return fmt.Errorf("precision.smooth = %q contradicts model.activation = %q; drop one of them", form, activation)
	case activation == nn.SmoothSwiGLU && (form == "" || form == none):
		c.Precision.Smooth = cmp.Or(recipes.Form, recipe.Balanced).String()
	case activation != nn.SmoothSwiGLU && form != "" && form != none && form != recipes.Form.String():
		return fmt.Errorf("precision.smooth = %q needs model.activation = %q, not %q; drop one of them", form, nn.SmoothSwiGLU, activation)
	case activation != nn.SmoothSwiGLU:
		c.Precision.Smooth = none
	}
	return nil
}

func (c Config) overrideSmooth(s *recipe.Smooth) (err error) {
	if name := c.Precision.Smooth; name != "" {
		if s.Form, err = recipe.ParseSmoothForm(name); err != nil {
			return fmt.Errorf("precision.smooth: %w", err)
		}
	}
	if !s.On() {
		*s = recipe.Smooth{}
		return nil
	}
	if c.Precision.SmoothScaling != "" {
		if s.Smoothing, err = recipe.ParseScaling(c.Precision.SmoothScaling); err != nil {
			return fmt.Errorf("precision.smooth_scaling: %w", err)
		}
	}
	override(&s.Exact, c.Precision.SmoothExact)
	override(&s.Margin, c.Precision.SmoothMargin)
	return nil
}

func parseRow(row PrecisionRow) (parsed recipe.Row, err error) {
	parsed.Scope = row.Scope
	if parsed.GEMM, err = recipe.ParseGEMM(row.GEMM); err != nil {
		return parsed, err
	}
	if parsed.Operand, err = recipe.ParseOperand(row.Operand); err != nil {
		return parsed, err
	}
	if parsed.Scaling, err = recipe.ParseScaling(row.Scaling); err != nil {
		return parsed, err
	}
	if parsed.Granularity, err = recipe.ParseGranularity(row.Granularity); err != nil {
		return parsed, err
	}
	if parsed.Scale, err = recipe.ParseScaleFormat(row.Scale); err != nil {
		return parsed, err
	}
	if parsed.Hadamard.Signs, err = recipe.ParseSigns(row.Signs); err != nil {
		return parsed, err
	}
	parsed.Hadamard.Size = row.Hadamard
	if row.Format != "" {
		if parsed.DType, err = fp8.ParseDType(row.Format); err != nil {
			return parsed, err
		}
	}
	if row.Rounding != "" {
		rounding, err := fp8.ParseRounding(row.Rounding)
		if err != nil {
			return parsed, err
		}
		parsed.Rounding = &rounding
	}
	override(&parsed.History, row.History)
	parsed.Margin = row.Margin
	return parsed, nil
}
