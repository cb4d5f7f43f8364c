package train

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/recipe"
)

// linesOf returns the lines of a plan and its job.
func linesOf(t *testing.T, c Config) ([]Line, Memory, *Job) {
	t.Helper()
	s := specOf(t, "emu")
	j, err := NewJob(c, s)
	require.NoError(t, err)
	programs, err := backend.Lower(s, j.Programs()...)
	require.NoError(t, err)
	m, err := j.MemoryOf(s, programs...)
	require.NoError(t, err)
	return m.Lines, m, j
}

// Every persistent byte is in one line. An optimizer in FP32 takes 16 bytes per weight.
func TestLinesSumToTheClasses(t *testing.T) {
	for _, name := range recipe.Names() {
		for _, ranks := range []int{1, 3} {
			c := small(t, name)
			if r, err := recipe.Lookup(name); err == nil && !r.Optimizer.Flat {
				c = shared(c, ranks)
			}
			lines, m, j := linesOf(t, c)
			total, classes, masters, fp32 := int64(0), int64(0), int64(0), int64(0)
			for _, l := range lines {
				total += l.Layers + l.Rest
				fp32 += l.FP32
			}
			for _, g := range m.Persistent {
				classes += g.N
				if g.Name == "param" {
					masters = g.N
				}
			}
			require.Equal(t, classes, total, name)
			scales, gradients := int64(0), int64(0)
			for _, p := range j.Model.Params {
				if p.Quantized {
					gradients += 4 * int64(p.Grad.Root().Elems()) // padding of shards included
				}
				if p.Quantized && p.Sharded() {
					gradients += 4 * int64(p.Master.Elems())
				}
				if p.Master.Scale != nil {
					scales += p.Master.Scale.Bytes()
				}
			}
			require.Equal(t, masters+scales, lines[0].Layers+lines[0].Rest, name)
			require.Equal(t, gradients, lines[1].FP32, name)
			if c.Train.Ranks == 1 {
				require.Equal(t, 16*j.LayerParameters(), fp32, name)
			}
		}
	}
}

// A format changes its own line only, by the bytes of its elements.
func TestFormatChangesItsLine(t *testing.T) {
	base, _, j := linesOf(t, small(t, "bf16"))
	n := j.LayerParameters()
	for line, change := range []func(*Config){
		func(c *Config) { c.Precision.Master = "fp16" },
		func(c *Config) { c.Precision.GradAccum = "e4m3" },
		func(c *Config) { c.Precision.M1 = "e4m3" },
		func(c *Config) { c.Precision.M2 = "fp16" },
	} {
		c := small(t, "bf16")
		change(&c)
		lines, _, _ := linesOf(t, c)
		require.Equal(t, 4*n, base[line].Layers, lines[line].Name)
		const weights = 14 // each with a scale
		size := map[string]int64{"fp16": 2, "e4m3": 1}[lines[line].Formats[0]]
		require.Equal(t, size*n+weights*4, lines[line].Layers, lines[line].Name)
		require.Equal(t, base[line].Rest, lines[line].Rest)
		lines[line] = base[line]
		require.Equal(t, base, lines)
	}
}

