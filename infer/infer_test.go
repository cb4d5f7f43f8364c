package infer_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	_ "octet/backend/emu"
	"octet/checkpoint"
	"octet/data"
	"octet/infer"
	"octet/nn"
	"octet/recipe"
	"octet/train"
)

// trained is a small model after a few steps, with its checkpoint.
type trained struct {
	config  train.Config
	val     data.Text
	valLoss float64
	weights train.CheckpointWeights
	recipe  recipe.Recipe
}

func trainSmall(t *testing.T, name string, edits ...func(*train.Model)) trained {
	t.Helper()
	c := train.Default()
	c.Recipe = name
	for _, edit := range edits {
		edit(&c.Model)
	}
	c.Model.Layers, c.Model.Dim, c.Model.Heads, c.Model.KVHeads, c.Model.FFN = 2, 32, 2, 1, 48
	c.Data.Seq, c.Train.MicroBatch, c.Train.Steps = 32, 4, 30
	require.NoError(t, c.Resolve())
	text := make([]byte, 8000)
	for i := range text {
		text[i] = "func main() { return nil }\n"[(i+i/97)%27]
	}
	out := trained{config: c, val: data.Text(text[7000:])}
	dev := device(t)
	job, err := train.NewJob(c, dev.Spec())
	require.NoError(t, err)
	tr, err := train.NewTrainer(job, &data.Corpus{Train: data.Text(text[:7000]), Val: out.val}, dev, nil)
	require.NoError(t, err)
	ctx := context.Background()
	require.NoError(t, tr.Init(ctx))
	for range c.Train.Steps {
		_, err := tr.Next(ctx)
		require.NoError(t, err)
	}
	out.valLoss, err = tr.Evaluate(ctx)
	require.NoError(t, err)
	contents, err := tr.Contents("test", "emu")
	require.NoError(t, err)
	path, err := checkpoint.Save(t.TempDir(), tr.StepsDone(), contents)
	require.NoError(t, err)
	saved, err := checkpoint.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, saved.Close()) })
	out.weights = train.CheckpointWeights{Model: saved.Model, Scales: saved.Optimizer}
	out.recipe, err = c.ResolvedRecipe()
	require.NoError(t, err)
	return out
}

func device(t *testing.T) backend.Backend { return open(t, "emu") }

func open(t *testing.T, name string) backend.Backend {
	t.Helper()
	dev, err := backend.Open(name, backend.Options{Threads: 2})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return dev
}

func evaluate(t *testing.T, m trained, r recipe.Recipe, w infer.Weights, dev backend.Backend, stream data.Tokens, batch, seq int) (float64, error) {
	t.Helper()
	e, err := infer.NewEvaluator(t.Context(), m.config.ModelConfig(), r, w, dev, infer.Windows{Batch: batch, Seq: seq}, nil)
	require.NoError(t, err)
	return e.Evaluate(t.Context(), stream, nil)
}

// Evaluating a checkpoint gives the same bits as the run's own evaluation. For a model of
// this size FP8 and FP32 agree within 5 % of the loss.
func TestEvaluateEqualsTheRun(t *testing.T) {
	for _, name := range []string{
		"bf16", "fp8-current", "fp8-smooth", "fp8-smooth-token", "fp8-paper", "fp8-unit",
		"smooth-late-factors", "smooth-late-weight", "smooth-late-token",
		"te-block", "torchao-row-gw-hp", "mxfp8",
	} {
		m := trainSmall(t, name)
		lossOf := func(r recipe.Recipe) float64 {
			loss, err := evaluate(t, m, r, m.weights, device(t), m.val, m.config.Train.MicroBatch, m.config.Data.Seq)
			require.NoError(t, err)
			return loss
		}
		require.Equal(t, m.valLoss, lossOf(m.recipe), name)
		exact, err := recipe.Lookup("fp32")
		require.NoError(t, err)
		require.InEpsilon(t, m.valLoss, lossOf(exact), 0.05, name)
	}
}

// A model that was trained on one device runs on another with other formats.
func TestEvaluateOnAnotherDevice(t *testing.T) {
	for _, name := range []string{"fp8-delayed", "fp8-smooth", "fp8-smooth-token", "smooth-late-weight"} {
		m := trainSmall(t, name)
		loss, err := evaluate(t, m, m.recipe, m.weights, open(t, "emu:gaudi2"), m.val, m.config.Train.MicroBatch, m.config.Data.Seq)
		require.NoError(t, err, name)
		require.NotEqual(t, m.valLoss, loss, name)
		require.InEpsilon(t, m.valLoss, loss, 0.02, name)
	}
}

