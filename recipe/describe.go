package recipe

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// Modules lists the linear layers of a decoder: seven in every layer, by their
// path below it, and the head.
var Modules = []string{
	"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
	"mlp.up_proj", "mlp.gate_proj", "mlp.down_proj", "lm_head",
}

// Products lists each GEMM's two operands, the activation or gradient first.
var Products = []struct {
	GEMM GEMM
	A, B Operand
}{
	{Fprop, Input, Weight},
	{Dgrad, Grad, Weight},
	{Wgrad, Grad, Input},
}

// Scope is the path of a module in decoder layer i.
func Scope(module string, i int) string {
	if module == "lm_head" {
		return module
	}
	return fmt.Sprintf("layers.%d.%s", i, module)
}

// group is a set of linear layers that the recipe treats alike.
type group struct {
	modules []string
	layers  map[string][]int // by module
	casts   [3][2]Cast
}

// groups collects them over a model of the given depth.
func (r Recipe) groups(layers int) []group {
	var list []group
	for i := range layers {
		for _, module := range Modules {
			if module == "lm_head" && i > 0 {
				continue
			}
			var casts [3][2]Cast
			for p, product := range Products {
				casts[p] = [2]Cast{r.Cast(Scope(module, i), product.GEMM, product.A), r.Cast(Scope(module, i), product.GEMM, product.B)}
			}
			at := slices.IndexFunc(list, func(g group) bool { return g.casts == casts })
			if at < 0 {
				at = len(list)
				list = append(list, group{casts: casts, layers: map[string][]int{}})
			}
			g := &list[at]
			if !slices.Contains(g.modules, module) {
				g.modules = append(g.modules, module)
			}
			g.layers[module] = append(g.layers[module], i)
		}
	}
	return list
}

// Describe writes the recipe's table for a model of the given depth: every
// product of every linear layer, then what stays in the compute format, then
// the optimizer. Lines stay below 80 columns.
func (r Recipe) Describe(w io.Writer, layers int) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "recipe %s: %s\n\n", r.Name, r.Summary)
	fmt.Fprintln(t, "linear layers\tGEMM\tx or dy\tW or x")
	for _, g := range r.groups(layers) {
		names := describeModules(g, layers)
		for p, product := range Products {
			name := ""
			if p < len(names) {
				name = names[p]
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", name, product.GEMM, r.describeCast(g, p, 0), r.describeCast(g, p, 1))
		}
		for _, name := range names[min(len(names), len(Products)):] {
			fmt.Fprintf(t, "%s\t\t\t\n", name)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(t, "\nother activations\t%s: embedding, norms, attention, residual stream\n", r.Compute)
	fmt.Fprintf(t, "optimizer, layers\t%s\n", r.Optimizer)
	fmt.Fprintf(t, "optimizer, rest\tfp32\n")
	if r.anyCast(layers, func(c Cast) bool { return c.Scaling == Delayed }) {
		name := "delayed scaling"
		for _, line := range r.describeDelayed() {
			fmt.Fprintf(t, "%s\t%s\n", name, line)
			name = ""
		}
	}
	if r.Smooth.On() {
		fmt.Fprintf(t, "smooth-swiglu\t%s\n", r.Smooth)
	}
	return t.Flush()
}

// describeDelayed is one line, or where that is too long a line for each part.
func (r Recipe) describeDelayed() []string {
	parts := []string{fmt.Sprintf("maximum over %d updates", r.History)}
	if r.History == 1 {
		parts[0] = "from the update before"
	}
	for _, m := range []struct {
		binades int
		of      string
	}{{r.Margin, "inputs"}, {r.WeightMargin, "weights"}, {r.GradMargin, "gradients"}} {
		switch {
		case m.binades == 1:
			parts = append(parts, "1 binade kept free for "+m.of)
		case m.binades != 0:
			parts = append(parts, fmt.Sprintf("%d binades kept free for %s", m.binades, m.of))
		}
	}
	if r.ColdStart {
		parts = append(parts, "1 at first")
	}
	if line := strings.Join(parts, ", "); len(line) <= 80-len("delayed scaling    ") {
		return []string{line}
	}
	return parts
}

// String is one line: the form, and what is unusual.
func (s Smooth) String() string {
	text := s.Form.String()
	if s.Exact {
		text += ", factors not rounded"
	}
	for _, d := range []struct {
		from Scaling
		what string
	}{{s.Factors, "factors"}, {s.Hidden, "scale of h"}, {s.Weight, "scale of W3'"}} {
		if d.from == Delayed {
			text += ", " + d.what + " delayed"
		}
	}
	if s.Margin != 0 {
		text += fmt.Sprintf(", %d binades larger", s.Margin)
	}
	return text
}

// NeedsScales reports whether weights alone are not enough to run the recipe
// forward: the scales of FP8 operands come from the training that made them.
// Scales finer than a tensor come from each token's own elements.
func (r Recipe) NeedsScales(layers int) bool {
	return r.anyCast(layers, func(c Cast) bool { return c.DType.IsFP8() && c.Granularity == ByTensor })
}

func (r Recipe) anyCast(layers int, f func(Cast) bool) bool {
	for _, g := range r.groups(layers) {
		for _, pair := range g.casts {
			if f(pair[0]) || f(pair[1]) {
				return true
			}
		}
	}
	return false
}

// describeCast marks what Smooth-SwiGLU rescales: h and W3, whose scales are
// current unless it says otherwise.
func (r Recipe) describeCast(g group, product, side int) string {
	c := g.casts[product][side]
	c.Margin = 0 // said once, below the table
	s := c.String()
	operand := [2]Operand{Products[product].A, Products[product].B}[side]
	smoothed := operand == Input || operand == Weight && !r.Smooth.Form.ByToken()
	if r.Smooth.On() && smoothed && len(g.modules) == 1 && g.modules[0] == "mlp.down_proj" && c.DType.IsFP8() {
		if c.Scaling == Current {
			return strings.Replace(s, Current.String(), "smooth", 1)
		}
		s += " smooth"
	}
	return s
}

// describeModules are the lines of the first column: modules of one parent and
// the same layers together.
func describeModules(g group, layers int) []string {
	var keys []string
	names := map[string][]string{}
	for _, m := range g.modules {
		key, name := m, ""
		if parent, child, ok := strings.Cut(m, "."); ok {
			which := "*"
			if len(g.layers[m]) < layers {
				which = strings.Trim(strings.ReplaceAll(fmt.Sprint(g.layers[m]), " ", ","), "[]")
			}
			key, name = "layers."+which+"."+parent+".", strings.TrimSuffix(child, "_proj")
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
