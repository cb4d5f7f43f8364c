package train

import (
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/data"
	"octet/fp8"
	"octet/nn"
	"octet/recipe"
)

// packedRun runs a forward and a backward pass of a model in FP32 over one row with these
// tokens and starts of documents. It returns the loss of each token and the gradients of the
// sum of the losses.
func packedRun(t *testing.T, ids, starts []int32) (losses []float64, grads map[string][]float64) {
	t.Helper()
	const vocab = 40
	plain, err := recipe.Lookup("fp32")
	require.NoError(t, err)
	vars := backend.NewVars()
	m, err := nn.New(nn.Config{
		Layers: 2, Dim: 32, Heads: 4, KVHeads: 2, FFN: 48, Vocab: vocab,
		Activation: nn.SwiGLU, RopeTheta: 10000, NormEps: 1e-5, InitStd: 0.3,
	}, plain, vars)
	require.NoError(t, err)
	m.DeclareGrads()
	n := len(ids)
	input := func(name string, n int) *backend.Tensor { return vars.Tensor(backend.Input, name, fp8.I32, n) }
	tokens, targets, control := input("tokens", n), input("targets", n), input("step.control", backend.ControlWords)
	shape := nn.Shape{Batch: 1, Seq: n, Control: control}
	if starts != nil {
		shape.Start = input("start", n)
	}
	pass := m.Pass(vars.Program("micro"), nn.Train, shape)
	m.CastWeights(pass)
	perToken := m.LossAndGrads(pass, tokens, targets)
	loss := vars.Tensor(backend.Output, "losses", fp8.F32, n)
	zero := vars.Tensor(backend.Input, "zero", fp8.F32, n)
	pass.Add(&backend.Add{A: perToken, B: zero, Out: []backend.Cast{{Out: loss}}})
	require.NoError(t, pass.Err())

	dev, err := backend.Open("emu", backend.Options{Threads: 2})
	require.NoError(t, err)
	defer dev.Close()
	loaded, err := backend.Load(dev, pass.Program)
	require.NoError(t, err)
	write := func(x *backend.Tensor, list []int32) {
		var raw []byte
		for _, v := range list {
			raw = binary.LittleEndian.AppendUint32(raw, uint32(v))
		}
		require.NoError(t, dev.Write(x, raw))
	}
	write(tokens, ids)
	next := make([]int32, n) // of the same document or, at its end, token 1
	for i := range next {
		if next[i] = 1; i+1 < n && ids[i] != 0 {
			next[i] = ids[i+1]
		}
	}
	write(targets, next)
	if starts != nil {
		write(shape.Start, starts)
	}
	require.NoError(t, dev.Write(control, backend.Control{InvTokens: 1}.AppendTo(nil)))
	for x, value := range m.Constants() {
		require.NoError(t, dev.Write(x, fp8.AppendFloats(nil, slices.Repeat([]float32{value}, x.Elems())...)))
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for _, p := range m.Params {
		x := make([]float32, p.Master.Elems())
		for i := range x {
			if x[i] = float32(0.3 * rng.NormFloat64()); !p.Matrix {
				x[i]++
			}
		}
		require.NoError(t, dev.Write(p.Master, fp8.AppendFloats(nil, x...)))
	}
	require.NoError(t, loaded[0].Run(t.Context()))
	read := func(x *backend.Tensor) []float64 {
		raw := make([]byte, x.Bytes())
		require.NoError(t, dev.Read(x, raw))
		return decodeAll(fp8.F32, raw)
	}
	grads = map[string][]float64{}
	for _, p := range m.Params {
		grads[p.Name] = read(p.Grad)
	}
	return read(loss), grads
}

// Documents in one row have the losses and gradients of the documents in rows of their own,
// although their positions differ: rotary positions are relative. Without Start they do not.
func TestDocumentsInARow(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, lengths := range [][]int{{130, 70}, {1, 128, 64}, {40, 1, 1, 230}} {
		var row, starts []int32
		var apart []float64
		sum := map[string][]float64{}
		for _, n := range lengths {
			document := make([]int32, n) // token 0 ends it
			for i := range n - 1 {
				document[i] = 1 + rng.Int32N(39)
			}
			row = append(row, document...)
			losses, grads := packedRun(t, document, nil)
			apart = append(apart, losses...)
			for name, g := range grads {
				if sum[name] == nil {
					sum[name] = make([]float64, len(g))
				}
				for i, x := range g {
					sum[name][i] += x
				}
			}
		}
		starts = make([]int32, len(row))
		data.Starts(starts, row, len(row), 0)
		packed, grads := packedRun(t, row, starts)
		for i, want := range apart {
			require.InEpsilon(t, want, packed[i], 1e-5, "token %d of %v", i, lengths)
		}
		require.InEpsilon(t, total(apart), total(packed), 1e-6, "%v", lengths)
		for name, want := range sum {
			norm := 0.0
			for i, x := range want {
				norm = math.Hypot(norm, x-grads[name][i])
			}
			require.Less(t, norm, 1e-5*normOf(want), "%s of %v", name, lengths)
		}
		causal, _ := packedRun(t, row, nil)
		require.Greater(t, math.Abs(total(causal)/total(apart)-1), 1e-4, "%v", lengths)
		first := lengths[0]
		require.InDeltaSlice(t, apart[:first], causal[:first], 1e-4, "the first document has none before it")
	}
}

func total(x []float64) (sum float64) {
	for _, v := range x {
		sum += v
	}
	return sum
}

func normOf(x []float64) (norm float64) {
	for _, v := range x {
		norm = math.Hypot(norm, v)
	}
	return norm
}

// documents is a config with data.attention = "document".
func documents(t *testing.T) Config {
	c := small(t, "fp8-smooth")
	c.Data.Attention = "document"
	return c
}

// newlyEnded ends a document with every space of testCorpus.
func newlyEnded(tr *team) *team {
	for _, r := range tr.ranks {
		r.corpus.EndOfText = ' '
	}
	return tr
}

// The trainer and its evaluation give the starts of each batch to the device, and attention
// uses them. A causal run has no tensor for them.
func TestDocumentsInTraining(t *testing.T) {
	c := documents(t)
	tr := newlyEnded(newTrainer(t, c, 2, false))
	check := func(what string) {
		want := make([]int32, len(tr.device.tokens))
		data.Starts(want, tr.device.tokens, c.Data.Seq, ' ')
		require.NotEqual(t, make([]int32, len(want)), want)
		raw, err := tr.read(tr.Start)
		require.NoError(t, err)
		for i, w := range want {
			require.EqualValues(t, w, binary.LittleEndian.Uint32(raw[4*i:]), "%s: token %d", what, i)
		}
	}
	list := steps(t, tr, 3)
	check("a step")
	require.Zero(t, testing.AllocsPerRun(5, func() { _, _ = tr.Trainer.Next(context.Background()) }))
	loss, err := tr.Evaluate(t.Context())
	require.NoError(t, err)
	check("the evaluation")

	c.Data.Attention = "causal"
	causal := newTrainer(t, c, 2, false)
	require.Nil(t, causal.Start)
	require.Nil(t, causal.Vars.Lookup("start"))
	require.NotEqual(t, list, steps(t, causal, 3))
	steps(t, causal, 6)
	other, err := causal.Evaluate(t.Context())
	require.NoError(t, err)
	require.NotEqual(t, loss, other)
}

// Recomputation, threads and ranks change no bit, respectively no digit, of a run on documents.
func TestDocumentsAreReproducible(t *testing.T) {
	c := documents(t)
	want := steps(t, newlyEnded(newTrainer(t, c, 1, false)), 3)
	c.Train.Recompute = "block"
	require.Equal(t, want, steps(t, newlyEnded(newTrainer(t, c, 3, false)), 3))
	c.Train.MicroBatch, c.Train.Ranks = 2, 2
	for i, s := range steps(t, newlyEnded(newTrainer(t, c, 1, false)), 3) {
		require.InDelta(t, want[i].Loss, s.Loss, 1e-3)
	}
}

// Data whose documents cannot be told apart is refused.
func TestDocumentsNeedTheirEnd(t *testing.T) {
	j, err := NewJob(documents(t), specOf(t, "emu"))
	require.NoError(t, err)
	d, err := backend.Open("emu", backend.Options{})
	require.NoError(t, err)
	defer d.Close()
	corpus := testCorpus()
	corpus.EndOfText = -1
	_, err = NewTrainer(j, corpus, d, nil)
	require.ErrorContains(t, err, `data.attention = "document" needs the token that ends a document, which shards without a tokenizer do not record`)
	require.NoError(t, small(t, "bf16").CheckCorpus(corpus))
}

// A token that also stands inside documents does not tell them apart.
func TestEndOfTextInsideDocuments(t *testing.T) {
	c := small(t, "bf16")
	corpus := testCorpus()
	corpus.EndInside = true
	require.NoError(t, c.CheckCorpus(corpus))
	c.Data.Attention = AttendDocument
	require.ErrorContains(t, c.CheckCorpus(corpus), "prepare it with another --eos")
}
