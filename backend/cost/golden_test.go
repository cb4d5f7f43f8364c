package cost_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/cost"
	"octet/train"

	_ "octet/backend/cuda"
	_ "octet/backend/gaudi"
)

// shape is a model of a published row.
type shape struct {
	layers, dim, heads, kvHeads, ffn, vocab int
	tied                                    bool
}

var (
	llama7b = shape{32, 4096, 32, 32, 11008, 32000, false}
	llama8b = shape{32, 4096, 32, 8, 14336, 128256, false}
	qwen    = map[string]shape{
		"0.5B": {24, 896, 14, 2, 4864, 151936, true},
		"1.5B": {28, 1536, 12, 2, 8960, 151936, true},
		"3B":   {36, 2048, 16, 2, 11008, 151936, true},
		"7B":   {28, 3584, 28, 4, 18944, 152064, false},
		"14B":  {48, 5120, 40, 8, 13824, 152064, false},
	}
)

// row is a published rate and its setting.
type row struct {
	backend, recipe        string
	model                  shape
	seq, micro, accumulate int
	ranks, zero            int
	state                  string // format of master weights and moments; "": the recipe's
	grads                  string
	chunks                 int     // of the head's tokens
	recompute              float64 // share of the block's forward that the backward repeats
	offload                float64 // seconds of copies between device and host in a step

	name string
	rate float64 // published, tokens/s of a device
}

// runs lowers the programs of a step.
func (x row) runs(t testing.TB, recompute string, share float64) []cost.Run {
	c, err := train.Preset("llama2-7b")
	require.NoError(t, err)
	c.Recipe = x.recipe
	c.Model.Layers, c.Model.Dim, c.Model.Heads, c.Model.KVHeads = x.model.layers, x.model.dim, x.model.heads, x.model.kvHeads
	c.Model.FFN, c.Model.Vocab, c.Model.Tied = x.model.ffn, x.model.vocab, x.model.tied
	c.Data.Seq, c.Train.MicroBatch, c.Train.Accumulate = x.seq, x.micro, x.accumulate
	c.Train.Ranks, c.Train.ZeroStage, c.Train.Recompute = max(1, x.ranks), x.zero, recompute
	c.Precision.Master, c.Precision.M1, c.Precision.M2, c.Precision.GradAccum = x.state, x.state, x.state, x.grads
	spec, err := backend.SpecOf(x.backend)
	require.NoError(t, err)
	if x.chunks > 0 {
		spec.HeadTokens = x.seq * x.micro / x.chunks
	}
	job, lowered, _, err := train.LargestJob(c, spec)
	require.NoError(t, err)
	runs := job.Runs(lowered)
	for i := range runs {
		runs[i].Times *= share
	}
	return runs
}

func (x row) step(t testing.TB) *cost.Step {
	runs := x.runs(t, "none", 1-x.recompute)
	if x.recompute > 0 {
		runs = append(runs, x.runs(t, "block", x.recompute)...)
	}
	return cost.NewStep(runs...)
}

func (x row) tokens() float64 { return float64(x.seq * x.micro * x.accumulate) }

// predicted returns tokens/s of a device.
func (x row) predicted(t testing.TB, m cost.Machine, s *cost.Step) float64 {
	p, err := m.Predict(s)
	require.NoError(t, err)
	return x.tokens() / (p.Step + x.offload)
}

func machine(t testing.TB, cluster string, assume ...string) cost.Machine {
	c, err := cost.ParseCluster(cluster)
	require.NoError(t, err)
	m, err := cost.Devices().Machine(c, "")
	require.NoError(t, err)
	require.NoError(t, m.Assume(assume...))
	return m
}

