// Command emerge describes how SwiGLU's channels align in small models with nothing planted: all
// channels, over time, under settings that raise alignment and settings that do not. It reads the
// runs of study/sweeps/emerge.toml, prints tables and predictions, and draws figures.
//
//	go run ./study/emerge -texts sweeps/texts
//	octet sweep study/sweeps/emerge.toml -o sweeps/emerge
//	go run ./study/emerge -runs sweeps/emerge
//
// With -long it describes runs of 100M tokens instead:
//
//	octet sweep study/sweeps/long.toml -o sweeps/long
//	go run ./study/emerge -long sweeps/long
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"os"
	"runtime"

	"golang.org/x/sync/errgroup"

	"octet/internal/runs"
	"octet/study/internal/finding"
	"octet/study/internal/start"
)

// validationBytes is data.val_bytes of the runs.
const validationBytes = 100_000

func main() {
	log.SetFlags(0)
	texts := flag.String("texts", "", "folder to write the texts of the sweep to")
	dir := flag.String("runs", "", "folder of the sweep to describe")
	long := flag.String("long", "", "folder of the sweep of long runs to describe")
	out := flag.String("o", "docs/evidence", "folder of the figures")
	flag.Parse()
	ctx := context.Background()
	var err error
	switch {
	case *texts != "":
		err = writeTexts(ctx, *texts)
	case *long != "":
		err = describeLong(*long, *out)
	case *dir != "":
		err = describe(ctx, *dir, *out)
	default:
		err = errors.New("give -texts, -runs or -long")
	}
	if err != nil {
		log.Fatal(err)
	}
}

// setting is a variant of the sweep with its runs, in the order of their seeds.
type setting struct {
	name   string
	runs   []*runs.Run
	models []model // of the last checkpoint of each run
}

// values returns a value of each run.
func (s *setting) values(of func(model) float64) (list []float64) {
	for _, m := range s.models {
		list = append(list, of(m))
	}
	return list
}

// settingNames are the variants of study/sweeps/emerge.toml.
var settingNames = []string{
	"decay 0.1", "decay 0", "decay 0.3", "decay 1", "decay 5", "l2 1e-3", "l2 1e-2",
	"lr 1e-2, decay 0", "lr 1e-2, decay 0.1", "lr 1e-2, decay 0.3",
	"first 2 MB", "repeated text", rareName, "ffn 16", "dim 32, ffn 512", "1 x 80", "4 x 48", "10 x 32",
}

// settings are those of a sweep, by name.
type settings map[string]*setting

// readSettings measures the last checkpoint of every run of a sweep.
func readSettings(ctx context.Context, dir string) (settings, []*setting, error) {
	runsOf, err := finding.Sweep(dir, "study/sweeps/emerge.toml", settingNames...)
	if err != nil {
		return nil, nil, err
	}
	corpus, _, err := start.Corpus(ctx, validationBytes)
	if err != nil {
		return nil, nil, err
	}
	byName := settings{}
	var list []*setting
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for _, name := range settingNames {
		s := &setting{name: name, runs: runsOf[name], models: make([]model, len(runsOf[name]))}
		byName[name], list = s, append(list, s)
		for i, r := range s.runs {
			g.Go(func() error {
				entries, err := checkpoints(r.Dir)
				if err != nil {
					return err
				}
				text := corpus.Val
				if name == rareName {
					text = rareTokens{corpus.Val}
				}
				s.models[i], err = measure(ctx, r.Dir, entries[len(entries)-1], text)
				return err
			})
		}
	}
	return byName, list, g.Wait()
}

// describe prints the tables and predictions of the sweep in dir, and draws its figures.
func describe(ctx context.Context, dir, figures string) error {
	byName, list, err := readSettings(ctx, dir)
	if err != nil {
		return err
	}
	if err := errors.Join(alignmentTable(list), outlierTable(list), shapeTable(byName), byName.predictions().Write(os.Stdout)); err != nil {
		return err
	}
	return errors.Join(drawSettings(byName, figures), drawScatter(byName, figures), drawChannels(byName, figures))
}
