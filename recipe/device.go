package recipe

import (
	"cmp"
	"fmt"
	"slices"

	"octet/fp8"
)

// device is what a recipe was resolved for.
type device struct {
	e4m3  fp8.DType
	pairs [][2]fp8.DType
}

// For is the recipe as a device computes it, for a model of the given depth.
// e4m3 is the E4M3 of the device, pairs the FP8 formats that one GEMM takes, the
// activation or gradient first. A matrix unit may multiply pairs that the vendor's
// GEMM does not take: cuBLASLt has no E5M2 by E5M2.
//
// A recipe says E4M3 and means the device's: of operands, whose limit follows,
// and of the optimizer's moments. A product of formats that no GEMM of the device
// takes reads E5M2 where it would read E4M3: with equal formats only, dgrad
// and wgrad read copies of weight and input in the gradient's E5M2. Where that
// does not help, the error names the product and what to write into
// [[precision.rows]].
//
// Each note is a sentence on what became of the recipe; without notes it is what
// it was.
func (r Recipe) For(e4m3 fp8.DType, pairs [][2]fp8.DType, layers int) (resolved Recipe, notes []string, err error) {
	if e4m3.IsFP8() && e4m3 != fp8.E4M3 && r.renameE4M3(e4m3) {
		notes = append(notes, fmt.Sprintf("e4m3 is %s on this device, its largest value %v", e4m3, e4m3.Max()))
	}
	d := &device{e4m3, pairs}
	r.device = nil
	swapped := false
	for _, group := range r.groups(layers) {
		for i, p := range Products {
			from := [2]fp8.DType{group.casts[i][0].DType, group.casts[i][1].DType}
			to := d.formats(from)
			if !d.multiplies(to) {
				scope := Scope(group.modules[0], group.layers[group.modules[0]][0])
				return r, nil, fmt.Errorf("recipe %s: %s: %s multiplies %s in %s by %s in %s, which the device's GEMM library does not take; add this row first in [[precision.rows]]: scope = %q, gemm = %q, %s",
					r.Name, scope, p.GEMM, p.A, from[0], p.B, from[1], r.asked(scope, p.GEMM, p.A, p.B), p.GEMM, d.remedy(p.A, p.B, from, r.Compute))
			}
			for k, o := range []Operand{p.A, p.B} {
				if to[k] == from[k] {
					continue
				}
				swapped = true
				note := fmt.Sprintf("%s reads %s in %s: this device multiplies no %s by %s", p.GEMM, o, to[k], from[0], from[1])
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

// OneScale is an error that names the first product of a model of the given depth
// which reads an operand with more scales than one. Not every device has such
// products.
func (r Recipe) OneScale(layers int) error {
	what := r.finerScales(layers)
	if what == "" {
		return nil
	}
	use := "use fp8-current, fp8-delayed or fp8-smooth"
	if plain, err := Lookup(r.Name); err == nil && plain.finerScales(layers) == "" {
		use = "take that granularity out of [[precision.rows]]"
	}
	return fmt.Errorf("recipe %s: %s, and this device has one for a tensor; %s, or use --backend emu", r.Name, what, use)
}

// finerScales is the first operand whose scales are finer than a tensor, in words.
func (r Recipe) finerScales(layers int) string {
	for _, group := range r.groups(layers) {
		for i, p := range Products {
			for k, o := range []Operand{p.A, p.B} {
				if g := group.casts[i][k].Granularity; g > ByTensor {
					scope := Scope(group.modules[0], group.layers[group.modules[0]][0])
					return fmt.Sprintf("%s of %s reads %s with scales by %s", p.GEMM, scope, o, g)
				}
			}
		}
	}
	return ""
}

// asked is the scope of the row that gives the format of a product's operand in the
// layer at scope, or that layer itself if the row is for all.
func (r Recipe) asked(scope string, g GEMM, operands ...Operand) string {
	for _, row := range r.Rows {
		for _, o := range operands {
			if row.DType != fp8.Invalid && row.matches(scope, g, o) {
				return cmp.Or(row.Scope, scope)
			}
		}
	}
	return scope
}

// renameE4M3 reports whether there was one.
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

// multiplies reports whether there is such a product. No device multiplies FP8 by
// anything else.
func (d *device) multiplies(pair [2]fp8.DType) bool {
	if pair[0].IsFP8() || pair[1].IsFP8() {
		return slices.Contains(d.pairs, pair)
	}
	return true
}

// formats are those in which a product reads what the rows give as pair.
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

// remedy is the rest of a row that makes a product of a and b possible: another
// format for one operand, for both, or the compute format, which both get where one
// has it.
func (d *device) remedy(a, b Operand, pair [2]fp8.DType, compute fp8.DType) string {
	if pair[0].IsFP8() != pair[1].IsFP8() {
		return fmt.Sprintf("format = %q", compute)
	}
	for _, f := range []struct {
		as   fp8.DType
		name string // in a config, where e4m3 is the device's
	}{{d.e4m3, fp8.E4M3.String()}, {fp8.E5M2, fp8.E5M2.String()}} {
		for _, change := range []struct {
			to  [2]fp8.DType
			row string
		}{
			{[2]fp8.DType{pair[0], f.as}, fmt.Sprintf("operand = %q, ", b)},
			{[2]fp8.DType{f.as, pair[1]}, fmt.Sprintf("operand = %q, ", a)},
			{[2]fp8.DType{f.as, f.as}, ""},
		} {
			if slices.Contains(d.pairs, change.to) {
				return fmt.Sprintf("%sformat = %q", change.row, f.name)
			}
		}
	}
	return fmt.Sprintf("format = %q", compute)
}
