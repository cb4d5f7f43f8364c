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
	"slices"
	"strings"
	"text/tabwriter"

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
	tokens := flag.Int("micro_batch", 0, "sequences in a batch; 0 is the default")
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
	losses := map[string][]float64{}
	list := strings.Split(*names, ",")
	if !slices.Contains(list, "bf16") {
		list = append([]string{"bf16"}, list...)
	}
	for seed := range int64(*seeds) {
		for _, name := range list {
			c := train.Default()
			c.Recipe, c.Seed, c.Train.Steps = name, seed+1, *steps
			if *tokens > 0 {
				c.Train.MicroBatch = *tokens
			}
			loss, err := validationLoss(ctx, c, corpus)
			if err != nil {
				log.Fatalf("%s, seed %d: %v", name, seed+1, err)
			}
			losses[name] = append(losses[name], loss)
			fmt.Fprintf(os.Stderr, "%s seed %d: %.4f\n", name, seed+1, loss)
		}
	}
	c := train.Default()
	fmt.Printf("%d steps of %d tokens, %d bytes of validation text of %s (corpus %.12s)\n\n",
		*steps, c.Data.Seq*max(c.Train.MicroBatch, *tokens), corpus.Val.Len(), version, corpus.Info.SHA256)
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
	devices, err := backend.Open("emu", backend.Options{})
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
	fmt.Fprintln(w, "recipe\tmean loss\tagainst bf16, mean\tworst of one seed\tper seed")
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
