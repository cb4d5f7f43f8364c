package recipe

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"octet/fp8"
)

// allLayers is the scope of every decoder layer, without the head.
const allLayers = "layers.*"

// unsupported returns the error for a GEMM of layer l that the device does not multiply as
// stored, with the row that makes it possible. The row leaves every operand without scales,
// such as those of a BF16 layer, as it is. If no such row exists, the error names a recipe.
func (r Recipe) unsupported(d *device, layers []Layer, l Layer, g GEMM, operands [2]Operand, stored [2]fp8.Encoding) error {
	to, fields := d.nearest(stored, r.Compute)
	have := sentence(g, operands, stored[0], stored[1])
	if fields == formatField {
		have = sentence(g, operands, stored[0].DType, stored[1].DType)
	}
	fault := fmt.Sprintf("recipe %s: %s: %s, which the device's GEMM library does not support", r.Name, l.Scope, have)
	var changed []string
	var rows []Row
	for k, o := range operands {
		if to[k] != stored[k] {
			changed = append(changed, o.String())
			row := rowFor(to[k], fields)
			row.Operand = o
			rows = append(rows, row)
		}
	}
	these := "this row"
	if len(rows) == 2 {
		these = "these rows"
		if first := rowFor(to[0], fields); first == rowFor(to[1], fields) {
			these, rows = "this row", []Row{first}
		}
	}
	// A row for both operands, or for scales, may serve other layers and GEMMs too.
	wide := fields != formatField || len(changed) == 2
	for _, at := range r.rangesOf(layers, l, g, operands, wide) {
		for i := range rows {
			rows[i].Scope, rows[i].GEMM = at.Scope, at.GEMM
		}
		if !r.keepsWide(rows, layers) {
			continue
		}
		var texts []string
		for _, row := range rows {
			texts = append(texts, d.text(row))
		}
		return fmt.Errorf("%s; to change the %s of %s, add %s before all others in [[precision.rows]]: %s",
			fault, fields, strings.Join(changed, " and "), these, strings.Join(texts, "; "))
	}
	return fmt.Errorf("%s; use recipe %s", fault, d.alternative(layers))
}

// rangesOf returns scopes and GEMMs for the remedy of a GEMM of layer l, the widest first:
// those of the row that decides how its operands are stored, and within them the layers
// numbered like l whose operands have scales where those of l have, and the GEMM alone.
func (r Recipe) rangesOf(layers []Layer, l Layer, g GEMM, operands [2]Operand, wide bool) (list []Row) {
	at, gemm := r.rowOf(l.Scope, g, operands, wide)
	if !wide {
		return []Row{{Scope: at, GEMM: gemm}, {Scope: l.Scope, GEMM: g}}
	}
	scopes := []string{at}
	if slice := r.sliceOf(layers, l); slice != "" {
		scopes = append(scopes, slice)
	}
	for _, gemm := range []GEMM{gemm, g} {
		for _, scope := range scopes {
			list = append(list, Row{Scope: scope, GEMM: gemm})
		}
	}
	return list
}

// sliceOf returns the scope of the consecutive layers from the number of l on that have
// scales for the same operands, such as "layers[1:-1].*"; "" if l has no number.
func (r Recipe) sliceOf(layers []Layer, l Layer) string {
	var path string
	from := -1
	for n, parts := range numbers(l.Scope) {
		path, from = parts[0], n
		break
	}
	if from < 0 {
		return ""
	}
	depth := depths(layers)[path]
	with := make([]string, depth) // scales, by number
	for _, l := range layers {
		for n, parts := range numbers(l.Scope) {
			if parts[0] == path {
				with[n] += parts[1]
				for _, p := range GEMMs {
					with[n] += fmt.Sprint(r.Cast(l, p.GEMM, p.A).DType.IsQuantized(), r.Cast(l, p.GEMM, p.B).DType.IsQuantized())
				}
			}
			break
		}
	}
	to := from + 1
	for to < depth && with[to] == with[from] {
		to++
	}
	first, last := "", ""
	if from > 0 {
		first = strconv.Itoa(from)
	}
	if to < depth {
		last = strconv.Itoa(to - depth)
	}
	return path + "[" + first + ":" + last + "].*"
}

// keepsWide reports whether rows before those of r give no scale to an operand without, and
// whether all casts remain valid.
func (r Recipe) keepsWide(rows []Row, layers []Layer) bool {
	changed := r
	changed.Rows = slices.Concat(rows, r.Rows)
	changed = changed.Over(layers)
	for _, l := range layers {
		for _, p := range GEMMs {
			for _, o := range []Operand{p.A, p.B} {
				c := changed.Cast(l, p.GEMM, o)
				if c.Validate() != nil || c.DType.IsQuantized() && !r.Cast(l, p.GEMM, o).DType.IsQuantized() {
					return false
				}
			}
		}
	}
	return true
}

// alternative returns the name of the first of Octet's recipes with scales that the device
// computes, else bf16.
func (d *device) alternative(layers []Layer) string {
	for _, r := range builtIn {
		if _, _, err := r.For(d.e4m3, d.pairs, layers); err == nil && !r.Unquantized(layers) && r.anyCast(layers, func(c Cast) bool { return c.DType.IsQuantized() }) {
			return r.Name
		}
	}
	return "bf16"
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
				if d := e.DType; pair[k].Outer && d != pair[k].DType { // made for one format
					*e = fp8.Encoding{DType: d, Scale: fp8.F32}
				} else {
					*e = pair[k]
					e.DType = d
				}
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

// rowFor returns a row with the fields that store an operand as e.
func rowFor(e fp8.Encoding, f fields) (row Row) {
	if f&formatField > 0 {
		row.DType = e.DType
	}
	if f&granularityField > 0 {
		row.Granularity = granularity(e)
	}
	if f&scaleField > 0 {
		row.Scale = scaleFormat(e)
	}
	return row
}

// text returns a remedy's row as a configuration has it.
func (d *device) text(row Row) string {
	if row.DType == d.e4m3 { // a configuration's e4m3 is the device's variant
		row.DType = fp8.E4M3
	}
	format := ""
	if row.DType != fp8.Invalid {
		format = row.DType.String()
	}
	list := []string{fmt.Sprintf("scope = %q", row.Scope)}
	for _, f := range [][2]string{
		{"gemm", row.GEMM.String()},
		{"operand", row.Operand.String()},
		{"format", format},
		{"granularity", row.Granularity.String()},
		{"scale", row.Scale.String()},
	} {
		if f[1] != "" {
			list = append(list, fmt.Sprintf("%s = %q", f[0], f[1]))
		}
	}
	return strings.Join(list, ", ")
}

// granularity returns the Granularity of an encoding.
func granularity(e fp8.Encoding) Granularity {
	g := Granularity{e.Across, e.Along}
	for _, size := range []*int{&g.Across, &g.Along} {
		if *size == 0 {
			*size = All
		}
	}
	return g
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
