package recipe

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"octet/fp8"
)

// GEMMs lists the operands of each GEMM, the activation or gradient first.
var GEMMs = []struct {
	GEMM GEMM
	A, B Operand
}{
	{Fprop, Input, Weight},
	{Dgrad, Grad, Weight},
	{Wgrad, Grad, Input},
}

// group is a set of linear layers whose casts are equal.
type group struct {
	first   Layer
	hidden  bool                // all layers are Hidden
	paths   []string            // as Paths lists them
	numbers map[string][]string // of the layers, by path
	casts   [3][2]Cast
}

// groups returns the groups of a model's layers.
func (r Recipe) groups(layers []Layer) []group {
	r = r.Over(layers)
	var list []group
	for _, l := range layers {
		var casts [3][2]Cast
		for p, gemm := range GEMMs {
			casts[p] = [2]Cast{r.Cast(l, gemm.GEMM, gemm.A), r.Cast(l, gemm.GEMM, gemm.B)}
		}
		at := slices.IndexFunc(list, func(g group) bool { return g.casts == casts })
		if at < 0 {
			at = len(list)
			list = append(list, group{first: l, hidden: true, casts: casts, numbers: map[string][]string{}})
		}
		g, path, number := &list[at], "", ""
		if path, number = l.fold(); g.numbers[path] == nil {
			g.paths = append(g.paths, path)
		}
		g.numbers[path] = append(g.numbers[path], number)
		g.hidden = g.hidden && l.Hidden
	}
	return list
}

