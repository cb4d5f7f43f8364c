package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"sort"
	"strings"
	"text/tabwriter"

	"octet/backend"
	"octet/internal/config"
	"octet/internal/writers"
	"octet/nn"
	"octet/recipe"
	"octet/train"
)

type recipesCmd struct {
	Names   []string `arg:"" optional:"" name:"name" help:"Recipes or recipe files whose tables to print; default: a list of all recipes."`
	Backend string   `placeholder:"NAME" help:"Show the recipe as adapted to this backend, such as emu:gaudi2; default: the best that is present."`
}

// Help returns the text that recipes --help adds.
func (recipesCmd) Help() string {
	return `A linear layer has three GEMMs in a step: fprop y = x W^T, dgrad dx = dy W, wgrad dW = dy^T x. Below the names of the layers, the table gives the format of each operand, how its scale is chosen and, unless nearest, the rounding. Scales are current (from the tensor's own amax, its largest magnitude), delayed (from the amaxes of earlier updates), smooth (current, for operands that Smooth-SwiGLU scales by channel or token first) or unit (1). Delayed scales can leave headroom: 2^4 maps the amax to 1/16 of the format's maximum, so a value 16 times as large does not saturate. A Hadamard transform rotates both operands of a GEMM, in groups of values along K, before their casts. m1 and m2 are Adam's moments. An m2 of 0 would make the update explode, so a recipe can round a small positive m2 up instead.

Examples:
  octet recipes
  octet recipes fp8-smooth bf16
  octet recipes fp8-smooth --backend emu:gaudi2
  octet recipes my.toml

A recipe of your own is a TOML file: the recipe that it starts from, and the
keys of [precision] that differ (octet train --dry-run prints all of them). Its
path stands wherever a recipe's name does; the file's name names the recipe.

  # my.toml
  recipe = "fp8-smooth"
  [precision]
  history = 32
  [[precision.rows]]
  scope = "layers.0.mlp.*"
  format = "bf16"`
}

func (c recipesCmd) Run(t *terminal) error {
	spec, err := backend.SpecOf(c.Backend)
	if err != nil {
		return badInput(err)
	}
	switch {
	case len(c.Names) == 0 && c.Backend != "":
		return badInput(errors.New("--backend shows how a backend changes a recipe: name one, for example octet recipes fp8-smooth --backend " + c.Backend))
	case len(c.Names) == 0:
		return listRecipes(t.out)
	}
	var text bytes.Buffer
	for i, name := range c.Names {
		r, err := config.FindRecipe(name)
		if err != nil {
			return badInput(err)
		}
		depth, layers, err := shownLayers(r)
		if err != nil {
			return err
		}
		r, notes, err := nn.RecipeFor(spec, r, layers)
		if err != nil {
			notes = append(notes, err.Error())
		}
		if depth > 0 {
			notes = append(notes, fmt.Sprintf("the table shows a model of %d layers, since rows name layers by number", depth))
		}
		if i > 0 {
			fmt.Fprintf(&text, "\n%s\n\n", strings.Repeat("-", 72))
		}
		if err := describeRecipe(&text, r, notes, layers); err != nil {
			return err
		}
	}
	_, err = prose(t.out).Write(text.Bytes())
	return err
}

// shownLayers returns the linear layers of a model for a recipe's table: the default model,
// deepened until every row matches a layer. depth is 0 if no row names layers by number: the
// table is then the same for every depth.
func shownLayers(r recipe.Recipe) (depth int, layers []recipe.Layer, err error) {
	model := train.Default().ModelConfig()
	least := model.Layers
	model.Layers += sort.Search(config.RecipeLayers-least, func(more int) bool {
		deeper := model
		deeper.Layers += more
		if layers, err = deeper.Linears(); err != nil {
			return true
		}
		return len(r.Unmatched(layers)) == 0
	})
	if layers, err = model.Linears(); err == nil && len(r.Unmatched(nil)) > 0 {
		depth = model.Layers
	}
	return depth, layers, err
}

// listRecipes prints a line for each recipe.
func listRecipes(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	kind := recipe.Kind(math.MaxUint8)
	for _, name := range recipe.Names() {
		r, err := recipe.Lookup(name)
		if err != nil {
			return err
		}
		if r.Kind != kind {
			if err := tw.Flush(); err != nil {
				return err
			}
			kind = r.Kind
			fmt.Fprintf(tw, "%s:\n", kind)
		}
		fmt.Fprintf(tw, "  %s\t%s\n", name, r.Summary)
	}
	fmt.Fprintln(tw, "\noctet recipes NAME ... shows which GEMM reads which format.")
	return tw.Flush()
}

// describeRecipe prints a recipe's table and the notes on how a device changes it.
func describeRecipe(w io.Writer, r recipe.Recipe, notes []string, layers []recipe.Layer) error {
	if err := r.Describe(w, layers); err != nil {
		return err
	}
	if r.Origin != "" {
		if _, err := fmt.Fprintf(w, "\n%s\n", writers.Reflow("source: "+r.Origin, 79)); err != nil {
			return err
		}
	}
	for _, note := range notes {
		if _, err := fmt.Fprintf(w, "note: %s\n", note); err != nil {
			return err
		}
	}
	return nil
}