func TestBareWeightsHaveNoScales(t *testing.T) {
	m := trainSmall(t, "fp8-smooth")
	bare := train.CheckpointWeights{Model: m.weights.Model}
	_, err := infer.NewGenerator(context.Background(), m.config.ModelConfig(), m.recipe, bare, device(t), infer.Cache{Batch: 1, Context: 8})
	require.ErrorContains(t, err, "use --recipe bf16 or fp32")
	require.ErrorIs(t, err, infer.ErrNoScales)
	_, err = infer.NewGenerator(context.Background(), m.config.ModelConfig(), m.recipe, unreadable{m.weights}, device(t), infer.Cache{Batch: 1, Context: 8})
	require.ErrorIs(t, err, errUnreadable)
	require.NotErrorIs(t, err, infer.ErrNoScales, "the weights have scales")
	// Block scales are computed from the elements, and constant scales are those of the recipe.
	for _, name := range []string{"mxfp8", "mu-s", "fp8-unit"} {
		m = trainSmall(t, name)
		bare = train.CheckpointWeights{Model: m.weights.Model}
		loss, err := evaluate(t, m, m.recipe, bare, device(t), m.val, m.config.Train.MicroBatch, m.config.Data.Seq)
		require.NoError(t, err)
		require.Equal(t, m.valLoss, loss, name)
		_, err = infer.NewGenerator(context.Background(), m.config.ModelConfig(), m.recipe, bare, device(t), infer.Cache{Batch: 1, Context: 8})
		require.NoError(t, err, name)
	}
}

// shifted has the outputs of two norms times 2^-16, and the weights that multiply them times
// 2^16: the same model, whose activations underflow in FP8 without their scale.
type shifted struct{ infer.Weights }

func (w shifted) Param(name string) ([]float32, error) {
	x, err := w.Weights.Param(name)
	by := float32(1)
	switch parts := strings.Split(name, "."); parts[len(parts)-2] {
	case "input_layernorm", "post_attention_layernorm":
		by = 0x1p-16
	case "q_proj", "k_proj", "v_proj", "up_proj", "gate_proj":
		by = 0x1p16
	}
	for i := range x {
		x[i] *= by
	}
	return x, err
}

// Without saved scales they are measured in other tokens. Powers of two in the model leave
// every bit of the loss as it is.
func TestCalibration(t *testing.T) {
	m := trainSmall(t, "bf16")
	long := append(slices.Clone(m.val), m.val...)
	long = append(long, long...)
	for _, name := range []string{
		"nvfp4-plain", "fp8-current", "te-current", "fp8-delayed", "fp8-head", "int8-switchback", "torchao-row-gw-hp",
		"fp8-smooth", "fp8-smooth-token", "fp8-paper", "smooth-late-weight",
	} {
		r, err := recipe.Lookup(name)
		require.NoError(t, err)
		c := m.config.ModelConfig()
		if r.Smooth.On() {
			c.Activation = nn.SmoothSwiGLU
		}
		lossOf := func(w infer.Weights, calibration data.Tokens) (float64, int64) {
			e, err := infer.NewEvaluator(t.Context(), c, r, w, device(t), infer.Windows{Batch: 4, Seq: 32}, calibration)
			require.NoError(t, err, name)
			loss, err := e.Evaluate(t.Context(), m.val, nil)
			require.NoError(t, err, name)
			return loss, e.Calibrated
		}
		loss, tokens := lossOf(m.weights, long)
		require.InEpsilon(t, m.valLoss, loss, 0.05, name)
		require.EqualValues(t, 16*4*32, tokens, "16 batches, no more of %d tokens", len(long))
		again, tokens := lossOf(shifted{m.weights}, long[:4*32+1])
		first, _ := lossOf(m.weights, long[:4*32+1])
		require.Equal(t, first, again, name)
		require.EqualValues(t, 4*32, tokens)

		_, err = infer.NewEvaluator(t.Context(), c, r, m.weights, device(t), infer.Windows{Batch: 4, Seq: 32}, nil)
		require.ErrorIs(t, err, infer.ErrNoScales)
	}
	m = trainSmall(t, "fp8-current")
	e, err := infer.NewEvaluator(t.Context(), m.config.ModelConfig(), m.recipe, m.weights, device(t), infer.Windows{Batch: 4, Seq: 32}, m.val)
	require.NoError(t, err)
	require.Zero(t, e.Calibrated, "saved scales come first")
}

