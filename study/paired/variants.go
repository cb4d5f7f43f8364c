package main

import (
	"fmt"

	"octet/backend/arith"
	"octet/fp8"
	"octet/internal/config"
	"octet/train"
)

// variant is a named change of the default run.
type variant struct {
	name    string
	backend string
	edit    func(c *train.Config)
	editJob func(*train.Job) error // changes the recorded programs; nil: does not
}

func recipeVariant(name string) variant {
	return variant{name: name, backend: "emu", edit: func(c *train.Config) { c.Recipe = name }}
}

// recipes returns bf16 and the recipes with the given names.
func recipes(names []string) ([]variant, error) {
	list := []variant{recipeVariant("bf16")}
	for _, name := range names {
		r, err := config.FindRecipe(name)
		if err != nil {
			return nil, err
		}
		if r.Name != "bf16" {
			list = append(list, recipeVariant(r.Name))
		}
	}
	return list, nil
}

// momentGrid returns bf16, and fp8-smooth with every pair of formats of the moments,
// with and without floor_v.
func momentGrid() []variant {
	list := []variant{recipeVariant("bf16")}
	formats := []fp8.DType{fp8.F16, fp8.E4M3, fp8.E5M2}
	for _, floor := range []bool{false, true} {
		for _, m1 := range formats {
			for _, m2 := range formats {
				name := fmt.Sprintf("m1 %s, m2 %s", m1, m2)
				if floor {
					name += ", floor_v"
				}
				list = append(list, variant{name: name, backend: "emu", edit: func(c *train.Config) {
					c.Recipe = "fp8-smooth"
					c.Precision.M1, c.Precision.M2, c.Precision.FloorV = m1.String(), m2.String(), &floor
				}})
			}
		}
	}
	return list
}

// deviceModels returns the default recipe on emu and on each of its device models.
func deviceModels() []variant {
	same := func(*train.Config) {}
	list := []variant{{name: "emu", backend: "emu", edit: same}}
	for _, m := range arith.Models() {
		list = append(list, variant{name: "emu:" + m.Name, backend: "emu:" + m.Name, edit: same})
	}
	return list
}
