package recipe

import (
	"fmt"
	"reflect"
	"slices"
	"sync"

	"octet/internal/spelling"
)

var registry struct {
	sync.Mutex
	own []Recipe
}

// Register makes a recipe known by its name, like those of this package. It returns an
// error for an invalid recipe and for a name that another recipe has. Registering the same
// recipe again has no effect.
func Register(r Recipe) error {
	if r.Name == "" {
		return fmt.Errorf("a recipe needs a name")
	}
	if err := r.Validate(); err != nil {
		return err
	}
	r.Kind = Own
	registry.Lock()
	defer registry.Unlock()
	for _, other := range slices.Concat(builtIn, registry.own) {
		if other.Name != r.Name {
			continue
		}
		if other.Kind != Own {
			return fmt.Errorf("recipe %s: Octet has a recipe of this name; choose another name", r.Name)
		}
		if !reflect.DeepEqual(other, r) {
			return fmt.Errorf("recipe %s: this process already uses another recipe of this name; choose another name", r.Name)
		}
		return nil
	}
	registry.own = append(registry.own, r)
	return nil
}

// all returns the recipes of this package and the registered ones, ordered by kind.
func all() []Recipe {
	registry.Lock()
	defer registry.Unlock()
	return slices.Concat(builtIn, registry.own)
}

// Lookup returns a recipe by name. The error for an unknown name suggests a known one.
func Lookup(name string) (Recipe, error) {
	for _, r := range all() {
		if r.Name == name {
			r.Rows = slices.Clone(r.Rows)
			return r, nil
		}
	}
	return Recipe{}, fmt.Errorf("unknown recipe %q%s (octet recipes lists all recipes)", name, spelling.DidYouMean(name, Names()))
}

// Names lists the recipes, ordered by kind.
func Names() []string {
	list := all()
	names := make([]string, len(list))
	for i, r := range list {
		names[i] = r.Name
	}
	return names
}