// unreadable returns a read error for scales.
type unreadable struct{ infer.Weights }

var errUnreadable = errors.New("input/output error")

func (unreadable) Scale(string) ([]float32, error) { return nil, errUnreadable }

// misfit returns n values for the parameter name.
type misfit struct {
	infer.Weights
	name string
	n    int
}

func (w misfit) Param(name string) ([]float32, error) {
	x, err := w.Weights.Param(name)
	if name == w.name {
		x = make([]float32, w.n)
	}
	return x, err
}

func TestParametersHaveTheModelsShape(t *testing.T) {
	m := trainSmall(t, "bf16")
	for _, test := range []struct {
		name             string
		vocab, has, want int
	}{
		{"model.norm.weight", 256, 31, 32},
		{"model.layers.0.mlp.up_proj.weight", 256, 48 * 31, 48 * 32},
		{"model.embed_tokens.weight", 250, 256 * 32, 250 * 32}, // the padding is not stored
	} {
		c := m.config.ModelConfig()
		c.Vocab = test.vocab
		_, err := infer.NewGenerator(t.Context(), c, m.recipe, misfit{m.weights, test.name, test.has}, device(t), infer.Cache{Batch: 1, Context: 8})
		require.ErrorContains(t, err, fmt.Sprintf("%s has %d values, the model expects %d", test.name, test.has, test.want))
	}
}

// Prefill in chunks and decode token by token agree: in the greedy continuation of a
// prompt longer than a chunk, once with prefill and once decoding every token, and in
// the loss, which equals Evaluate's.
func TestPrefillAgreesWithDecode(t *testing.T) {
	for _, name := range []string{"fp8-smooth", "fp8-smooth-token", "fp8-paper", "te-block", "torchao-row", "mxfp8"} {
		t.Run(name, func(t *testing.T) { prefillAgreesWithDecode(t, trainSmall(t, name)) })
	}
	for name, edit := range map[string]func(*train.Model){
		"fog": func(m *train.Model) {
			m.Norm, m.FinalNorm, m.QKNorm, m.EmbedScale = "post", false, "frozen", 16
		},
		"both":        func(m *train.Model) { m.Norm, m.QKNorm = "both", "learned" },
		"layer scale": func(m *train.Model) { m.LayerScale = new(0.1) },
		"attention":   func(m *train.Model) { m.QKVBias, m.HeadDim, m.RopeScaling = true, 32, []float64{8, 1, 4, 16} },
		"experts":     func(m *train.Model) { m.Experts, m.ExpertCapacity = 4, 0.6 },
	} {
		t.Run(name, func(t *testing.T) { prefillAgreesWithDecode(t, trainSmall(t, "fp8-smooth", edit)) })
	}
}

func prefillAgreesWithDecode(t *testing.T, m trained) {
	ctx := context.Background()
	prompt := make([]int32, 80)
	for i := range prompt {
		prompt[i] = int32(m.val[i])
	}
	generator := func() *infer.Generator {
		g, err := infer.NewGenerator(ctx, m.config.ModelConfig(), m.recipe, m.weights, device(t), infer.Cache{Batch: 1, Context: 100})
		require.NoError(t, err)
		return g
	}
	var got []int32
	g := generator()
	require.NoError(t, g.Generate(ctx, prompt, 20, infer.Sampling{TopP: 1}, func(token int32) bool {
		got = append(got, token)
		return true
	}))
	require.Len(t, got, 20)
	all := append(slices.Clone(prompt), got...)
	logits, err := generator().Logits(ctx, all[:99])
	require.NoError(t, err)
	for i, token := range got {
		best := 0
		for j, x := range logits[79+i] {
			if x > logits[79+i][best] {
				best = j
			}
		}
		require.Equal(t, token, int32(best), "token %d", i)
	}

	seq := m.config.Data.Seq
	total := 0.0
	for i := range seq {
		total += crossEntropy(logits[i], all[i+1])
	}
	loss, err := evaluate(t, m, m.recipe, m.weights, device(t), m.val[:seq+1], 1, seq)
	require.NoError(t, err)
	require.InEpsilon(t, loss, total/float64(seq), 1e-5)
}

