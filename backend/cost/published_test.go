package cost_test

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/cost"
	_ "octet/backend/cuda"
	_ "octet/backend/gaudi"
	"octet/train"
)

// shape is a model of a published row.
type shape struct {
	layers, dim, heads, kvHeads, ffn, vocab int
	tied                                    bool
}

var (
	llama7b = shape{32, 4096, 32, 32, 11008, 32000, false}
	llama8b = shape{32, 4096, 32, 8, 14336, 128256, false}
	qwen    = map[string]shape{ // Qwen2.5; its biases are left out
		"0.5B": {24, 896, 14, 2, 4864, 151936, true},
		"1.5B": {28, 1536, 12, 2, 8960, 151936, true},
		"3B":   {36, 2048, 16, 2, 11008, 151936, true},
		"7B":   {28, 3584, 28, 4, 18944, 152064, false},
		"14B":  {48, 5120, 40, 8, 13824, 152064, false},
	}
)

// row is a published rate and its setting.
type row struct {
	name, recipe           string
	rate                   float64 // published, tokens/s of a device
	model                  shape
	seq, micro, accumulate int
	ranks                  int     // with ZeRO-1; 0: one
	state                  string  // format of master weights and moments; "": the recipe's
	chunks                 int     // of the head's tokens; 0: Octet's
	recompute              float64 // of the block's forward, the share that the backward repeats
	offload                float64 // seconds of copies between device and host in a step
}

// runs lowers the programs of a step for a machine, with some activation recomputation.
func (x row) runs(t testing.TB, m cost.Machine, recompute string) []cost.Run {
	c, err := train.Preset("llama2-7b")
	require.NoError(t, err)
	c.Recipe = x.recipe
	c.Model.Layers, c.Model.Dim, c.Model.Heads, c.Model.KVHeads = x.model.layers, x.model.dim, x.model.heads, x.model.kvHeads
	c.Model.FFN, c.Model.Vocab, c.Model.Tied = x.model.ffn, x.model.vocab, x.model.tied
	c.Data.Seq, c.Train.MicroBatch, c.Train.Accumulate, c.Train.Recompute = x.seq, x.micro, x.accumulate, recompute
	c.Train.HealthEvery = 0
	if x.ranks > 0 {
		c.Train.Ranks, c.Train.ZeroStage = x.ranks, 1
	}
	c.Precision.Master, c.Precision.M1, c.Precision.M2 = x.state, x.state, x.state
	spec, err := backend.SpecOf(m.Backend)
	require.NoError(t, err)
	if x.chunks > 0 {
		spec.HeadTokens = x.seq * x.micro / x.chunks
	}
	job, err := train.NewJob(c, spec)
	require.NoError(t, err)
	lowered, err := backend.Lower(spec, job.Programs()...)
	require.NoError(t, err)
	return job.Runs(lowered)
}

// step mixes the steps without and with recomputation of whole blocks.
func (x row) step(t testing.TB, m cost.Machine) *cost.Step {
	var runs []cost.Run
	for recompute, share := range map[string]float64{"none": 1 - x.recompute, "block": x.recompute} {
		if share == 0 {
			continue
		}
		for _, r := range x.runs(t, m, recompute) {
			runs = append(runs, cost.Run{Program: r.Program, Times: share * r.Times})
		}
	}
	return cost.NewStep(runs...)
}

func (x row) tokens() float64 { return float64(x.seq * x.micro * x.accumulate) }

// rateOf returns a function that predicts tokens/s of a device.
func (x row) rateOf(t testing.TB, m cost.Machine) func(cost.Machine) float64 {
	s := x.step(t, m)
	return func(m cost.Machine) float64 { return x.tokens() / (predict(t, m, s).Step + x.offload) }
}

func predict(t testing.TB, m cost.Machine, s *cost.Step) cost.Prediction {
	p, err := m.Predict(s)
	require.NoError(t, err)
	return p
}

func machine(t testing.TB, cluster string, assume ...string) cost.Machine {
	c, err := cost.ParseCluster(cluster)
	require.NoError(t, err)
	m, err := cost.Devices().Machine(c, "")
	require.NoError(t, err)
	require.NoError(t, m.Assume(assume...))
	return m
}