// The traffic of Llama 2 7B on eight ranks. With FP32 gradients and BF16 weights, the control, it is
// the usual one; with gradients and weights as codes it is 64 % less, as in FP8-LM (63 to 65 %).
func TestTraffic(t *testing.T) {
	c, err := Preset("llama2-7b")
	require.NoError(t, err)
	c.Train.MicroBatch = 1
	sum := func(recipe, reduce string) (saved [2]float64) {
		c := shared(c, 8)
		c.Recipe, c.Precision.Reduce = recipe, reduce
		_, _, j := linesOf(t, c)
		lines := j.Traffic()
		for i := range saved {
			saved[i] = 1 - float64(lines[i].Bytes)/float64(lines[i].Usual)
		}
		all := 1 - float64(lines[0].Bytes+lines[1].Bytes+lines[2].Bytes)/float64(lines[0].Usual+lines[1].Usual)
		t.Logf("%s, gradients in %s: usual %.1f GB, saved %.1f %% (gradients %.1f %%, weights %.1f %%)",
			recipe, reduce, float64(lines[0].Usual+lines[1].Usual)/1e9, 100*all, 100*saved[0], 100*saved[1])
		if recipe == "fp8-delayed" && reduce == "e4m3" {
			require.InDelta(t, 0.64, all, 0.01)
		}
		return saved
	}
	usual := sum("bf16", "fp32")
	require.InDelta(t, 0, usual[0], 0.001)
	require.InDelta(t, 0, usual[1], 0.001)
	gradients := sum("bf16", "e4m3")
	require.InDelta(t, 0.71, gradients[0], 0.01)
	require.Equal(t, usual[1], gradients[1])
	weights := sum("fp8-delayed", "fp32")
	require.InDelta(t, 0, weights[0], 0.001)
	require.InDelta(t, 0.48, weights[1], 0.01)
	sum("fp8-delayed", "e4m3")
	replicated := small(t, "bf16")
	replicated.Train.Ranks = 2
	_, _, j := linesOf(t, replicated)
	require.InEpsilon(t, j.Traffic()[0].Usual, j.Traffic()[0].Bytes, 0.001)
	one, err := NewJob(small(t, "bf16"), specOf(t, "emu"))
	require.NoError(t, err)
	require.Nil(t, one.Traffic())
}

// Muon has no second moment of the linear layers.
func TestLinesOfMuon(t *testing.T) {
	c := small(t, "bf16")
	c.Optimizer.Kind = "muon"
	lines, _, j := linesOf(t, c)
	require.Equal(t, 4*j.LayerParameters(), lines[2].Layers)
	require.Zero(t, lines[3].Layers)
	require.Positive(t, lines[3].Rest)
}

// The average over all parameters is that of lines and rest, and 16 in FP32.
func TestParameterBytes(t *testing.T) {
	_, _, j := linesOf(t, small(t, "bf16"))
	require.EqualValues(t, 16, j.ParameterBytes())
	_, _, j = linesOf(t, small(t, "fp8-lm-adam"))
	// Norms stay in FP32; embedding and head have the layers' moments, with a scale each.
	const norms, scales = 5 * 32, 14*4 + 2*2
	layers, all := j.LayerParameters(), j.parameters()
	require.InEpsilon(t, float64(6*layers+11*(all-layers-norms)+16*norms+4*scales)/float64(all), j.ParameterBytes(), 1e-12)

	_, _, j = linesOf(t, shared(small(t, "bf16"), 8))
	require.InDelta(t, 6*7./8, j.SentBytes(), 0.05) // and norms, which every rank holds
}

// What a layer keeps, by hand: each row is an activation with its elements per token.
func TestActivationBytes(t *testing.T) {
	const dim, kv, ffn, heads, tokens = 32, 16, 48, 2, 4 * 32
	const elems = 2 * (2 + // reciprocals of two norms
		dim + dim + // the residual stream, read by two norms
		dim + dim + kv + kv + heads + dim + // input, q, k, v, lse and output of the attention
		dim + ffn + ffn + ffn) // input, up, gate and hidden of the MLP
	const bf16 = 2*elems + 2*2*(2+heads) // reciprocals and lse stay in FP32
	for recipe, want := range map[string]int{
		"fp32": tokens * 4 * elems,
		"bf16": tokens * bf16,
		// Four inputs of GEMMs are E4M3 with a scale each; the output of the attention is BF16, too.
		"fp8-current": tokens*(bf16+2*(-dim+dim-dim-ffn)) + 2*4*4,
	} {
		j, err := NewJob(small(t, recipe), specOf(t, "emu"))
		require.NoError(t, err)
		require.InEpsilon(t, float64(want)/float64(tokens*elems), j.ActivationBytes(), 1e-12, recipe)
	}
}