func crossEntropy(logits []float32, target int32) float64 {
	sum := 0.0
	for _, x := range logits {
		sum += math.Exp(float64(x))
	}
	return math.Log(sum) - float64(logits[target])
}

func TestGenerateRefuses(t *testing.T) {
	m := trainSmall(t, "bf16")
	ctx := context.Background()
	g, err := infer.NewGenerator(ctx, m.config.ModelConfig(), m.recipe, m.weights, device(t), infer.Cache{Batch: 1, Context: 4})
	require.NoError(t, err)
	keep := func(int32) bool { return true }
	require.ErrorContains(t, g.Generate(ctx, nil, 1, infer.Sampling{TopP: 1}, keep), "empty")
	require.ErrorContains(t, g.Generate(ctx, make([]int32, 5), 1, infer.Sampling{TopP: 1}, keep), "context")
	require.ErrorContains(t, g.Generate(ctx, make([]int32, 2), 1, infer.Sampling{TopP: 0}, keep), "top-p")
	for _, id := range []int32{-1, 256} {
		require.ErrorContains(t, g.Generate(ctx, []int32{7, id}, 1, infer.Sampling{TopP: 1}, keep), fmt.Sprintf("token 1 of the prompt has the id %d", id))
	}
	n := 0
	require.NoError(t, g.Generate(ctx, make([]int32, 2), 99, infer.Sampling{TopP: 1, Temperature: 1}, func(int32) bool { n++; return true }))
	require.Equal(t, 3, n, "a context of 4 holds 2 prompt tokens; the third new token is not decoded")
}

// damaged has a NaN in one parameter.
type damaged struct{ infer.Weights }

func (w damaged) Param(name string) ([]float32, error) {
	x, err := w.Weights.Param(name)
	if name == "model.norm.weight" {
		x[5] = float32(math.NaN())
	}
	return x, err
}

// With non-finite logits no token is drawn.
func TestGenerateFromDamagedWeights(t *testing.T) {
	m := trainSmall(t, "bf16")
	g, err := infer.NewGenerator(t.Context(), m.config.ModelConfig(), m.recipe, damaged{m.weights}, device(t), infer.Cache{Batch: 1, Context: 4})
	require.NoError(t, err)
	for _, temperature := range []float64{0, 1} {
		err := g.Generate(t.Context(), []int32{1}, 1, infer.Sampling{TopP: 1, Temperature: temperature}, func(id int32) bool {
			require.Fail(t, "drawn", "%d", id)
			return false
		})
		require.ErrorContains(t, err, "the logits are not finite")
	}
	_, err = evaluate(t, m, m.recipe, damaged{m.weights}, device(t), m.val, 2, 32)
	require.ErrorContains(t, err, "the loss of tokens 0 to 64 is NaN")
}

// The last report has the returned mean.
func TestEvaluateReports(t *testing.T) {
	m := trainSmall(t, "bf16")
	e, err := infer.NewEvaluator(t.Context(), m.config.ModelConfig(), m.recipe, m.weights, device(t), infer.Windows{Batch: 4, Seq: 32}, nil)
	require.NoError(t, err)
	var at []int64
	var mean float64
	loss, err := e.Evaluate(t.Context(), m.val[:301], func(done, all int64, soFar float64) {
		require.EqualValues(t, 300, all)
		at, mean = append(at, done), soFar
	})
	require.NoError(t, err)
	require.Equal(t, []int64{128, 256, 300}, at)
	require.Equal(t, loss, mean)
}

