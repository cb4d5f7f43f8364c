package infer_test

import (
	"context"
	"errors"
	"fmt"

	"octet/backend"
	_ "octet/backend/emu"
	"octet/infer"
	"octet/run"
)

// Text from the newest checkpoint of a run, whose tokens are bytes.
func Example() {
	if err := generate(context.Background(), "runs/mine", "func "); err != nil {
		fmt.Println(err)
	}
	// Output: runs/mine: no such run, checkpoint or model folder
}

func generate(ctx context.Context, path, prompt string) (err error) {
	w, err := run.OpenWeights(path, "") // in the recipe of the run
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	dev, err := backend.Open("emu", backend.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	const tokens = 200
	g, err := infer.NewGenerator(ctx, w.Model, w.Recipe, w, dev, infer.Cache{Batch: 1, Context: len(prompt) + tokens})
	if err != nil {
		return err
	}
	ids := make([]int32, len(prompt))
	for i := range ids {
		ids[i] = int32(prompt[i])
	}
	return g.Generate(ctx, ids, tokens, infer.Sampling{Temperature: 0.8, TopP: 0.95, Seed: 1}, func(token int32) bool {
		fmt.Printf("%c", token)
		return true
	})
}