// Describe writes the recipe as a table for a model's linear layers: every GEMM of every
// layer, the compute format and the optimizer. The layers of equal casts form a group, whose
// names precede its GEMMs. Lines have at most 80 columns.
func (r Recipe) Describe(w io.Writer, layers []Layer) error {
	fmt.Fprintf(w, "recipe %s: %s\n\n", r.Name, r.Summary)
	lines := [][]string{{"linear layers, GEMM", "x or dy", "W or x"}}
	for _, g := range r.groups(layers) {
		for _, name := range describePaths(g, layers) {
			lines = append(lines, []string{name})
		}
		lines = append(lines, r.describeGEMMs(g)...)
		lines = append(lines, r.describeRows(g)...)
	}
	var widths [2]int // names may be longer than the column below them
	for _, line := range lines {
		for i := range len(line) - 1 {
			widths[i] = max(widths[i], len(line[i]))
		}
	}
	for _, line := range lines {
		for i := range len(line) - 1 {
			line[i] += strings.Repeat(" ", widths[i]-len(line[i])+2)
		}
		fmt.Fprintln(w, strings.Join(line, ""))
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\nother activations\t%s: embedding, norms, attention, residual stream\n", r.Compute)
	if r.Activations.On() {
		fmt.Fprintf(t, "\t%s: stored inputs of norms and activation\n", r.Activations.Cast(r.Compute))
	}
	fmt.Fprintf(t, "optimizer, layers\t%s\n", r.Optimizer)
	if g := r.Optimizer.GradFormat(); g != fp8.F32 {
		fmt.Fprintf(t, "\tweight gradients of these layers in %s\n", g)
	}
	if blocks := r.Optimizer.describeBlocks(); blocks != "" {
		fmt.Fprintf(t, "\t%s\n", blocks)
	}
	if r.Optimizer.FloorV {
		fmt.Fprintln(t, "\tm2 > 0 is never stored as 0")
	}
	rest := map[StateScope]string{
		LayersOnly: "fp32", WithHead: "fp32; m1 and m2 of the head as those of the layers",
		WithEmbedding: "fp32; m1 and m2 of the embedding as those of the layers", AllMatrices: "fp32; m1 and m2 of head and embedding as those of the layers",
	}
	fmt.Fprintf(t, "optimizer, rest\t%s\n", rest[r.Optimizer.Scope])
	if !r.Reduce.FP32() {
		fmt.Fprintf(t, "gradients, ranks\t%s\n", r.Reduce)
	}
	if r.anyCast(layers, func(c Cast) bool { return c.Scaling == Delayed }) {
		name := "delayed scaling"
		for _, line := range r.describeDelayed() {
			fmt.Fprintf(t, "%s\t%s\n", name, line)
			name = ""
		}
	}
	if r.anyCast(layers, func(c Cast) bool { return c.DType.IsQuantized() && c.Granularity != PerTensor }) {
		fmt.Fprintln(t, "row, block scales\tcurrent")
	}
	if r.anyCast(layers, func(c Cast) bool { return c.Scaling == Direction }) {
		fmt.Fprintln(t, "direction scaling\tcurrent, clipped where the direction changes least")
	}
	if r.anyCast(layers, func(c Cast) bool { return c.Scaling == Constant }) {
		fmt.Fprintln(t, "constant scaling\tweights sqrt(fan_in), inputs 1, gradients tokens of a step")
	}
	if r.L1Bits != 0 {
		fmt.Fprintf(t, "integer weights\tL1 norms by row for sums of %d bits, toward zero\n", r.L1Bits)
	}
	for _, h := range r.Hadamards(layers) {
		text := "rotates both operands along K before the cast"
		if h.Signs != NoSigns {
			text += ", signs " + h.Signs.String()
		}
		fmt.Fprintf(t, "hadamard %d\t%s\n", h.Size, text)
	}
	if r.Smooth.On() {
		fmt.Fprintf(t, "smooth-swiglu\t%s\n", r.Smooth)
	}
	return t.Flush()
}

// describeDelayed returns one line, or one line per part if that would be too long.
func (r Recipe) describeDelayed() []string {
	parts := []string{lastUpdates(r.History)}
	for _, m := range []struct {
		binades int
		of      string
	}{{r.Margin, "inputs"}, {r.WeightMargin, "weights"}, {r.GradMargin, "gradients"}} {
		if m.binades != 0 {
			parts = append(parts, fmt.Sprintf("headroom 2^%d for %s", m.binades, m.of))
		}
	}
	if r.ColdStart {
		parts = append(parts, "scale 1 in the first step")
	}
	if line := strings.Join(parts, ", "); len(line) <= 80-len("delayed scaling    ") {
		return []string{line}
	}
	return parts
}

func lastUpdates(n int) string {
	if n == 1 {
		return "amax of the last update"
	}
	return fmt.Sprintf("amax of the last %d updates", n)
}

// describeRows returns a line for each operand of a group whose history or margin, set by
// rows, differs from the recipe's, which the end of the table states.
func (r Recipe) describeRows(g group) (lines [][]string) {
	for _, o := range []Operand{Input, Weight, Grad} {
		var texts, names []string
		for i, p := range GEMMs {
			for side, operand := range []Operand{p.A, p.B} {
				if operand == o {
					texts = append(texts, r.ownHistory(g.casts[i][side], o))
					names = append(names, fmt.Sprintf("%s of %s", o, p.GEMM))
				}
			}
		}
		if texts[0] == texts[1] { // each operand has two GEMMs
			texts, names = texts[:1], []string{o.String()}
		}
		for i, text := range texts {
			if text != "" {
				lines = append(lines, []string{"  " + names[i] + ": " + text})
			}
		}
	}
	return lines
}

// ownHistory describes the history and margin of a cast that differ from the recipe's.
func (r Recipe) ownHistory(c Cast, o Operand) string {
	if c.Scaling != Delayed {
		return ""
	}
	var parts []string
	if c.History != r.History {
		parts = append(parts, lastUpdates(c.History))
	}
	if c.Margin != r.margin(o) {
		parts = append(parts, fmt.Sprintf("headroom 2^%d", c.Margin))
	}
	return strings.Join(parts, ", ")
}

// String returns one line: the form, and the settings that differ from the default.
func (s Smooth) String() string {
	text := s.Form.String()
	if s.Exact {
		text += ", smoothing scales not rounded"
	}
	for _, d := range []struct {
		from Scaling
		what string
	}{{s.Smoothing, "smoothing scales"}, {s.Hidden, "scale of h"}, {s.Weight, "scale of W3'"}} {
		if d.from == Delayed {
			text += ", " + d.what + " delayed"
		}
	}
	if s.Margin != 0 {
		text += fmt.Sprintf(", smoothing scales %d binades larger", s.Margin)
	}
	return text
}

func (r Recipe) anyCast(layers []Layer, f func(Cast) bool) bool {
	for _, g := range r.groups(layers) {
		for _, pair := range g.casts {
			if f(pair[0]) || f(pair[1]) {
				return true
			}
		}
	}
	return false
}

// describeGEMMs returns the lines of a group: the GEMM and its casts. GEMMs of equal casts
// share a line.
func (r Recipe) describeGEMMs(g group) (lines [][]string) {
	for p, gemm := range GEMMs {
		a, b, name := r.describeCast(g, p, 0), r.describeCast(g, p, 1), gemm.GEMM.String()
		h := g.casts[p][0].Hadamard
		if h.On() {
			name += fmt.Sprintf(" hadamard %d", h.Size) // the end of the table has the signs
		}
		if n := len(lines); n > 0 && lines[n-1][1] == a && lines[n-1][2] == b && !h.On() {
			lines[n-1][0] += ", " + name
		} else {
			lines = append(lines, []string{"  " + name, a, b})
		}
	}
	return lines
}

// describeCast returns the cast's text. It marks h and W3 of Smooth-SwiGLU with
// "smooth", which implies a current scale unless the text says delayed.
func (r Recipe) describeCast(g group, gemm, side int) string {
	c := g.casts[gemm][side]
	c.History, c.Margin = 0, 0                        // lines of their own state them
	if c.Hadamard == g.casts[gemm][1-side].Hadamard { // and the rotation beside the GEMM
		c.Hadamard = Hadamard{}
	}
	s := c.String()
	if c.Granularity != PerTensor { // the end of the table says so
		s = strings.Replace(s, " "+Current.String(), "", 1)
	}
	operand := [2]Operand{GEMMs[gemm].A, GEMMs[gemm].B}[side]
	smoothed := operand == Input || operand == Weight && !r.Smooth.Form.PerToken()
	if r.Smooth.On() && smoothed && g.hidden && c.DType.IsQuantized() {
		if c.Scaling == Current {
			return strings.Replace(s, Current.String(), "smooth", 1)
		}
		s += " smooth"
	}
	return s
}

// describePaths returns the names of a group: a line for each parent and set of layers,
// with the names of its modules without the suffix that Llama gives them.
func describePaths(g group, layers []Layer) []string {
	count := map[string]int{}
	for _, l := range layers {
		path, _ := l.fold()
		count[path]++
	}
	g = g.foldExperts(count)
	var keys []string
	names := map[string][]string{}
	for _, path := range g.paths {
		key, name := path, ""
		if at := strings.LastIndexByte(path, '.'); at >= 0 {
			key, name = path[:at+1], strings.TrimSuffix(path[at+1:], "_proj")
			if numbers := g.numbers[path]; len(numbers) < count[path] {
				key = strings.Replace(key, "*", ranges(numbers), 1)
			}
		}
		if names[key] == nil {
			keys = append(keys, key)
		}
		names[key] = append(names[key], name)
	}
	for i, key := range keys {
		keys[i] = key + strings.Join(names[key], ",")
	}
	return keys
}

// foldExperts returns the group with one path in place of those of all experts of a layer, with *
// for their number. count has the number of layers of each path, and gets that of the new ones.
func (g group) foldExperts(count map[string]int) group {
	all := func(path string) (folded string, isExpert bool) {
		folded, number := Layer{Scope: path}.fold() // the number of the layer is * already
		return folded, number != ""
	}
	experts, own := map[string]int{}, map[string][]string{}
	for path := range count {
		folded, _ := all(path)
		experts[folded]++
	}
	for _, path := range g.paths {
		folded, _ := all(path)
		own[folded] = append(own[folded], path)
	}
	var paths []string
	numbers := maps.Clone(g.numbers)
	for _, path := range g.paths {
		folded, isExpert := all(path)
		same := func(other string) bool { return slices.Equal(g.numbers[other], g.numbers[path]) }
		switch list := own[folded]; {
		case !isExpert || len(list) < experts[folded] || slices.ContainsFunc(list, func(p string) bool { return !same(p) }):
			paths = append(paths, path)
		case path == list[0]:
			paths = append(paths, folded)
			numbers[folded], count[folded] = g.numbers[path], count[path]
		}
	}
	g.paths, g.numbers = paths, numbers
	return g
}

// ranges writes increasing numbers as "0-2,5".
func ranges(numbers []string) string {
	var list []string
	first, last := "", -1 // of the range at the end of the list
	for _, text := range numbers {
		n, _ := strconv.Atoi(text) // as fold found it
		if last >= 0 && n == last+1 {
			list[len(list)-1] = first + "-" + text
		} else {
			list, first = append(list, text), text
		}
		last = n
	}
	return strings.Join(list, ",")
}
