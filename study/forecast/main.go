// Command forecast compares the step time that backend/cost predicts from a calibration with the
// measured one, on this machine. Calibration and measurements alternate, because the speed of a
// shared machine drifts; the medians over the rounds are compared.
//
//	go run ./study/forecast -rounds 3
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"slices"

	"octet/backend"
	"octet/backend/cost"
	_ "octet/backend/emu"
	"octet/internal/bench"
	"octet/internal/stats"
	"octet/study/internal/finding"
	"octet/train"
)

// setting is a training step.
type setting struct {
	model, recipe string
	micro, seq    int
}

// calibrated are the settings of the calibration, each in the shapes of bench.Shapes.
var calibrated = []setting{
	{"small", "bf16", 4, 256},
	{"small", "fp8-smooth", 4, 256},
	{"124m", "bf16", 1, 256},
	{"124m", "fp8-smooth", 1, 256},
}

// predicted share no shape with the calibration, and most of them no recipe.
var predicted = []setting{
	{"small", "fp8-delayed", 4, 192},
	{"small", "fp8-current", 3, 384},
	{"small", "fp8-w3-bf16", 8, 256},
	{"small", "fp8-smooth", 16, 64},
	{"small", "bf16", 1, 1024},
	{"124m", "fp8-delayed", 2, 256},
	{"124m", "fp8-current", 1, 384},
	{"124m", "fp8-w3-bf16", 3, 128},
	{"124m", "fp8-smooth", 1, 1024},
	{"124m", "bf16", 4, 64},
}

func (s setting) config() (train.Config, error) {
	c, err := train.Preset(s.model)
	c.Recipe, c.Train.MicroBatch, c.Data.Seq = s.recipe, s.micro, s.seq
	return c, err
}

func main() {
	log.SetFlags(0)
	rounds := flag.Int("rounds", 3, "calibrations, and measurements of each setting")
	seconds := flag.Float64("seconds", 2, "for each measurement")
	flag.Parse()
	if err := compare(*rounds, *seconds); err != nil {
		log.Fatal(err)
	}
}

func compare(rounds int, seconds float64) error {
	times, guesses := make([][]float64, len(predicted)), make([][]float64, len(predicted))
	for range rounds {
		m, err := calibrate(seconds)
		if err != nil {
			return err
		}
		for i, s := range predicted {
			guess, err := s.predict(m)
			if err != nil {
				return err
			}
			measured, err := s.measure(seconds)
			if err != nil {
				return err
			}
			guesses[i], times[i] = append(guesses[i], guess), append(times[i], measured)
		}
	}
	ms := func(x float64) string { return fmt.Sprintf("%.1f", 1e3*x) }
	var rows [][]string
	var l finding.List
	worst := 0.0
	for i, s := range predicted {
		guess, measured := stats.Median(guesses[i]), stats.Median(times[i])
		off := 100 * (guess/measured - 1)
		worst = max(worst, math.Abs(off))
		rows = append(rows, []string{s.model, "`" + s.recipe + "`", fmt.Sprintf("%d × %d", s.micro, s.seq), ms(guess), ms(measured), fmt.Sprintf("%+.1f %%", off)})
	}
	head := []string{"model", "recipe", "sequences × tokens", "predicted, ms", "measured, ms", "off"}
	if err := finding.Table(os.Stdout, "Predicted and measured step on this machine", head, rows); err != nil {
		return err
	}
	l.Check("every step within 15 %", fmt.Sprintf("%.1f %% at most", worst), worst <= 15)
	return l.Write(os.Stdout)
}

// calibrate returns this machine with curves of the settings to calibrate on.
func calibrate(seconds float64) (m cost.Machine, err error) {
	b, err := bench.Open(bench.Options{Backend: "emu", Seconds: seconds})
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	for _, s := range calibrated {
		config, err := s.config()
		if err == nil {
			err = b.CalibrateStep(context.Background(), config)
		}
		if err != nil {
			return m, err
		}
	}
	var c cost.Calibration
	b.Extend(&c, "")
	return cost.Devices().Local(&c), nil
}

func (s setting) predict(m cost.Machine) (float64, error) {
	c, err := s.config()
	if err != nil {
		return 0, err
	}
	spec, err := backend.SpecOf("emu")
	if err != nil {
		return 0, err
	}
	job, lowered, _, err := train.LargestJob(c, spec)
	if err != nil {
		return 0, err
	}
	runs := slices.DeleteFunc(job.Runs(lowered), func(r cost.Run) bool { return r.Program.Name() == job.Health.Name() })
	p, err := m.Predict(cost.NewStep(runs...)) // bench measures steps without a health pass
	return p.Step, err
}

func (s setting) measure(seconds float64) (step float64, err error) {
	c, err := s.config()
	if err != nil {
		return 0, err
	}
	b, err := bench.Open(bench.Options{Backend: "emu", Seconds: seconds})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	steps, err := b.Steps(context.Background(), []train.Config{c})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, steps.Close()) }()
	results, err := steps.Measure(context.Background())
	if err != nil {
		return 0, err
	}
	return results[0].Median, nil
}
