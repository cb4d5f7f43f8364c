// Command growth computes how fast activations grow along an input c·x, and what E4M3 leaves of
// one channel that grows as c²: with a delayed scale, a current scale and Smooth-SwiGLU. It
// prints its tables and its predictions, which are in the code and precede the measurements, and
// draws growth.svg and growth-fp8.svg.
//
//	go run ./study/growth -o docs/evidence
//
// The second part is a model of the cast of a, not the op: up and gate are drawn as they are,
// without an input and w1 and w2; the excited input has no component that other channels see; w3
// is read for the smoothing scales and cast, but no GEMM follows (study/spike measures those).
package main

import (
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"octet/internal/chart"
	"octet/study/internal/finding"
)

var (
	out   = flag.String("o", "", "folder of the figures; default: docs/evidence")
	seeds = flag.Int("seeds", 5, "number of seeds, from 1")
)

func main() {
	log.SetFlags(0)
	flag.Parse()
	if *seeds < 1 || flag.NArg() > 0 {
		log.Fatal("growth: give -seeds of at least 1 and no arguments")
	}
	if *out == "" {
		if *seeds != finding.Seeds {
			log.Fatal("growth: -seeds needs -o, since the figures of docs/evidence are of 5 seeds")
		}
		*out = "docs/evidence"
	}
	if err := study(); err != nil {
		log.Fatal(err)
	}
}

func study() error {
	var predictions finding.List
	if err := growth(&predictions); err != nil {
		return err
	}
	if err := casts(&predictions); err != nil {
		return err
	}
	return predictions.Write(os.Stdout)
}

// growth prints local exponents of every activation, and f/c².
func growth(l *finding.List) error {
	at := []float64{1, 4, 16}
	var table [][]string
	for _, a := range activations {
		for _, r := range angles {
			name := r.name
			if !a.gated {
				name = "one row"
			}
			row := []string{a.name, name}
			for _, c := range at {
				row = append(row, fmt.Sprintf("%.4f", a.exponent(r, c)))
			}
			for _, c := range at {
				row = append(row, fmt.Sprintf("%.4f", a.at(r, c)/(c*c)))
			}
			table = append(table, row)
			if !a.gated {
				break
			}
		}
	}
	head := []string{"activation", "rows of w1, w2", "exponent at c = 1", "4", "16", "f/c² at c = 1", "4", "16"}
	if err := finding.Table(os.Stdout, "Growth along c·x: local exponent d ln|f| / d ln c, and f/c²", head, table); err != nil {
		return err
	}
	predictGrowth(l)
	return drawGrowth()
}

// drawGrowth draws the exponents of activations that differ.
func drawGrowth() error {
	picture := &chart.Chart{
		Title: "Growth along c·x",
		X:     chart.Axis{Label: "c", Log: true}, Y: chart.Axis{Label: "local exponent d ln|f| / d ln c", Min: 0.9, Max: 2.4},
	}
	for i, l := range []struct {
		name       string
		activation string
		rows       rows
	}{
		{"SwiGLU, aligned", "SwiGLU", angles[0]},
		{"SwiGLU, cosine 0", "SwiGLU", angles[2]},
		{"GeGLU, aligned", "GeGLU", angles[0]},
		{"ReGLU, ReLU²", "ReGLU", angles[0]},
		{"SiLU, GLU (sigmoid), aligned", "SiLU", angles[0]},
		{"GELU", "GELU", angles[0]},
		{"ReLU", "ReLU", angles[0]},
	} {
		a := activations[slices.IndexFunc(activations, func(a activation) bool { return a.name == l.activation })]
		line := chart.Line{Name: l.name, Look: i}
		for e := -4.0; e <= 6; e += 1.0 / 16 {
			c := math.Exp2(e)
			line.X, line.Y = append(line.X, c), append(line.Y, a.exponent(l.rows, c))
		}
		picture.Lines = append(picture.Lines, line)
	}
	return finding.Draw(*out, "growth", picture)
}

