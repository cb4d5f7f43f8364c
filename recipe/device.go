package recipe

import (
	"cmp"
	"fmt"
	"slices"

	"octet/fp8"
)

// device describes the FP8 formats of the device that a recipe was resolved for.
type device struct {
	e4m3  fp8.DType
	pairs [][2]fp8.DType
}

// For returns the recipe adapted to a device, for a model's linear layers. e4m3 is the
// device's E4M3, pairs the pairs of formats of up to eight bits that its GEMM library
// supports, the activation or gradient first; nil is any two floating-point formats. The library may support fewer pairs than the matrix units: cuBLASLt has
// no E5M2 by E5M2.
//
// For replaces E4M3 by the device's variant in operands, whose limit changes with it,
// and in the optimizer's moments. Where the GEMM library does not support a GEMM's
// formats, For replaces E4M3 operands by E5M2: on a device that multiplies equal formats
// only, dgrad and wgrad read copies of weight and input in the gradient's E5M2. If that
// pair is not supported either, the error names the GEMM and the row to add to
// [[precision.rows]].
//
// Each note is a sentence about one change; without notes the recipe is unchanged.
func (r Recipe) For(e4m3 fp8.DType, pairs [][2]fp8.DType, layers []Layer) (resolved Recipe, notes []string, err error) {
	r = r.Over(layers)
	if e4m3.IsQuantized() && e4m3 != fp8.E4M3 && r.renameE4M3(e4m3) {
		notes = append(notes, fmt.Sprintf("e4m3 is %s on this device, with maximum %v", e4m3, e4m3.Max()))
	}
	d := &device{e4m3, pairs}
	r.device = nil
	swapped := false
	for _, group := range r.groups(layers) {
		for i, p := range GEMMs {
			from := [2]fp8.DType{group.casts[i][0].DType, group.casts[i][1].DType}
			to := d.formats(from)
			if !d.multiplies(to) {
				scope := group.first.Scope
				return r, nil, fmt.Errorf("recipe %s: %s: %s multiplies %s in %s by %s in %s, which the device's GEMM library does not support; add this row before all others in [[precision.rows]]: scope = %q, gemm = %q, %s",
					r.Name, scope, p.GEMM, p.A, from[0], p.B, from[1], r.rowScope(scope, p.GEMM, p.A, p.B), p.GEMM, d.remedy(p.A, p.B, from, r.Compute))
			}
			for k, o := range []Operand{p.A, p.B} {
				if to[k] == from[k] {
					continue
				}
				swapped = true
				note := fmt.Sprintf("%s reads %s in %s: this device has no GEMM of %s by %s", p.GEMM, o, to[k], from[0], from[1])
				if !slices.Contains(notes, note) {
					notes = append(notes, note)
				}
			}
		}
	}
	if swapped {
		r.device = d
	}
	return r, notes, nil
}

// CheckPerTensor returns an error if any GEMM of a model's linear layers reads an operand
// with per-row or block scales, for devices without such GEMMs.
func (r Recipe) CheckPerTensor(layers []Layer) error {
	what := r.finerScales(layers)
	if what == "" {
		return nil
	}
	use := "use fp8-current, fp8-delayed or fp8-smooth"
	if plain, err := Lookup(r.Name); err == nil && plain.finerScales(layers) == "" {
		use = "drop that granularity from [[precision.rows]]"
	}
	return fmt.Errorf("recipe %s: %s, but this device supports per-tensor scales only; %s, or use --backend emu", r.Name, what, use)
}

// finerScales describes the first operand with per-row or block scales, "" without one.
func (r Recipe) finerScales(layers []Layer) string {
	for _, group := range r.groups(layers) {
		for i, p := range GEMMs {
			for k, o := range []Operand{p.A, p.B} {
				if g := group.casts[i][k].Granularity; g != (Granularity{}) && g != PerTensor {
					return fmt.Sprintf("%s of %s reads %s with scales of granularity %s", p.GEMM, group.first.Scope, o, g)
				}
			}
		}
	}
	return ""
}

// rowScope returns the scope of the row that sets the format of one of the operands in
// the layer at scope, or scope itself if there is no such row or it matches all layers.
func (r Recipe) rowScope(scope string, g GEMM, operands ...Operand) string {
	for _, row := range r.Rows {
		for _, o := range operands {
			if row.DType != fp8.Invalid && r.matches(row, scope, g, o) {
				return cmp.Or(row.Scope, scope)
			}
		}
	}
	return scope
}

// renameE4M3 replaces E4M3 by another variant and reports whether there was any.
func (r *Recipe) renameE4M3(to fp8.DType) (found bool) {
	rename := func(d *fp8.DType) {
		if *d == fp8.E4M3 {
			*d, found = to, true
		}
	}
	r.Rows = slices.Clone(r.Rows)
	for i := range r.Rows {
		rename(&r.Rows[i].DType)
	}
	rename(&r.Optimizer.M1)
	rename(&r.Optimizer.M2)
	return found
}

// multiplies reports whether the device has a GEMM for the pair. No device multiplies a
// format of up to eight bits by a wider one, or FP32 by BF16. A format that BF16 contains
// is BF16.
func (d *device) multiplies(pair [2]fp8.DType) bool {
	if pair[0].IsQuantized() || pair[1].IsQuantized() {
		return fp8.Multiplies(d.pairs, pair[0], pair[1])
	}
	return pair[0].Format().Container == pair[1].Format().Container
}

// formats returns the formats that a GEMM reads where the rows give pair.
func (d *device) formats(pair [2]fp8.DType) [2]fp8.DType {
	if d.multiplies(pair) {
		return pair
	}
	wide := pair
	for i := range wide {
		if wide[i] == d.e4m3 {
			wide[i] = fp8.E5M2
		}
	}
	if d.multiplies(wide) {
		return wide
	}
	return pair
}

// remedy returns the rest of a row that makes a GEMM of a and b possible: another FP8
// format for one operand or for both, else a wide format for both.
func (d *device) remedy(a, b Operand, pair [2]fp8.DType, compute fp8.DType) string {
	switch {
	case pair[0].IsQuantized() != pair[1].IsQuantized():
		return fmt.Sprintf("format = %q", compute)
	case !pair[0].IsQuantized() && pair[0] == compute: // the row that gives pair[1] is to give both
		return fmt.Sprintf("format = %q", pair[1])
	case !pair[0].IsQuantized():
		return fmt.Sprintf("format = %q", pair[0])
	}
	for _, f := range []struct {
		as   fp8.DType
		name string // in a configuration, where e4m3 means the device's variant
	}{{d.e4m3, fp8.E4M3.String()}, {fp8.E5M2, fp8.E5M2.String()}} {
		for _, change := range []struct {
			to  [2]fp8.DType
			row string
		}{
			{[2]fp8.DType{pair[0], f.as}, fmt.Sprintf("operand = %q, ", b)},
			{[2]fp8.DType{f.as, pair[1]}, fmt.Sprintf("operand = %q, ", a)},
			{[2]fp8.DType{f.as, f.as}, ""},
		} {
			if fp8.Multiplies(d.pairs, change.to[0], change.to[1]) {
				return fmt.Sprintf("%sformat = %q", change.row, f.name)
			}
		}
	}
	return fmt.Sprintf("format = %q", compute)
}
