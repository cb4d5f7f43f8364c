package nn

import (
	"errors"
	"fmt"

	"octet/backend"
	"octet/fp8"
	"octet/recipe"
)

// RecipeFor returns a recipe adapted to a device, for a model's linear layers, and notes, a
// sentence each: what [recipe.Recipe.For] changed, rows that match no layer, a model too
// small for any of the recipe's formats with scales, and what a device model computes
// otherwise than its device. The error wraps backend.ErrUnsupported if the device lacks a GEMM
// of the recipe, or an op or a cast that it needs.
func RecipeFor(s backend.Spec, r recipe.Recipe, layers []recipe.Layer) (recipe.Recipe, []string, error) {
	if err := lacks(s, r, layers); err != nil {
		return r, nil, fmt.Errorf("%w by backend %s: recipe %s has %w", backend.ErrUnsupported, s.DeviceName(), r.Name, err)
	}
	r, notes, err := r.For(s.E4M3, s.Pairs, layers)
	if err != nil {
		return r, nil, fmt.Errorf("%w by backend %s: %w", backend.ErrUnsupported, s.DeviceName(), err)
	}
	for _, scope := range r.Unmatched(layers) {
		notes = append(notes, fmt.Sprintf("the row with scope %q matches no layer of this model", scope))
	}
	if r.Unquantized(layers) {
		notes = append(notes, fmt.Sprintf("no GEMM of this model reads a format with scales: other rows of recipe %s take all %d linear layers", r.Name, len(layers)))
	}
	if gemm := r.Outside(s.Library, layers); s.Library != nil && gemm != "" {
		notes = append(notes, fmt.Sprintf("%s, which the GEMM library of the modelled device does not support: only %s computes this recipe (docs/device-models.md says how)", gemm, s.DeviceName()))
	}
	if s.IntegerBits > 0 && !r.MultipliesIntegers(layers) {
		notes = append(notes, fmt.Sprintf("recipe %s multiplies no integers: its results are those of backend %s, as %s adds up integers alone in %d bits", r.Name, s.Backend, s.DeviceName(), s.IntegerBits))
	}
	return r, notes, nil
}

// lacks returns an error for what a recipe needs besides GEMMs and a device has not.
func lacks(s backend.Spec, r recipe.Recipe, layers []recipe.Layer) error {
	if !s.F16 && r.Compute == fp8.F16 {
		return errors.New("activations in fp16, and this backend has no ops for them; use recipe bf16, or --backend emu")
	}
	if !s.BlockMoments && r.Optimizer.M1.IsInteger() {
		return fmt.Errorf("a momentum in %s, and this backend has floating-point formats only; add precision.m1=bf16 precision.state_block=0 precision.state_flat=false, or use --backend emu", r.Optimizer.M1)
	}
	if !s.BlockMoments && r.Optimizer.Block != 0 {
		return errors.New("moments with block scales, and this backend has one scale per tensor; add precision.state_block=0 precision.state_expand=false precision.state_flat=false, or use --backend emu")
	}
	if !s.BlockSources && r.Activations.On() {
		return fmt.Errorf("activations stored in %s between forward and backward, and this backend does not read them; add precision.activations=none, or use --backend emu", r.Activations.DType)
	}
	for _, c := range r.Casts(layers) {
		switch {
		case !s.Masked && c.DType.Format().Container != c.DType:
			return fmt.Errorf("operands in %s, and this backend's casts do not round BF16 to fewer bits; use recipe bf16, or --backend emu", c.DType)
		case !s.SeedSigns && c.Hadamard.Signs == recipe.SeedSigns:
			return fmt.Errorf("rotations with signs from the seed, and this backend has fixed ones only; add signs = %q to the row with hadamard, or use --backend emu", recipe.TESigns)
		}
	}
	return nil
}
