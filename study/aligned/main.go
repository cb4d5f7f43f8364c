// Command aligned measures how large an outlier each recipe tolerates. It takes a trained
// model and gives one channel of every layer the alignment that SwiGLU's channels reach
// after hundreds of billions of tokens (method.md: its rows of up_proj and gate_proj are
// equal, and long). Training continues with tokens that excite the channel in one batch
// of twenty. By bisection, the command finds the largest activation at which a recipe's
// loss stays within 1 % of that of bf16 on the same batches.
//
//	go run ./study/aligned -seeds 5
//
// With -write it makes a model with such an outlier and a text that excites it, for sweeps:
//
//	go run ./study/aligned -write planted
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"

	"golang.org/x/sync/errgroup"

	"octet/checkpoint"
	"octet/data"
	"octet/study/internal/start"
	"octet/study/internal/weights"
	"octet/train"
)

var (
	baseSteps = flag.Int("base_steps", 300, "bf16 steps that train the base model")
	steps     = flag.Int("steps", 100, "steps of the continuation; the last 40 are compared")
	seeds     = flag.Int("seeds", 1, "number of seeds, from 1; each trains a base model")
	lr        = flag.Float64("lr", 2e-5, "learning rate of the continuation, constant")
	recipes   = flag.String("recipes", "fp8-delayed,fp8-current,fp8-paper,fp8-smooth,fp8-smooth-token,fp8-w3-bf16,fp32", "recipes to compare with bf16")
	limit     = flag.Int("most", 40, "largest activation to try, as an exponent of 2")
	verbose   = flag.Bool("v", false, "print every run")
	write     = flag.String("write", "", "folder to write a model and a text with an outlier to, if it does not exist; nothing is measured")
	size      = flag.Int("size", 20, "with -write, the activation of the outlier, as an exponent of 2")
	dominance = flag.Float64("dominance", 30, "length of the outlier token's embedding over that of a trained one")
)

const (
	compared  = 40   // steps at the end that are compared
	tolerance = 0.01 // of their mean loss
	every     = 20   // one batch in this many has outlier tokens
)

func main() {
	log.SetFlags(0)
	flag.Parse()
	if err := study(context.Background()); err != nil {
		log.Fatal(err)
	}
}

// study prints the largest activation of each recipe, for each seed.
func study(ctx context.Context) error {
	corpus, _, err := start.Corpus(ctx, 50_000)
	if err != nil {
		return err
	}
	if *write != "" {
		return plant(ctx, corpus, *write)
	}
	list := strings.Split(*recipes, ",")
	rows := slices.Clone(list)
	for seed := range *seeds {
		largest, err := tolerated(ctx, corpus, int64(seed+1), list)
		if err != nil {
			return err
		}
		for i, exponent := range largest {
			rows[i] += "\t" + activation(exponent)
		}
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "recipe\tfollows bf16 up to |a| =, by seed")
	for _, row := range rows {
		fmt.Fprintln(w, row)
	}
	return w.Flush()
}

func activation(exponent int) string {
	switch exponent {
	case -1:
		return "none"
	case *limit:
		return fmt.Sprintf("2^%d or more", exponent)
	default:
		return fmt.Sprintf("2^%d", exponent)
	}
}

// experiment is one base model with its aligned copies and their continuations.
type experiment struct {
	corpus *data.Corpus
	seed   int64
	base   *weights.Model
	dir    string

	mu      sync.Mutex
	folders map[int]string // aligned models by the exponent of their activation
	bf16    map[int]func() (float64, error)
}

// tolerated returns the exponent of the largest activation at which each recipe
// follows bf16, -1 if there is none.
func tolerated(ctx context.Context, corpus *data.Corpus, seed int64, recipes []string) ([]int, error) {
	dir, err := os.MkdirTemp("", "aligned")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	x := &experiment{
		corpus: corpus, seed: seed, dir: dir,
		folders: map[int]string{}, bf16: map[int]func() (float64, error){},
	}
	if err := x.trainBase(ctx); err != nil {
		return nil, err
	}
	largest := make([]int, len(recipes))
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, name := range recipes {
		g.Go(func() (err error) {
			largest[i], err = x.bisect(ctx, name)
			return err
		})
	}
	return largest, g.Wait()
}

