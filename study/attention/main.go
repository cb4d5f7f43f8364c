// Command attention trains the default model in bf16 with operands of attention cast to FP8
// and back, and compares each combination with bf16 at the same seeds: same initial weights,
// batches and validation text. It prints the table of docs/convergence.md.
//
//	go run ./study/attention
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
	"text/tabwriter"

	"golang.org/x/sync/errgroup"

	"octet/data"
	"octet/fp8"
	"octet/internal/stats"
	"octet/study/internal/start"
	"octet/train"
)

var (
	steps = flag.Int("steps", 250, "optimizer steps of each run")
	seeds = flag.Int("seeds", 3, "number of seeds, from 1")
)

// variants are the operands that a run casts, and their format.
var variants = []struct {
	name, operands string
	format         fp8.DType
}{
	{name: "none"},
	{"Q, K and V in E4M3", "Q K V", fp8.E4M3},
	{"Q and K in E4M3", "Q K", fp8.E4M3},
	{"V in E4M3", "V", fp8.E4M3},
	{"Q, K and V in E5M2", "Q K V", fp8.E5M2},
}

func main() {
	log.SetFlags(0)
	flag.Parse()
	if err := study(context.Background()); err != nil {
		log.Fatal(err)
	}
}

// study trains every variant with every seed and prints the table.
func study(ctx context.Context) error {
	corpus, _, err := start.Corpus(ctx, 200_000)
	if err != nil {
		return err
	}
	losses := make([][]float64, len(variants)) // of validation, by variant and seed
	// Results do not depend on the number of threads, so each run takes one processor.
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, v := range variants {
		losses[i] = make([]float64, *seeds)
		for seed := range *seeds {
			g.Go(func() (err error) {
				losses[i][seed], err = run(ctx, int64(seed+1), corpus, strings.Fields(v.operands), v.format)
				return err
			})
		}
	}
	if err := g.Wait(); err != nil {
		return err
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "cast\tmean loss\tdifference in %\tp\tby seed")
	for i, v := range variants {
		var differences []float64
		for seed, loss := range losses[i] {
			differences = append(differences, 100*(loss/losses[0][seed]-1))
		}
		d := stats.PairedOf(differences)
		fmt.Fprintf(w, "%s\t%.4f\t%+.2f ± %.2f\t%.2g\t%.4f\n", v.name, stats.Mean(losses[i]), d.Mean, d.StdErr, d.P, losses[i])
	}
	return w.Flush()
}

// run trains one model, with casts of these operands of attention, and returns its
// validation loss in nats per byte.
func run(ctx context.Context, seed int64, corpus *data.Corpus, operands []string, d fp8.DType) (loss float64, err error) {
	c := train.Default()
	c.Recipe, c.Seed, c.Train.Steps = "bf16", seed, *steps
	t, closeDevice, err := start.Edited(ctx, c, "emu", 1, corpus, func(j *train.Job) error { return castAttention(j, operands, d) })
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, closeDevice()) }()
	for range *steps {
		if _, err := t.Next(ctx); err != nil {
			return 0, err
		}
	}
	return t.Evaluate(ctx)
}
