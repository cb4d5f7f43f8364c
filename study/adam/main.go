// Command adam measures the error of storing Adam's second moment v in low precision, by
// format, scale and rounding: how v follows falling gradients, by β2, and how large
// updates become if the gradients of one tensor differ by powers of ten.
//
//	go run ./study/adam
package main

import (
	"fmt"
	"log"
	"os"
	"text/tabwriter"

	"octet/fp8"
	"octet/internal/adam"
	"octet/recipe"
)

var states = []recipe.Optimizer{
	{M2: fp8.F32},
	{M2: fp8.BF16},
	{M2: fp8.BF16, Rounding: fp8.Stochastic},
	{M2: fp8.F16},
	{M2: fp8.E5M2, Pow2: true},
	{M2: fp8.E5M2, Pow2: true, Rounding: fp8.Stochastic},
	{M2: fp8.E5M2},
	{M2: fp8.E5M2, Rounding: fp8.Stochastic},
	{M2: fp8.E5M2, Rounding: fp8.Stochastic, FloorV: true},
	{M2: fp8.E5M2, Rounding: fp8.Stochastic, Block: 256},
	{M2: fp8.E4M3},
	{M2: fp8.E4M3, Rounding: fp8.Stochastic},
	{M2: fp8.E4M3, FloorV: true},
	{M2: fp8.E4M3, Block: 256},
	{M2: fp8.E4M3, Rounding: fp8.Stochastic, Block: 256},
}

func main() {
	log.SetFlags(0)
	for i := range states {
		states[i].Master, states[i].M1 = fp8.F32, fp8.F32
	}
	if err := drops(); err != nil {
		log.Fatal(err)
	}
	if err := spreads(); err != nil {
		log.Fatal(err)
	}
}

// drops prints one row for each state and β2.
func drops() error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "m2\tscale\trounding\tbeta2\tv/true before\tafter\tzeros\tupdate error before\tafter")
	for _, beta2 := range []float64{0.95, 0.999} {
		for _, s := range states {
			d, err := adam.MeasureDrop(s, beta2, 4096)
			if err != nil {
				return err
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%v\t%.2g\t%.2g\t%.0f %%\t%.2g\t%.2g\n",
				s.M2, scale(s), s.Rounding, beta2, d.Before, d.After, 100*d.Zeros, d.ErrorBefore, d.ErrorAfter)
		}
	}
	return w.Flush()
}

// spreads prints the largest update, in units of the learning rate, for gradients that
// differ by 10³ to 10⁶.
func spreads() error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nm2\tscale\trounding\tupdate/lr at 10^3\t10^4\t10^5\t10^6")
	for _, s := range states {
		fmt.Fprintf(w, "%s\t%s\t%s", s.M2, scale(s), s.Rounding)
		for _, decades := range []float64{3, 4, 5, 6} {
			d, err := adam.MeasureSpread(s, decades)
			if err != nil {
				return err
			}
			fmt.Fprintf(w, "\t%.3g", d.Largest)
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

// scale describes the scales of a state; it is empty for a format without scales.
func scale(s recipe.Optimizer) string {
	if !recipe.Scaled(s.M2) {
		return ""
	}
	text := "amax"
	if s.Pow2 {
		text = "pow2"
	}
	if s.Block > 0 {
		text += fmt.Sprintf(" of %d", s.Block)
	}
	if s.FloorV {
		text += ", floor"
	}
	return text
}
