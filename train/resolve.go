package train

import (
	"fmt"
	"path"

	"octet/fp8"
	"octet/nn"
	"octet/recipe"
)

// ModelConfig is the model section as nn wants it, the recipe's choice of
// activation filled in.
func (c Config) ModelConfig() nn.Config {
	return nn.Config{
		Layers: c.Model.Layers, Dim: c.Model.Dim, Heads: c.Model.Heads, KVHeads: c.Model.KVHeads,
		FFN: c.Model.FFN, Vocab: c.Model.Vocab, Tied: c.Model.Tied,
		Activation: nn.Activation(c.Model.Activation),
		RopeTheta:  c.Model.RopeTheta, NormEps: c.Model.NormEps, InitStd: c.Model.InitStd,
	}
}

// Choices is what a recipe decides where the config does not.
func Choices(r recipe.Recipe) RecipeChoices {
	activation := nn.SwiGLU
	if r.Smooth {
		activation = nn.SmoothSwiGLU
	}
	return RecipeChoices{
		Activation: string(activation),
		Precision: Precision{
			Master: r.Optimizer.Master.String(), M1: r.Optimizer.M1.String(), M2: r.Optimizer.M2.String(),
			Rounding: r.Optimizer.Rounding.String(),
			History:  &r.History, Margin: &r.Margin, GradMargin: &r.GradMargin,
		},
	}
}

// Resolve completes the config with its recipe's choices and checks it:
// nothing is left that a run would still have to decide.
func (c *Config) Resolve() error {
	r, err := recipe.Lookup(c.Recipe)
	if err != nil {
		return err
	}
	c.FillFromRecipe(Choices(r))
	if err := c.Validate(recipe.Names()); err != nil {
		return err
	}
	if r, err = c.ResolvedRecipe(); err != nil {
		return err
	}
	for i, row := range c.Precision.Rows {
		if !matchesAny(row.Scope, c.Model.Layers) {
			return fmt.Errorf("precision.rows[%d]: scope %q matches none of layers.0 to layers.%d and not lm_head; a scope is a path such as layers.0.mlp.*", i, row.Scope, c.Model.Layers-1)
		}
	}
	if r.Smooth && !smoothsAny(r, c.Model.Layers) {
		return fmt.Errorf("model.activation = smooth-swiglu has nothing to smooth: no down_proj reads FP8 under recipe %s and its rows; use swiglu", c.Recipe)
	}
	return nil
}

func matchesAny(scope string, layers int) bool {
	for i := range layers {
		for _, module := range recipe.Modules {
			if ok, _ := path.Match(scope, recipe.Scope(module, i)); ok {
				return true
			}
		}
	}
	return false
}

func smoothsAny(r recipe.Recipe, layers int) bool {
	for i := range layers {
		if r.Cast(recipe.Scope("mlp.down_proj", i), recipe.Fprop, recipe.Input).DType.IsFP8() {
			return true
		}
	}
	return false
}

// ResolvedRecipe is the named recipe with the config's exceptions before its
// rows and the config's [precision] keys over its own.
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
	if c.Model.Activation != "" {
		r.Smooth = nn.Activation(c.Model.Activation) == nn.SmoothSwiGLU
	}
	for _, f := range []struct {
		key, value string
		to         *fp8.DType
	}{
		{"master", c.Precision.Master, &r.Optimizer.Master},
		{"m1", c.Precision.M1, &r.Optimizer.M1},
		{"m2", c.Precision.M2, &r.Optimizer.M2},
	} {
		if f.value == "" {
			continue
		}
		if *f.to, err = fp8.ParseDType(f.value); err != nil {
			return r, fmt.Errorf("precision.%s: %w", f.key, err)
		}
	}
	if c.Precision.Rounding != "" {
		if r.Optimizer.Rounding, err = fp8.ParseRounding(c.Precision.Rounding); err != nil {
			return r, fmt.Errorf("precision.rounding: %w", err)
		}
	}
	for _, f := range []struct {
		value *int
		to    *int
	}{{c.Precision.History, &r.History}, {c.Precision.Margin, &r.Margin}, {c.Precision.GradMargin, &r.GradMargin}} {
		if f.value != nil {
			*f.to = *f.value
		}
	}
	return r, r.Validate()
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
	return parsed, nil
}
