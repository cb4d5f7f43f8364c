// Command paired trains the default model under several recipes and seeds and
// compares each recipe with bf16 at the same seed: same initial weights, same
// batches, same validation text. It prints the table of docs/convergence.md.
//
//	go run ./study/paired -steps 250 -seeds 3
//
// Two seeds of one recipe differ by more than two recipes do, so an unpaired
// comparison of so short runs says nothing.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"

	"golang.org/x/sync/errgroup"

	"octet/backend"
	_ "octet/backend/emu"
	"octet/data"
	"octet/recipe"
	"octet/train"
)

func main() {
	log.SetFlags(0)
	steps := flag.Int("steps", 250, "optimizer steps of each run")
	seeds := flag.Int("seeds", 3, "number of seeds, from 1")
	names := flag.String("recipes", strings.Join(recipe.Names(), ","), "recipes to compare with bf16")
	valBytes := flag.Int64("val_bytes", 200_000, "validation text, in bytes")
	flag.Parse()

	ctx := context.Background()
	root, version, err := data.FindGoRoot(ctx)
	if err != nil {
		log.Fatal(err)
	}
	corpus, err := data.OpenGoSource(root, version, data.Options{ValBytes: *valBytes})
	if err != nil {
		log.Fatal(err)
	}
	list := strings.Split(*names, ",")
	if !slices.Contains(list, "bf16") {
		list = append([]string{"bf16"}, list...)
	}
	losses := map[string][]float64{}
	for _, name := range list {
		losses[name] = make([]float64, *seeds)
	}
	// Results do not depend on threads, so runs share the processors out.
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for seed := range *seeds {
		for _, name := range list {
			into := &losses[name][seed]
			g.Go(func() error {
				c := train.Default()
				c.Recipe, c.Seed, c.Train.Steps = name, int64(seed+1), *steps
				loss, err := validationLoss(ctx, c, corpus)
				if err != nil {
					return fmt.Errorf("%s, seed %d: %w", name, seed+1, err)
				}
				*into = loss
				fmt.Fprintf(os.Stderr, "%s seed %d: %.4f\n", name, seed+1, loss)
				return nil
			})
		}
	}
	if err := g.Wait(); err != nil {
		log.Fatal(err)
	}
	c := train.Default()
	fmt.Printf("%d steps of %d tokens, %d bytes of validation text of %s (corpus %.12s)\n\n",
		*steps, c.Data.Seq*c.Train.MicroBatch, corpus.Val.Len(), version, corpus.Info.SHA256)
	if err := printTable(list, losses); err != nil {
		log.Fatal(err)
	}
}

// validationLoss trains one model and returns its loss in nats per byte.
func validationLoss(ctx context.Context, c train.Config, corpus *data.Corpus) (loss float64, err error) {
	job, err := train.NewJob(c)
	if err != nil {
		return 0, err
	}
	devices, err := backend.Open("emu", backend.Options{Threads: 1})
	if err != nil {
		return 0, err
	}
	defer func() { _ = devices[0].Close() }()
	t, err := train.NewTrainer(job, corpus, devices)
	if err != nil {
		return 0, err
	}
	if err := t.Init(ctx); err != nil {
		return 0, err
	}
	for range c.Train.Steps {
		if _, err := t.Next(ctx); err != nil {
			return 0, err
		}
	}
	return t.Evaluate(ctx)
}

func printTable(list []string, losses map[string][]float64) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "recipe\tmean loss\tagainst bf16, mean\tlargest difference\tper seed")
	for _, name := range list {
		sum, rel, worst := 0.0, 0.0, 0.0
		each := ""
		for i, loss := range losses[name] {
			d := loss/losses["bf16"][i] - 1
			sum, rel = sum+loss, rel+d
			if math.Abs(d) > math.Abs(worst) {
				worst = d
			}
			each += fmt.Sprintf(" %.4f", loss)
		}
		n := float64(len(losses[name]))
		fmt.Fprintf(w, "%s\t%.4f\t%+.2f %%\t%+.2f %%\t%s\n", name, sum/n, 100*rel/n, 100*worst, each)
	}
	return w.Flush()
}