// The sharpness of an evaluation is the mean over the complete windows, each from the logits
// that generation has after its last token, without the four columns of padding.
func TestEvaluateSharpness(t *testing.T) {
	for _, name := range []string{"bf16", "fp8-head"} {
		m := trainSmall(t, name, func(c *train.Model) { c.Vocab = 300 })
		c := m.config.ModelConfig()
		require.Equal(t, 304, c.PaddedVocab())
		e, err := infer.NewSharpnessEvaluator(t.Context(), c, m.recipe, m.weights, device(t), infer.Windows{Batch: 4, Seq: 32}, nil)
		require.NoError(t, err)
		loss, err := e.Evaluate(t.Context(), m.val[:301], nil)
		require.NoError(t, err)
		plain, err := evaluate(t, m, m.recipe, m.weights, device(t), m.val[:301], 4, 32)
		require.NoError(t, err)
		require.Equal(t, plain, loss)
		want := 0.0
		for from := 0; from < 9*32; from += 32 {
			g, err := infer.NewGenerator(t.Context(), c, m.recipe, m.weights, device(t), infer.Cache{Batch: 1, Context: 32})
			require.NoError(t, err)
			ids := make([]int32, 32)
			for i := range ids {
				ids[i] = int32(m.val[from+i])
			}
			logits, err := g.Logits(t.Context(), ids)
			require.NoError(t, err)
			want += infer.Sharpness(logits[31], int(m.val[from+32])) / 9
		}
		require.InEpsilon(t, want, e.Sharpness, 1e-3, name)
	}
}

// mute is a device that fails to copy results.
type mute struct{ backend.Backend }

func (mute) Read(*backend.Tensor, []byte) error { return backend.ErrDeviceLost }

func TestEvaluateReportsTheDevice(t *testing.T) {
	m := trainSmall(t, "bf16")
	e, err := infer.NewEvaluator(t.Context(), m.config.ModelConfig(), m.recipe, m.weights, mute{device(t)}, infer.Windows{Batch: 4, Seq: 32}, nil)
	require.NoError(t, err)
	_, err = e.Evaluate(t.Context(), m.val, nil)
	require.ErrorIs(t, err, backend.ErrDeviceLost)
}

// limited is a device in host memory with room for has bytes; asked is the last request.
type limited struct {
	backend.Backend
	has   int64
	asked *int64
}

func (l limited) Fits(bytes int64) error {
	if *l.asked = bytes; bytes > l.has {
		return errRefused
	}
	return nil
}

func (l limited) Load(programs ...*backend.Program) ([]backend.Executable, error) {
	if *l.asked == 0 || *l.asked > l.has {
		return nil, errors.New("Load was called before Fits")
	}
	return l.Backend.Load(programs...)
}

var errRefused = errors.New("too little memory")

// Evaluator, Generator and MeasureSmoothing call Fits before Load; a longer context and a
// larger batch need more memory.
func TestFitsIsCalledFirst(t *testing.T) {
	m := trainSmall(t, "fp8-smooth")
	ctx, config := t.Context(), m.config.ModelConfig()
	for i, start := range []func(dev backend.Backend, n int) error{
		func(dev backend.Backend, n int) error {
			_, err := infer.NewEvaluator(ctx, config, m.recipe, m.weights, dev, infer.Windows{Batch: n, Seq: 32}, nil)
			return err
		},
		func(dev backend.Backend, n int) error {
			_, err := infer.NewGenerator(ctx, config, m.recipe, m.weights, dev, infer.Cache{Batch: 1, Context: n * 64})
			return err
		},
		func(dev backend.Backend, _ int) error {
			_, err := infer.MeasureSmoothing(ctx, config, m.recipe, m.weights, dev)
			return err
		},
	} {
		var need, more int64
		require.NoError(t, start(limited{device(t), math.MaxInt64, &need}, 1))
		require.Greater(t, need, int64(4*2*(4*32*32+3*32*48)), "more than the masters need")
		require.ErrorIs(t, start(limited{device(t), need - 1, new(int64)}, 1), errRefused)
		require.NoError(t, start(limited{device(t), need, new(int64)}, 1))
		require.NoError(t, start(limited{device(t), math.MaxInt64, &more}, 8))
		require.Equal(t, i < 2, more > need, "MeasureSmoothing depends on neither")
	}
}

// Cancelled after a token, generation emits no further token.
func TestGenerateStops(t *testing.T) {
	m := trainSmall(t, "bf16")
	g, err := infer.NewGenerator(t.Context(), m.config.ModelConfig(), m.recipe, m.weights, device(t), infer.Cache{Batch: 1, Context: 100})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	err = g.Generate(ctx, make([]int32, 2), 90, infer.Sampling{TopP: 1}, func(int32) bool {
		n++
		cancel()
		return true
	})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 1, n)
	// A cancelled context also stops the prefill.
	require.ErrorIs(t, g.Generate(ctx, make([]int32, 80), 1, infer.Sampling{TopP: 1}, nil), context.Canceled)
}