// withFit returns m with the numbers gemm and rest of a fit.
func withFit(t testing.TB, m cost.Machine, lnGEMM, lnRest float64) cost.Machine {
	require.NoError(t, m.Assume(fmt.Sprintf("gemm=%v", math.Exp(lnGEMM)), fmt.Sprintf("rest=%v", math.Exp(lnRest))))
	return m
}

// fitOne returns the most probable numbers gemm and rest with which a row has its published rate:
// ln gemm ~ N(0, sigma), gemm ≤ 1 and ln rest ~ N(0, 0.7).
func fitOne(t testing.TB, m cost.Machine, sigma, published float64, rate func(cost.Machine) float64) cost.Machine {
	best, fitted := math.Inf(1), m
	for g := 0.0; g > -3*sigma; g -= sigma / 10 {
		from, to := -3.0, 5.0 // the step's time grows with rest
		for range 16 {
			if middle := (from + to) / 2; rate(withFit(t, m, g, middle)) > published {
				from = middle
			} else {
				to = middle
			}
		}
		if l := g*g/(sigma*sigma) + from*from/(0.7*0.7); from > -3 && l < best {
			best, fitted = l, withFit(t, m, g, from)
		}
	}
	require.Less(t, best, math.Inf(1))
	return logFit(t, fitted)
}

// fitAll returns the numbers gemm and rest with the least squares of ln(predicted/published).
func fitAll(t testing.TB, m cost.Machine, rows []row) cost.Machine {
	rates := make([]func(cost.Machine) float64, len(rows))
	for i, x := range rows {
		rates[i] = x.rateOf(t, m)
	}
	squares := func(g, r float64) (sum float64) {
		fitted := withFit(t, m, g, r)
		for i, x := range rows {
			d := math.Log(rates[i](fitted) / x.rate)
			sum += d * d
		}
		return sum
	}
	g, r := 0.0, 0.0
	best := squares(g, r)
	for size := 0.5; size > 1e-3; size /= 2 {
		for moved := true; moved; {
			moved = false
			for angle := range 16 {
				sin, cos := math.Sincos(float64(angle) * math.Pi / 8)
				if l := squares(g+size*cos, r+size*sin); l < best {
					best, g, r, moved = l, g+size*cos, r+size*sin, true
				}
			}
		}
	}
	list(t, "rms %.1f %%", 100*math.Sqrt(best/float64(len(rows))))
	return logFit(t, withFit(t, m, g, r))
}

func logFit(t testing.TB, m cost.Machine) cost.Machine {
	list(t, "%s: gemm %.2f, rest %.2f", m.Title, m.Numbers["gemm"].Value, m.Numbers["rest"].Value)
	return m
}

var update = flag.Bool("update", false, "write the listings of the golden tests")

// listings are the lines of the golden tests, by their names.
var listings = map[string]*strings.Builder{}

// list prints a line of a test's listing. At the end of the test the listing must be that of
// testdata, so that a constant cannot change without all rows that it changes: -update writes them.
func list(t testing.TB, format string, args ...any) {
	name := t.Name()
	if listings[name] == nil {
		listings[name] = &strings.Builder{}
		t.Cleanup(func() {
			got := listings[name].String()
			delete(listings, name)
			path := filepath.Join("testdata", name+".txt")
			if *update {
				require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
			}
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, string(want), got, "go test ./backend/cost -run Golden -update writes new listings: read what changes")
		})
	}
	t.Logf(format, args...)
	fmt.Fprintf(listings[name], format+"\n", args...)
}

// within requires that a prediction is within so many percent of the published rate.
func (x row) within(t testing.TB, percent, predicted float64) {
	off := 100 * (predicted/x.rate - 1)
	list(t, "%-30s %-12s published %8.0f, predicted %8.0f tokens/s (%+.1f %%)", x.name, x.recipe, x.rate, predicted, off)
	require.LessOrEqual(t, math.Abs(off), percent, "a constant that changes this row changes all: go test ./backend/cost -run TestGolden -v prints them")
}
