package recipe

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"octet/fp8"
)

// allLayers is the scope of every decoder layer, without the head.
const allLayers = "layers.*"

// unsupported returns the error for a GEMM of the layer at scope that the device does not
// multiply as stored, with the row that makes it possible.
func (r Recipe) unsupported(d *device, scope string, g GEMM, operands [2]Operand, stored [2]fp8.Encoding) error {
	to, fields := d.nearest(stored, r.Compute)
	// A row for both operands, or for scales, may serve other layers and GEMMs too.
	wide := fields != formatField || to[0] != stored[0] && to[1] != stored[1]
	at, gemm := r.rowOf(scope, g, operands, wide)
	var changed, rows []string
	row := func(text string) {
		if gemm != AnyGEMM {
			text = fmt.Sprintf("gemm = %q, %s", gemm, text)
		}
		rows = append(rows, fmt.Sprintf("scope = %q, %s", at, text))
	}
	for k, o := range operands {
		if to[k] != stored[k] {
			changed = append(changed, o.String())
			row(fmt.Sprintf("operand = %q, %s", o, d.values(to[k], fields)))
		}
	}
	these := "this row"
	switch {
	case len(rows) == 2 && d.values(to[0], fields) == d.values(to[1], fields):
		rows = nil
		row(d.values(to[0], fields))
	case len(rows) == 2:
		these = "these rows"
	}
	have := [2]string{stored[0].String(), stored[1].String()}
	if fields == formatField {
		have = [2]string{stored[0].DType.String(), stored[1].DType.String()}
	}
	return fmt.Errorf("recipe %s: %s: %s multiplies %s in %s by %s in %s, which the device's GEMM library does not support; "+
		"to change the %s of %s, add %s before all others in [[precision.rows]]: %s",
		r.Name, scope, g, operands[0], have[0], operands[1], have[1], fields, strings.Join(changed, " and "), these, strings.Join(rows, "; "))
}

// fields are the fields of a row that a remedy sets.
type fields uint8

const (
	formatField fields = 1 << iota
	granularityField
	scaleField
)

func (f fields) String() string {
	var names []string
	for i, name := range []string{"format", "granularity", "scale"} {
		if f>>i&1 > 0 {
			names = append(names, name)
		}
	}
	if len(names) == 3 {
		return "format, granularity and scale"
	}
	return strings.Join(names, " and ")
}

// differ returns the fields in which x and y differ.
func differ(x, y fp8.Encoding) (f fields) {
	if x.DType != y.DType {
		f |= formatField
	}
	if x.Across != y.Across || x.Along != y.Along {
		f |= granularityField
	}
	if x.Scale != y.Scale || x.Outer != y.Outer {
		f |= scaleField
	}
	return f
}

// nearest returns the operands that the device multiplies and that differ from pair in the
// fewest fields, and these fields. Of equals it returns those that leave the first operand,
// then the first of the device's list. If only one operand has up to eight bits, it returns
// both in the compute format; if none has, both in the one that is not the compute format.
func (d *device) nearest(pair [2]fp8.Encoding, compute fp8.DType) (to [2]fp8.Encoding, changed fields) {
	to, changed = [2]fp8.Encoding{{DType: compute}, {DType: compute}}, formatField
	switch {
	case pair[0].DType.IsQuantized() != pair[1].DType.IsQuantized():
		return to, changed
	case !pair[0].DType.IsQuantized() && pair[0].DType == compute:
		return [2]fp8.Encoding{pair[1], pair[1]}, changed
	case !pair[0].DType.IsQuantized():
		return [2]fp8.Encoding{pair[0], pair[0]}, changed
	}
	list := d.pairs
	if list == nil { // any
		list = [][2]fp8.Encoding{{{DType: d.e4m3}, {DType: d.e4m3}}, {{DType: fp8.E5M2}, {DType: fp8.E5M2}}}
	}
	least := 100
	for _, candidate := range list {
		cost, all := 0, fields(0)
		for k := range candidate {
			e := &candidate[k]
			if e.Scale == fp8.Invalid { // any
				*e = fp8.Encoding{DType: e.DType, Across: pair[k].Across, Along: pair[k].Along, Scale: pair[k].Scale, Outer: pair[k].Outer}
			}
			if e.Across > 0 && e.Along == pair[k].Along && pair[k].Across%e.Across == 0 {
				e.Across = pair[k].Across // equal scales are repeated
			}
			f := differ(*e, pair[k])
			all |= f
			for ; f > 0; f &= f - 1 {
				cost += 2
			}
		}
		if candidate[0] != pair[0] {
			cost++
		}
		if cost < least {
			least, to, changed = cost, candidate, all
		}
	}
	return to, changed
}

// values returns the fields of a row that stores an operand as e.
func (d *device) values(e fp8.Encoding, f fields) string {
	var list []string
	if f&formatField > 0 {
		name := e.DType
		if name == d.e4m3 { // a configuration's e4m3 is the device's variant
			name = fp8.E4M3
		}
		list = append(list, fmt.Sprintf("format = %q", name))
	}
	if f&granularityField > 0 {
		list = append(list, fmt.Sprintf("granularity = %q", e.Granularity()))
	}
	if f&scaleField > 0 {
		list = append(list, fmt.Sprintf("scale = %q", scaleFormat(e)))
	}
	return strings.Join(list, ", ")
}

// scaleFormat returns the usual ScaleFormat of an encoding's scales.
func scaleFormat(e fp8.Encoding) ScaleFormat {
	i := slices.IndexFunc([]ScaleFormat{Pow2, E8M0}, func(f ScaleFormat) bool { return f.DType == e.Scale })
	if i >= 0 && !e.Outer {
		return []ScaleFormat{Pow2, E8M0}[i]
	}
	return ScaleFormat{DType: e.Scale, Rule: fp8.Quotient, Outer: e.Outer}
}

// rowOf returns the scope and the GEMM of the row that decides how the layer at scope stores
// the operands of a GEMM: of the row that sets a format, and if wide any field of how an
// operand is stored. Where that row names no scope, it returns the layer's own, and if wide
// that of all layers; unless wide, it returns the GEMM itself.
func (r Recipe) rowOf(scope string, g GEMM, operands [2]Operand, wide bool) (at string, gemm GEMM) {
	for _, row := range r.Rows {
		sets := row.DType != fp8.Invalid || wide && (row.Granularity != Granularity{} || row.Scale != ScaleFormat{})
		if !sets || !r.matches(row, scope, g, operands[0]) && !r.matches(row, scope, g, operands[1]) {
			continue
		}
		if !wide {
			return cmp.Or(row.Scope, scope), g
		}
		if ok, _ := path.Match(allLayers, scope); ok && row.Scope == "" {
			return allLayers, row.GEMM
		}
		return cmp.Or(row.Scope, scope), row.GEMM
	}
	return scope, g
}
