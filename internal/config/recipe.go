package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"octet/recipe"
	"octet/train"
)

// recipeExt ends the names of recipe files, and with it every recipe's name that is a path.
const recipeExt = ".toml"

// FindRecipe returns the recipe of a name, or reads the one of a file, whose path ends in
// .toml, and registers it under the file's name.
//
// A recipe file has two parts of a configuration file: the key recipe, from which it
// starts, and the section [precision], without a schedule. Its rows precede those of the
// recipe from which it starts.
func FindRecipe(nameOrFile string) (recipe.Recipe, error) {
	if !strings.HasSuffix(nameOrFile, recipeExt) {
		r, err := recipe.Lookup(nameOrFile)
		if _, failed := os.Stat(nameOrFile); err != nil && failed == nil {
			err = fmt.Errorf("%s is no recipe: the name of a recipe file ends in .toml", nameOrFile)
		}
		return r, err
	}
	text, err := ReadText(nameOrFile, "recipe")
	if err != nil {
		return recipe.Recipe{}, err
	}
	r, err := parseRecipe(nameOrFile, text)
	if err != nil {
		return r, err
	}
	if err := recipe.Register(r); err != nil {
		return r, fmt.Errorf("%s: %w", nameOrFile, err)
	}
	return recipe.Lookup(r.Name)
}

var recipeName = regexp.MustCompile(`^[a-z0-9]([a-z0-9_-]*[a-z0-9])?$`)

// parseRecipe parses the text of a recipe file.
func parseRecipe(file, text string) (r recipe.Recipe, err error) {
	name := strings.TrimSuffix(filepath.Base(file), recipeExt)
	if !recipeName.MatchString(name) || filepath.Base(file) == RunFile {
		return r, fmt.Errorf("%s: the file's name is the recipe's name; use small letters, digits, - and _, and not %s", file, RunFile)
	}
	s, err := parse(file, text)
	if err != nil {
		return r, err
	}
	for _, x := range s.settings {
		if x.key.name != "recipe" && !strings.HasPrefix(x.key.name, "precision.") || x.key.name == "precision.schedule" {
			return r, fmt.Errorf("%s: %s is not part of a recipe; keep the key recipe and the keys of [precision] but schedule, and move the others to a configuration file", x.place, x.key.name)
		}
	}
	base := s.text("recipe", "")
	if base == "" {
		return r, fmt.Errorf("%s: recipe is missing; name the recipe that this one starts from, such as recipe = \"fp8-smooth\", or \"bf16\" to give every row yourself", file)
	}
	if strings.HasSuffix(base, recipeExt) {
		return r, fmt.Errorf("%s: recipe = %q is a file; start from one of Octet's own recipes", s.place("recipe"), base)
	}
	if b, err := recipe.Lookup(base); err != nil {
		return r, fmt.Errorf("%s: %w", s.place("recipe"), err)
	} else if b.Source != "" {
		return r, fmt.Errorf("%s: recipe %s comes from a file too; start from one of Octet's own recipes", s.place("recipe"), base)
	}
	c := train.Default()
	c.Model.Layers = RecipeLayers
	if err := s.each(func(k key, value reflect.Value) { k.field(&c).Set(value) }); err != nil {
		return r, err
	}
	phases, err := c.Phases() // one, since a schedule is refused above
	if err != nil {
		return r, fmt.Errorf("%s: %w", file, err)
	}
	if r, err = phases[0].Config.ResolvedRecipe(); err != nil {
		return r, fmt.Errorf("%s: %w", file, err)
	}
	r.Name, r.Summary, r.Kind, r.Source = name, "from "+filepath.Base(file)+", starts from "+base, recipe.Own, text
	return r, nil
}

// RecipeLayers is the depth of the model with which a recipe file is checked: a row may be
// meant for any of these layers.
const RecipeLayers = 1024

// openRecipes replaces the paths of recipe files by the names of their recipes. Relative
// paths begin at dir.
func (s *source) openRecipes(dir string) error {
	if s == nil {
		return nil
	}
	open := func(value any, place string) (any, error) {
		path, ok := value.(string)
		if !ok || !strings.HasSuffix(path, recipeExt) {
			return value, nil
		}
		if !filepath.IsAbs(path) {
			path = filepath.Join(dir, path)
		}
		r, err := FindRecipe(path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", place, err)
		}
		return r.Name, nil
	}
	for i, x := range s.settings {
		var err error
		switch x.key.name {
		case "recipe":
			s.settings[i].value, err = open(x.value, x.place)
		case "precision.schedule":
			for _, table := range tablesOf(x.value) {
				if table["recipe"], err = open(table["recipe"], x.place); err != nil {
					return err
				}
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// tablesOf returns the tables of a list; nil for any other value.
func tablesOf(value any) (list []map[string]any) {
	switch x := value.(type) {
	case []map[string]any:
		return x
	case []any:
		for _, entry := range x {
			if table, ok := entry.(map[string]any); ok {
				list = append(list, table)
			}
		}
	}
	return list
}

// RecipeFiles returns the texts of the recipe files of a config by their names, which
// Marshal writes in the place of the recipes' names: config.toml needs them beside it.
func RecipeFiles(c train.Config) map[string]string {
	files := map[string]string{}
	eachRecipe(&c, func(name *string) {
		if r, err := recipe.Lookup(*name); err == nil && r.Source != "" {
			files[r.Name+recipeExt] = r.Source
		}
	})
	return files
}

// withRecipeFiles returns a config with file names instead of the names of recipes that were
// read from files.
func withRecipeFiles(c train.Config) train.Config {
	c.Precision.Schedule = slices.Clone(c.Precision.Schedule)
	eachRecipe(&c, func(name *string) {
		if r, err := recipe.Lookup(*name); err == nil && r.Source != "" {
			*name += recipeExt
		}
	})
	return c
}

// eachRecipe calls f with every recipe's name in a config.
func eachRecipe(c *train.Config, f func(name *string)) {
	f(&c.Recipe)
	for i := range c.Precision.Schedule {
		f(&c.Precision.Schedule[i].Recipe)
	}
}
