// Command neuron trains one or a few SwiGLU neurons in float64 and measures whether weight
// decay aligns the rows of w1 and w2, as Theorem 1 of arXiv 2409.12517 says. It prints its
// tables and its predictions, which are in the code and precede the measurements, and draws
// neuron-angle.svg and neuron-decay.svg.
//
//	go run ./study/neuron -o docs/evidence
package main

import (
	"flag"
	"fmt"
	"log"
	"math"
	"math/rand/v2"
	"os"
	"runtime"

	"golang.org/x/sync/errgroup"

	"octet/internal/chart"
	"octet/internal/stats"
	"octet/study/internal/finding"
)

var (
	out   = flag.String("o", "", "folder of the figures; default: docs/evidence")
	seeds = flag.Int("seeds", 5, "number of seeds, from 1")
	steps = flag.Int("steps", 0, "steps of every run, for a quick look; 0: as many as the run names")
)

func main() {
	log.SetFlags(0)
	flag.Parse()
	if *seeds < 1 || *steps < 0 || flag.NArg() > 0 {
		log.Fatal("neuron: give -seeds of at least 1, -steps of at least 0 and no arguments")
	}
	if *out == "" {
		if *seeds != finding.Seeds || *steps > 0 {
			log.Fatal("neuron: -seeds and -steps need -o, since the figures of docs/evidence are of 5 seeds and all steps")
		}
		*out = "docs/evidence"
	}
	if err := study(); err != nil {
		log.Fatal(err)
	}
}

func study() error {
	var predictions finding.List
	for _, experiment := range []func(*finding.List) error{angles, points, scales, decays, targets} {
		if err := experiment(&predictions); err != nil {
			return err
		}
	}
	return predictions.Write(os.Stdout)
}

// run is a unit that learns a target.
type run struct {
	shape
	target
	training
	samples int
}

// bilinear is a bilinear unit that learns a teacher of size 20.
func bilinear(angle, l2 float64) run {
	return run{
		shape{neurons: 1, dim: 8},
		bilinearTeacher(teacherSize, angle),
		training{lr: 3e-2, cosine: true, steps: 800, l2: l2},
		4096,
	}
}

// swiglu is a SwiGLU neuron that learns a teacher of this size.
func swiglu(size, angle, l2 float64) run {
	return run{
		shape{neurons: 1, dim: 16, gated: true},
		gatedTeacher(size, angle),
		training{lr: 2e-2, cosine: true, steps: 2000, l2: l2},
		512,
	}
}

// at trains the unit. Runs with the same seed, target and sizes have the same data and start at
// the same weights, of variance 1/dim; a w3 that trains has variance 1.
func (r run) at(seed uint64) *outcome {
	d := r.sample(r.dim, r.samples, rand.New(rand.NewPCG(seed, 1)))
	rng := rand.New(rand.NewPCG(seed, 2))
	p := normal(r.size(), 1, rng)
	scale(r.rows(p), 1/math.Sqrt(float64(r.dim)))
	if !r.trainW3 {
		for j := range r.w3(p) {
			r.w3(p)[j] = 1
		}
	}
	rootV := r.train(r.shape, p, d, rand.New(rand.NewPCG(seed, 3)))
	return &outcome{r, d, p, rootV}
}

// measure trains every run with every seed. A run takes one thread, so the number of threads
// changes no result.
func measure(runs []run) [][]*outcome {
	results := make([][]*outcome, len(runs))
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, r := range runs {
		results[i] = make([]*outcome, *seeds)
		if *steps > 0 {
			r.steps = *steps
		}
		for seed := range *seeds {
			g.Go(func() error {
				results[i][seed] = r.at(uint64(seed + 1))
				return nil
			})
		}
	}
	_ = g.Wait() // runs return no errors
	return results
}

// each returns a figure of every seed.
func each(list []*outcome, figure func(*outcome) float64) []float64 {
	values := make([]float64, len(list))
	for i, o := range list {
		values[i] = figure(o)
	}
	return values
}

func cosine(o *outcome) float64 { return o.cos(0) }

// alignment returns |cos| of the neuron with the largest contribution to an output.
func alignment(o *outcome) float64 { return math.Abs(o.cos(o.top())) }

// failed returns the number of runs that did not learn.
func failed(list []*outcome) (n int) {
	for _, o := range list {
		if !o.learned() {
			n++
		}
	}
	return n
}

// scatter adds dots to lines, of the runs that learned to the first and of others to the second.
func scatter(lines []*chart.Line, list []*outcome, x, y func(*outcome) float64) {
	for _, o := range list {
		l := lines[0]
		if !o.learned() {
			l = lines[1]
		}
		l.X, l.Y = append(l.X, x(o)), append(l.Y, y(o))
	}
}

// middle writes the median and the range of the seeds.
func middle(format string, values []float64) string {
	return fmt.Sprintf(format+" (%s)", stats.Median(values), finding.Span(format, values))
}
