package cli

import (
	"fmt"
	"strings"

	"octet/recipe"
)

type recipesCmd struct {
	Name string `arg:"" optional:"" help:"One recipe; all if not given."`
}

// describedLayers is enough for a table in which all layers are alike.
const describedLayers = 2

func (c recipesCmd) Run(t *terminal) error {
	names := recipe.Names()
	if c.Name != "" {
		names = []string{c.Name}
	}
	for i, name := range names {
		r, err := recipe.Lookup(name)
		if err != nil {
			return badInput(err)
		}
		if i > 0 {
			fmt.Fprintf(t.out, "\n%s\n\n", strings.Repeat("-", 72))
		}
		if err := r.Describe(t.out, describedLayers); err != nil {
			return err
		}
	}
	return nil
}
