package recipe

import (
	"fmt"
	"slices"

	"octet/fp8"
)

// device describes the GEMMs of the device that a recipe was resolved for.
type device struct {
	e4m3  fp8.DType
	pairs [][2]fp8.Encoding
}

// For returns the recipe adapted to a device, for a model's linear layers. e4m3 is the
// device's E4M3, pairs what its GEMM library multiplies (backend.Spec.Pairs), the activation
// or gradient first. The library may support fewer pairs than the matrix units: cuBLASLt has
// no E5M2 by E5M2.
//
// For replaces E4M3 by the device's variant in operands, whose limit changes with it,
// in the optimizer's moments and in the gradients that ranks exchange. Where the GEMM library does not support a GEMM's
// formats, For replaces E4M3 operands by E5M2: on a device that multiplies equal formats
// only, dgrad and wgrad read copies of weight and input in the gradient's E5M2.
//
// For never changes scales. If the library does not support a GEMM's formats or scales, the
// error names the GEMM, its operands, the fields to change, and the row to add to
// [[precision.rows]].
//
// Each note is a sentence about one change; without notes the recipe is unchanged.
func (r Recipe) For(e4m3 fp8.DType, pairs [][2]fp8.Encoding, layers []Layer) (resolved Recipe, notes []string, err error) {
	r = r.Over(layers)
	if e4m3.IsQuantized() && e4m3 != fp8.E4M3 && r.renameE4M3(e4m3) {
		notes = append(notes, fmt.Sprintf("e4m3 is %s on this device, with maximum %v", e4m3, e4m3.Max()))
	}
	if r.Activations.DType == fp8.E4M3 && e4m3.IsQuantized() {
		r.Activations.DType = e4m3
	}
	d := &device{e4m3, pairs}
	r.device = nil
	swapped := false
	for _, group := range r.groups(layers) {
		for i, p := range GEMMs {
			casts := group.casts[i]
			from := [2]fp8.DType{casts[0].DType, casts[1].DType}
			to := d.formats(from)
			stored := [2]fp8.Encoding{casts[0].Encoding(), casts[1].Encoding()}
			for k := range stored {
				stored[k].DType = to[k]
			}
			if !d.multiplies(stored) {
				return r, nil, r.unsupported(d, layers, group.first, p.GEMM, [2]Operand{p.A, p.B}, stored)
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

// Outside returns the first GEMM of a model that reads operands of up to eight bits and is
// not among the pairs, as "fprop multiplies input in … by weight in …"; "" if there is none.
func (r Recipe) Outside(pairs [][2]fp8.Encoding, layers []Layer) string {
	for _, g := range r.groups(layers) {
		for i, p := range GEMMs {
			a, b := g.casts[i][0].Encoding(), g.casts[i][1].Encoding()
			if a.DType.IsQuantized() && !fp8.Multiplies(pairs, a, b) {
				return sentence(p.GEMM, [2]Operand{p.A, p.B}, a, b)
			}
		}
	}
	return ""
}

// sentence says which operands a GEMM multiplies.
func sentence[T fmt.Stringer](g GEMM, o [2]Operand, a, b T) string {
	return fmt.Sprintf("%s multiplies %s in %s by %s in %s", g, o[0], a, o[1], b)
}

// MultipliesIntegers reports whether a GEMM of a model multiplies integers.
func (r Recipe) MultipliesIntegers(layers []Layer) bool {
	return r.anyCast(layers, func(c Cast) bool { return c.DType.IsInteger() && c.DType.IsQuantized() })
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
	rename(&r.Optimizer.Grad)
	rename(&r.Reduce.DType)
	return found
}

// multiplies reports whether the device has a GEMM for the pair. No device multiplies a
// format of up to eight bits by a wider one, or FP32 by BF16. A format that BF16 contains
// is BF16.
func (d *device) multiplies(pair [2]fp8.Encoding) bool {
	if pair[0].DType.IsQuantized() || pair[1].DType.IsQuantized() {
		return fp8.Multiplies(d.pairs, pair[0], pair[1])
	}
	return pair[0].DType.Format().Container == pair[1].DType.Format().Container
}

// hasFormats reports whether the device multiplies the formats, with some scales.
func (d *device) hasFormats(formats [2]fp8.DType) bool {
	a, b := fp8.Encoding{DType: formats[0]}, fp8.Encoding{DType: formats[1]}
	if d.pairs == nil || !a.DType.IsQuantized() && !b.DType.IsQuantized() {
		return d.multiplies([2]fp8.Encoding{a, b})
	}
	return slices.ContainsFunc(d.pairs, func(p [2]fp8.Encoding) bool { return p[0].DType == a.DType && p[1].DType == b.DType })
}

// formats returns the formats that a GEMM reads where the rows give pair.
func (d *device) formats(pair [2]fp8.DType) [2]fp8.DType {
	if d.hasFormats(pair) {
		return pair
	}
	wide := pair
	for i := range wide {
		if wide[i] == d.e4m3 {
			wide[i] = fp8.E5M2
		}
	}
	if d.hasFormats(wide) {
		return wide
	}
	return pair
}