// fit returns m with the numbers gemm and rest that describe rows best: by least squares of
// logarithms, or for one row the most probable pair, with ln gemm ~ N(0, sigma), gemm ≤ 1 and
// ln rest ~ N(0, 0.7).
func fit(t testing.TB, m cost.Machine, sigma float64, rows ...row) cost.Machine {
	steps := make([]*cost.Step, len(rows))
	for i, x := range rows {
		steps[i] = x.step(t)
	}
	with := func(lg, lr float64) cost.Machine {
		fitted := m
		require.NoError(t, fitted.Assume(fmt.Sprintf("gemm=%v", math.Exp(lg)), fmt.Sprintf("rest=%v", math.Exp(lr))))
		return fitted
	}
	squares := func(lg, lr float64) (sum float64) {
		fitted := with(lg, lr)
		for i, x := range rows {
			d := math.Log(x.predicted(t, fitted, steps[i]) / x.rate)
			sum += d * d
		}
		return sum
	}
	var lg, lr float64
	if len(rows) == 1 {
		best := math.Inf(1)
		for g := 0.0; g > -3*sigma; g -= sigma / 50 {
			from, to := -3.0, 5.0 // the step's time grows with rest
			for range 50 {
				middle := (from + to) / 2
				if rows[0].predicted(t, with(g, middle), steps[0]) > rows[0].rate {
					from = middle
				} else {
					to = middle
				}
			}
			if l := g*g/(sigma*sigma) + from*from/(0.7*0.7); squares(g, from) < 1e-8 && l < best {
				best, lg, lr = l, g, from
			}
		}
	} else {
		best := squares(lg, lr)
		for size := 0.5; size > 1e-4; size /= 2 {
			for moved := true; moved; {
				moved = false
				for angle := range 16 {
					sin, cos := math.Sincos(float64(angle) * math.Pi / 8)
					if l := squares(lg+size*cos, lr+size*sin); l < best {
						best, lg, lr, moved = l, lg+size*cos, lr+size*sin, true
					}
				}
			}
		}
	}
	t.Logf("%s: gemm %.3f, rest %.2f, rms %.1f %%", rows[0].backend, math.Exp(lg), math.Exp(lr), 100*math.Sqrt(squares(lg, lr)/float64(len(rows))))
	return with(lg, lr)
}

// within requires that a prediction is within so many percent of the published rate.
func (x row) within(t testing.TB, percent, predicted float64) {
	off := 100 * (predicted/x.rate - 1)
	t.Logf("%-26s %-12s published %9.2f, predicted %9.2f (%+.1f %%)", x.name, x.recipe, x.rate, predicted, off)
	if math.Abs(off) > percent {
		t.Errorf("off")
	}
}

func TestLLMQ(t *testing.T) {
	set := func(size, recipe string, micro, chunks int, recompute, rate float64) row {
		m := qwen[size]
		if recompute > 0 { // of the MLP: its two first GEMMs, of all that a block repeats
			mlp := float64(2 * m.ffn)
			heads := 2*m.dim + 2*m.dim/m.heads*m.kvHeads
			recompute = mlp / (mlp + float64(heads) + 1024)
		}
		offload := 0.0
		if size == "14B" {
			offload = 14.77e9 * 6 / 50e9
		}
		return row{offload: offload, name: "LLM.Q, " + size, backend: "cuda:sm_90", recipe: recipe, model: qwen[size], seq: 1024, micro: micro, accumulate: 512 / micro, state: "bf16", chunks: chunks, recompute: recompute, rate: rate}
	}
	bf16 := []row{
		set("0.5B", "bf16", 32, 1, 0, 150e3),
		set("1.5B", "bf16", 32, 1, 0, 59.2e3),
		set("3B", "bf16", 16, 1, 0, 30.9e3),
		set("7B", "bf16", 4, 2, 0, 13.82e3),
		set("14B", "bf16", 8, 2, 0.65, 6.33e3),
	}
	m := fit(t, machine(t, "h100"), 0.3, bf16...)
	for _, x := range append(bf16,
		set("0.5B", "fp8-current", 32, 1, 0, 164e3),
		set("1.5B", "fp8-current", 32, 1, 0, 73.0e3),
		set("3B", "fp8-current", 16, 1, 0, 40.4e3),
		set("7B", "fp8-current", 16, 4, 0.82, 19.15e3),
		set("14B", "fp8-current", 16, 2, 0.65, 9.36e3),
	) {
		x.within(t, 6, x.predicted(t, m, x.step(t)))
	}
}