func predictGrowth(l *finding.List) {
	var quadratic, linear, apart, half, opposite []float64
	for _, a := range activations {
		e := a.exponent(angles[0], 16)
		switch a.name {
		case "SwiGLU", "GeGLU", "ReGLU":
			quadratic = append(quadratic, e)
			apart = append(apart, a.exponent(angles[2], 16))
			half = append(half, a.at(angles[2], 16)/256)
			opposite = append(opposite, a.at(angles[1], 16)/256)
		case "ReLU²":
			quadratic = append(quadratic, e)
		default:
			linear = append(linear, e)
		}
	}
	l.Check("aligned SwiGLU, GeGLU, ReGLU, and ReLU²: exponent at c = 16 within 1e-4 of 2", finding.Span("%.6f", quadratic), finding.All(quadratic, 2-1e-4, 2+1e-4))
	l.Check("GLU with a sigmoid, SiLU, GELU, ReLU: within 1e-4 of 1", finding.Span("%.6f", linear), finding.All(linear, 1-1e-4, 1+1e-4))
	l.Check("rows with cosine 0, SwiGLU, GeGLU, ReGLU: exponent within 1e-3 of 2, f/c² within 1e-3 of ½",
		finding.Span("%.5f", apart)+", "+finding.Span("%.5f", half), finding.All(apart, 2-1e-3, 2+1e-3) && finding.All(half, 0.5-1e-3, 0.5+1e-3))
	l.Check("anti-aligned rows: f/c² within 1e-4 of −1 at c = 16", finding.Span("%.6f", opposite), finding.All(opposite, -1-1e-4, -1+1e-4))
}

// binades is the largest log2 of c.
const binades = 20

// measurement has the largest errors over all seeds at c = 2^i.
type measurement struct {
	errors [binades + 1][]castErrors // by variant
	same   [binades + 1]bool         // Smooth-SwiGLU has the bits of SwiGLU in FP32, with every seed
}

func measure() *measurement {
	var m measurement
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i := range m.errors {
		g.Go(func() error {
			m.errors[i], m.same[i] = make([]castErrors, len(variants)), true
			for seed := range *seeds {
				p, c := newProblem(uint64(seed+1)), math.Exp2(float64(i))
				m.same[i] = m.same[i] && p.sameInFP32(c)
				for v, variant := range variants {
					e, top := variant.cast(p, c), &m.errors[i][v]
					top.outlier, top.others, top.weight = max(top.outlier, e.outlier), max(top.others, e.others), max(top.weight, e.weight)
				}
			}
			return nil
		})
	}
	_ = g.Wait() // measurements return no errors
	return &m
}

// casts measures the cast of a to E4M3 for outliers of c·silu(c).
func casts(l *finding.List) error {
	m := measure()
	head := []string{"c", "outlier of a"}
	for _, v := range variants {
		head = append(head, v.name+": outlier", "other channels")
	}
	head = append(head, "other columns of w3", "FP32 bits equal")
	var table [][]string
	for i, errors := range m.errors {
		a, _ := silu(math.Exp2(float64(i)))
		row := []string{fmt.Sprintf("2^%d", i), chart.Number(math.Exp2(float64(i)) * a)}
		for _, e := range errors {
			row = append(row, fmt.Sprintf("%.3f", e.outlier), fmt.Sprintf("%.3f", e.others))
		}
		table = append(table, append(row, fmt.Sprintf("%.3f", errors[2].weight), fmt.Sprint(m.same[i])))
	}
	if err := finding.Table(os.Stdout, fmt.Sprintf("E4M3 of a, and of w3, when one token excites one aligned channel by c: relative errors, largest of %d seeds", *seeds), head, table); err != nil {
		return err
	}
	predictCasts(l, m)
	var charts []chart.Picture
	for _, part := range []struct {
		title string
		of    func(castErrors) float64
	}{
		{"The outlier's value", func(e castErrors) float64 { return e.outlier }},
		{"Values of the other channels", func(e castErrors) float64 { return e.others }},
	} {
		picture := &chart.Chart{
			Title: part.title + " in E4M3",
			X:     chart.Axis{Label: "c: the outlier is c²", Log: true}, Y: chart.Axis{Label: "relative error", Max: 1.05},
		}
		for v, variant := range variants {
			line := chart.Line{Name: variant.name, Look: v}
			for i := range m.errors {
				line.X, line.Y = append(line.X, math.Exp2(float64(i))), append(line.Y, part.of(m.errors[i][v]))
			}
			picture.Lines = append(picture.Lines, line)
		}
		charts = append(charts, picture)
	}
	return finding.Draw(*out, "growth-fp8", charts...)
}
