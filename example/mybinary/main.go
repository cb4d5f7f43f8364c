// Mybinary is the octet command with a recipe of its own:
//
//	go run . recipes
//	go run . train --recipe no-attention-fp8 --steps 20
package main

import (
	"log"
	"os"

	"octet/command"
	"octet/fp8"
	"octet/recipe"
)

// register makes fp8-delayed with the attention's GEMMs in BF16 known as no-attention-fp8.
func register() error {
	r, err := recipe.Lookup("fp8-delayed")
	if err != nil {
		return err
	}
	r.Name, r.Summary = "no-attention-fp8", "fp8-delayed with the attention's GEMMs in BF16"
	r.Rows = append([]recipe.Row{{Scope: "*.self_attn.*", DType: fp8.BF16}}, r.Rows...)
	return recipe.Register(r)
}

func main() {
	if err := register(); err != nil {
		log.Fatal(err)
	}
	os.Exit(command.Main(os.Args, nil))
}
