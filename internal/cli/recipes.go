package cli

import (
	"fmt"
	"io"
	"strings"

	"octet/backend"
	"octet/recipe"
)

type recipesCmd struct {
	Name    string `arg:"" optional:"" help:"One recipe; all if not given."`
	Backend string `placeholder:"NAME" help:"Backend that computes it, such as emu:gaudi2; the best that is present if not given."`
}

// describedLayers is enough for a table in which all layers are alike.
const describedLayers = 2

func (c recipesCmd) Run(t *terminal) error {
	spec, err := backend.SpecOf(c.Backend)
	if err != nil {
		return badInput(err)
	}
	names := recipe.Names()
	if c.Name != "" {
		names = []string{c.Name}
	}
	for i, name := range names {
		r, err := recipe.Lookup(name)
		if err != nil {
			return badInput(err)
		}
		r, notes, err := r.For(spec.E4M3, spec.Pairs, describedLayers)
		if err != nil {
			return badInput(err)
		}
		if i > 0 {
			fmt.Fprintf(t.out, "\n%s\n\n", strings.Repeat("-", 72))
		}
		if err := describeRecipe(t.out, r, notes, describedLayers); err != nil {
			return err
		}
	}
	return nil
}

// describeRecipe prints a recipe's table and what a device made of the recipe.
func describeRecipe(w io.Writer, r recipe.Recipe, notes []string, layers int) error {
	if err := r.Describe(w, layers); err != nil {
		return err
	}
	for _, note := range notes {
		if _, err := fmt.Fprintf(w, "note: %s\n", note); err != nil {
			return err
		}
	}
	return nil
}