func TestPaper(t *testing.T) {
	set := func(name, recipe string, samples float64) row {
		return row{name: name, backend: "gaudi:gaudi2", recipe: recipe, model: llama7b, seq: 4096, micro: 1, accumulate: 128, ranks: 8, zero: 1, rate: samples / 8 * 4096}
	}
	base := set("paper", "bf16", 12.65)
	m := fit(t, machine(t, "gaudi2:8"), 0.05, base)
	fitted, err := m.Predict(base.step(t))
	require.NoError(t, err)
	t.Log(fitted.Classes)
	bandwidth := m.Numbers["bandwidth"].Value * 1e12 * m.Numbers["copy_share"].Value
	for _, x := range []row{set("w3 in BF16", "fp8-w3-bf16", 16.07), set("Smooth-SwiGLU", "fp8-smooth", 16.89), set("Smooth-SwiGLU", "fp8-paper", 16.89), set("plain", "fp8-delayed", 17.34)} {
		runs := x.runs(t, "none", 1)
		x.within(t, 6, x.predicted(t, m, cost.NewStep(runs...)))
		p, err := m.Predict(cost.NewStep(runs...))
		require.NoError(t, err)
		t.Log(p.Classes)
		seconds := casts(runs) / bandwidth
		for _, c := range p.Classes {
			if strings.HasPrefix(c.Name, "GEMM") {
				seconds += c.Seconds
			}
		}
		for _, c := range fitted.Classes {
			if !strings.HasPrefix(c.Name, "GEMM") {
				seconds += c.Seconds
			}
		}
		x.name += ", released casts"
		x.within(t, 5, x.tokens()/seconds)
	}
}

// casts returns the bytes that casts move in a step if none is fused, and inputs and weights are cast to
// two formats in each micro-batch, as in the paper's released code.
func casts(runs []cost.Run) (bytes float64) {
	for _, r := range runs {
		sources := map[string]float64{} // bytes, by the tensor's name without the format
		for _, n := range r.Program.Nodes() {
			switch op := n.Op.(type) {
			case *backend.MatMul:
				if !op.A.DType.IsQuantized() {
					continue
				}
				for _, x := range []*backend.Tensor{op.A, op.B} {
					source := strings.TrimSuffix(x.Root().Name, "."+x.DType.String())
					sources[source+"/"+x.DType.String()] = float64(x.Elems())
					sources[source] = 2 * float64(x.Elems())
				}
			case *backend.SwiGLUAmax:
				bytes += r.Times * float64(n.Cost().Bytes)
			}
		}
		for _, b := range sources {
			bytes += r.Times * b
		}
	}
	return bytes
}

func TestTorchtitan(t *testing.T) {
	set := func(name, recipe string, ranks int, rate float64) row {
		return row{name: name, backend: "cuda:sm_90", recipe: recipe, model: llama8b, seq: 8192, micro: 2, accumulate: 1, ranks: ranks, zero: 1, chunks: 1, rate: rate}
	}
	rate := func(m cost.Machine, x row) float64 {
		p, err := m.Predict(cost.NewStep(x.runs(t, "none", 1)...))
		require.NoError(t, err)
		b, err := m.Predict(cost.NewStep(x.runs(t, "block", 1)...))
		require.NoError(t, err)
		compute := 0.0
		for i, c := range p.Classes {
			if strings.HasPrefix(c.Name, "GEMM") {
				compute += c.Seconds + 0.5*(b.Classes[i].Seconds-c.Seconds)
			} else if c.Name != "communication" {
				compute += c.Seconds
			}
		}
		n := float64(x.ranks)
		params := 8.03e9
		gather := 2.0
		if x.recipe != "bf16" {
			gather = 1
		}
		link := 450e9
		if x.ranks > 8 {
			link = 400e9
		}
		wire := (2*gather + 4) * params * (n - 1) / n / (link * 0.8)
		exposed := max(wire-0.6*compute, wire/32)
		t.Log(p.Classes, compute, wire, exposed)
		return x.tokens() / (compute + exposed)
	}
	base := set("FSDP, 8", "bf16", 8, 6667)
	m := machine(t, "h100:8", "bandwidth=2.4")
	best, found := math.Inf(1), m
	for g := 0.0; g > -0.9; g -= 0.02 {
		from, to := -3.0, 5.0
		var mm cost.Machine
		for range 14 {
			middle := (from + to) / 2
			mm = m
			require.NoError(t, mm.Assume(fmt.Sprintf("gemm=%v", math.Exp(g)), fmt.Sprintf("rest=%v", math.Exp(middle))))
			if rate(mm, base) > base.rate {
				from = middle
			} else {
				to = middle
			}
		}
		if l := g*g/(0.3*0.3) + from*from/(0.7*0.7); from > -2.9 && l < best {
			best, found = l, mm
		}
	}
	t.Log(found.Numbers["gemm"], found.Numbers["rest"])
	for _, x := range []row{base, set("8", "fp8-current", 8, 8532), set("128", "fp8-current", 128, 8380), set("128", "bf16", 128, 6514)} {
		mm := found
		mm.Nodes = x.ranks / 8
		x.within(t, 5, rate(mm, x))
	}
}
