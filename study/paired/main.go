// Command paired trains the default model under several recipes and seeds and
// compares each with bf16 at the same seed: same initial weights, same batches,
// same validation text. It prints the tables of docs/convergence.md.
//
//	go run ./study/paired
//	go run ./study/paired -moments
//	go run ./study/paired -models
//	go run ./study/paired -attention
//	go run ./study/paired -results results.jsonl   # can be interrupted
//	go run ./study/paired -recipes fp32,fp8-smooth -steps 1800 -plot paired.png
//
// Two seeds of one recipe differ by more than two recipes do, so an unpaired comparison
// of such short runs shows nothing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sync/errgroup"

	"octet/data"
	"octet/recipe"
	"octet/study/internal/start"
	"octet/train"
)

func main() {
	log.SetFlags(0)
	steps := flag.Int("steps", 250, "optimizer steps of each run")
	seeds := flag.Int("seeds", 5, "number of seeds, from 1")
	names := flag.String("recipes", strings.Join(recipe.Names(), ","), "recipes to compare with bf16: names or recipe files, separated by commas")
	moments := flag.Bool("moments", false, "compare formats of Adam's moments under fp8-smooth instead of recipes")
	models := flag.Bool("models", false, "compare the device models of emu under fp8-smooth instead of recipes")
	attention := flag.Bool("attention", false, "compare bf16 with operands of attention cast to FP8 and back instead of recipes")
	valBytes := flag.Int64("val_bytes", 200_000, "bytes of validation text")
	resultsFile := flag.String("results", "", "file for the results of finished runs; a later call with the same file continues from there")
	plotTo := flag.String("plot", "", "file for a plot of the differences by step: .png, .svg or .pdf")
	flag.Parse()

	variants, err := recipes(strings.Split(*names, ","))
	if err != nil {
		log.Fatal(err)
	}
	switch {
	case *moments:
		variants = momentGrid()
	case *models:
		variants = deviceModels()
	case *attention:
		variants = attentionFormats()
	}
	if err := compare(context.Background(), variants, *steps, *seeds, *valBytes, *resultsFile, *plotTo); err != nil {
		log.Fatal(err)
	}
}

// compare runs all variants and compares them with the first one.
func compare(ctx context.Context, variants []variant, steps, seeds int, valBytes int64, resultsFile, plotTo string) (err error) {
	corpus, version, err := start.Corpus(ctx, valBytes)
	if err != nil {
		return err
	}
	done, err := openResults(resultsFile)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done.close()) }()
	results := make([][]result, len(variants))
	for i := range results {
		results[i] = make([]result, seeds)
	}
	// Results do not depend on the number of threads, so each run takes one processor.
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for seed := range seeds {
		for i, v := range variants {
			g.Go(func() (err error) {
				c := train.Default()
				c.Seed, c.Train.Steps = int64(seed+1), steps
				v.edit(&c)
				name := runName{v.name, seed + 1, steps, corpus.Info.SHA256, valBytes}
				r, found := done.lookup(name)
				if !found {
					if r, err = run(ctx, c, v, corpus); err == nil {
						err = done.add(name, r)
					}
				}
				if err != nil {
					return fmt.Errorf("%s, seed %d: %w", v.name, seed+1, err)
				}
				results[i][seed] = r
				fmt.Fprintf(os.Stderr, "%s seed %d: %.4f\n", v.name, seed+1, r.Val)
				return nil
			})
		}
	}
	if err := g.Wait(); err != nil {
		return err
	}
	c := train.Default()
	fmt.Printf("%d steps of %d tokens, %d seeds, %d bytes of validation text of %s (corpus %.12s)\n\n",
		steps, c.Data.Seq*c.Train.MicroBatch, seeds, corpus.Val.Len(), version, corpus.Info.SHA256)
	if err := printTable(variants, results); err != nil || plotTo == "" {
		return err
	}
	return draw(variants, results, plotTo)
}

// run trains one model.
func run(ctx context.Context, c train.Config, v variant, corpus *data.Corpus) (r result, err error) {
	t, closeDevice, err := start.Edited(ctx, c, v.backend, 1, corpus, v.editJob)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, closeDevice()) }()
	for range c.Train.Steps {
		s, err := t.Next(ctx)
		if err != nil {
			return r, err
		}
		r.Train = append(r.Train, s.Loss)
	}
	r.Val, err = t.Evaluate(ctx)
	return r, err
}