// trainBase trains the model that all continuations start from.
func (x *experiment) trainBase(ctx context.Context) error {
	c := train.Default()
	c.Recipe, c.Train.Steps = "bf16", *baseSteps
	var path string
	_, err := x.run(ctx, c, x.corpus.Train, runtime.GOMAXPROCS(0), func(t *train.Trainer) error {
		contents, err := t.Contents("study", "emu")
		if err != nil {
			return err
		}
		path, err = checkpoint.Save(x.dir, c.Train.Steps, contents)
		return err
	})
	if err != nil {
		return err
	}
	x.base, err = weights.Open(path)
	return err
}

// bisect finds the largest exponent at which the recipe follows bf16, -1 if
// there is none.
func (x *experiment) bisect(ctx context.Context, name string) (int, error) {
	follows := func(exponent int) (bool, error) {
		want, err := x.bf16Loss(ctx, exponent)
		if err != nil {
			return false, err
		}
		got, err := x.continuation(ctx, name, exponent)
		if *verbose {
			fmt.Fprintf(os.Stderr, "seed %d, %s 2^%d: %.4f, bf16 %.4f\n", x.seed, name, exponent, got, want)
		}
		return math.Abs(got/want-1) <= tolerance, err
	}
	low, high := -1, *limit+1 // the recipe follows at low, not at high
	for high-low > 1 {
		middle := (low + high) / 2
		ok, err := follows(middle)
		if err != nil {
			return 0, err
		}
		if ok {
			low = middle
		} else {
			high = middle
		}
	}
	return low, nil
}

// bf16Loss returns the loss of bf16, which it computes once for each exponent.
func (x *experiment) bf16Loss(ctx context.Context, exponent int) (float64, error) {
	x.mu.Lock()
	loss := x.bf16[exponent]
	if loss == nil {
		loss = sync.OnceValues(func() (float64, error) { return x.continuation(ctx, "bf16", exponent) })
		x.bf16[exponent] = loss
	}
	x.mu.Unlock()
	return loss()
}

// folder returns the folder of the model whose outlier has the activation 2^exponent.
func (x *experiment) folder(exponent int) (string, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.folders[exponent] == "" {
		path, err := align(x.base, math.Exp2(float64(exponent))).Save(filepath.Join(x.dir, fmt.Sprint(exponent)))
		if err != nil {
			return "", err
		}
		x.folders[exponent] = path
	}
	return x.folders[exponent], nil
}

// continuation trains a recipe on the aligned model and returns the mean loss of the
// last compared steps.
func (x *experiment) continuation(ctx context.Context, name string, exponent int) (float64, error) {
	path, err := x.folder(exponent)
	if err != nil {
		return 0, err
	}
	c := train.Default()
	c.Recipe, c.Model.Init, c.Train.Steps = name, path, *steps
	c.Optimizer.LR, c.Optimizer.Schedule, c.Optimizer.Warmup = *lr, "constant", 0
	stream := &spiked{Tokens: x.corpus.Train}
	return x.run(ctx, c, stream, 1, nil)
}

// spiked puts outlier tokens into the batches of every twentieth step.
type spiked struct {
	data.Tokens
	step int // current step; 0 for the first and for the calibration before it
}

func (s *spiked) ReadTokens(dst []int32, at int64) error {
	if err := s.Tokens.ReadTokens(dst, at); err != nil {
		return err
	}
	if s.step%every == every-1 {
		spike(dst)
	}
	return nil
}

// spike replaces some tokens with outlier tokens.
func spike(tokens []int32) {
	for i := 16; i < len(tokens); i += 64 {
		tokens[i] = outlierToken
	}
}

// run trains and returns the mean loss of the last compared steps.
func (x *experiment) run(ctx context.Context, c train.Config, stream data.Tokens, threads int, done func(*train.Trainer) error) (mean float64, err error) {
	c.Seed = x.seed
	t, closeDevice, err := start.Trainer(ctx, c, "emu", threads, &data.Corpus{Train: stream})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, closeDevice()) }()
	for i := range c.Train.Steps {
		if s, ok := stream.(*spiked); ok {
			s.step = i
		}
		r, err := t.Next(ctx)
		if errors.Is(err, train.ErrNonFinite) {
			return math.NaN(), nil // bisect takes NaN as not following
		}
		if err != nil {
			return 0, err
		}
		if i >= c.Train.Steps-compared {
			mean += r.Loss / compared
		}
	}
	if done != nil {
		err = done(t)
	}
	return mean, err
}
