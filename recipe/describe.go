package recipe

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"octet/fp8"
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
	if r.uses(Delayed) {
		fmt.Fprintf(t, "delayed scaling\tmaximum over %d updates%s\n", r.History, r.describeMargins())
	}
	return t.Flush()
}

// String is one line: the formats, and the rounding where there is a choice.
func (o Optimizer) String() string {
	s := fmt.Sprintf("master %s, m1 %s, m2 %s", o.Master, o.M1, o.M2)
	if o.Master != fp8.F32 || o.M1 != fp8.F32 || o.M2 != fp8.F32 {
		s += "; scaled, " + o.Rounding.String()
	}
	return s
}

func (r Recipe) describeMargins() string {
	s := ""
	if r.Margin != 0 {
		s += fmt.Sprintf(", %d binades kept free", r.Margin)
	}
	if r.GradMargin != 0 {
		s += fmt.Sprintf(", %d binades kept free for gradients", r.GradMargin)
	}
	return s
}

// NeedsScales reports whether weights alone are not enough to run the recipe
// forward: the scales of FP8 operands come from the training that made them.
func (r Recipe) NeedsScales() bool { return r.uses(Delayed) || r.uses(Current) || r.uses(Unit) }

func (r Recipe) uses(s Scaling) bool {
	for _, g := range r.groups(1) {
		for _, pair := range g.casts {
			if pair[0].Scaling == s || pair[1].Scaling == s {
				return true
			}
		}
	}
	return false
}

// describeCast marks what Smooth-SwiGLU rescales: h and W3.
func (r Recipe) describeCast(g group, product, side int) string {
	c := g.casts[product][side]
	c.Margin = 0 // said once, below the table
	s := c.String()
	smooth := r.Smooth && len(g.modules) == 1 && g.modules[0] == "mlp.down_proj" && c.DType.IsFP8()
	if smooth && (product != 1 || side == 1) && !(product == 2 && side == 0) {
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
