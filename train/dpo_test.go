package train

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/ref"
	"octet/data"
	"octet/fp8"
	"octet/nn"
	"octet/recipe"
	"octet/tokenizer"
)

// preferences writes a preference set of bytes and opens it: some words, then an answer of one of
// two kinds, of which the first is chosen. swapped exchanges chosen and rejected.
func preferences(t *testing.T, swapped bool) *data.Corpus {
	t.Helper()
	dir, tok := t.TempDir(), tokenizer.OfBytes()
	for _, f := range tok.Files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, f.Name), f.Data, 0o600))
	}
	p := data.Prepared{Kind: data.KindPreference, Tokenizer: data.PreparedTokenizer{SHA256: tok.SHA256(), Vocab: 256}}
	rng := rand.New(rand.NewPCG(8, 8))
	words := strings.Fields("func return if err nil for range len")
	for _, part := range []string{data.TrainPart, data.ValPart} {
		var ids []uint16
		var index, mask []byte
		pairs := map[string]int{data.TrainPart: 61, data.ValPart: 21}[part]
		for range pairs {
			prompt := words[rng.IntN(8)] + " " + words[rng.IntN(8)] + ":"
			number := rng.IntN(100)
			answers := []string{fmt.Sprintf("yes %d, yes", number), fmt.Sprintf("%d, no no", number)}
			if swapped {
				answers[0], answers[1] = answers[1], answers[0]
			}
			for _, answer := range answers {
				for i, b := range append([]byte(prompt+answer), 0) {
					if len(ids)%8 == 0 {
						mask = append(mask, 0)
					}
					if i >= len(prompt) {
						mask[len(ids)/8] |= 1 << (len(ids) % 8)
					}
					ids = append(ids, uint16(b))
				}
				index = binary.LittleEndian.AppendUint64(index, uint64(len(ids)))
			}
		}
		var shard bytes.Buffer
		require.NoError(t, data.WriteShard(&shard, ids))
		name := data.ShardName(part, 0)
		for suffix, raw := range map[string][]byte{".bin": shard.Bytes(), ".idx": index, ".mask": mask} {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name+suffix), raw, 0o600))
		}
		p.Shards = append(p.Shards, data.PreparedShard{Name: name, Tokens: int64(len(ids)), Documents: int64(2 * pairs), Bytes: int64(len(ids) - 2*pairs)})
	}
	require.NoError(t, data.WritePrepared(dir, p))
	c, err := data.OpenFiles([]string{dir}, data.Options{ValBytes: 1 << 30, Answers: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// smallDPO is a small run on preferences.
func smallDPO(t *testing.T, recipe string) Config {
	c := small(t, recipe)
	c.Train.Objective = ObjectiveDPO
	return c
}

// newDPO starts a run on preferences.
func newDPO(t *testing.T, c Config, swapped bool) *team {
	t.Helper()
	corpus := preferences(t, swapped)
	if c.Train.Objective != ObjectiveDPO { // which refuses pairs
		corpus.Documents = data.KindCompletion
	}
	tr := newTeamOn(t, corpus, func() (*Job, error) { return NewJob(c, specOf(t, "emu")) }, 2, nil)
	require.NoError(t, tr.Init(t.Context()))
	return tr
}

// Before the first update the policy is the reference, and the loss is ln 2, exactly, under every
// recipe.
func TestDPOBeginsAtLn2(t *testing.T) {
	experts := smallDPO(t, "fp8-smooth")
	experts.Model.Experts = 4
	list := map[string]Config{"experts": experts}
	for _, name := range recipe.Names() {
		list[name] = smallDPO(t, name)
	}
	for name, c := range list {
		t.Run(name, func(t *testing.T) {
			c.Data.Attention = AttendDocument
			tr := newDPO(t, c, false)
			_, err := tr.MeasureReference(t.Context(), nil)
			require.NoError(t, err)
			val, p, err := tr.EvaluatePairs(t.Context())
			require.NoError(t, err)
			require.InDelta(t, math.Ln2, val, 1e-15) // the mean of 21 equal values
			require.Equal(t, Preference{Pairs: 21}, p)
			first := steps(t, tr, 1)[0]
			require.Equal(t, math.Ln2, first.Loss)
			require.Equal(t, Preference{Pairs: 2}, first.Preference)
			require.Positive(t, first.GradNorm)
			require.False(t, first.Skipped)
			require.NotEqual(t, math.Ln2, steps(t, tr, 1)[0].Loss)
		})
	}
}

// exactDPO is the loss of a batch by its definition, on the float64 reference backend without
// rounding.
type exactDPO struct {
	t               *testing.T
	dev             *ref.Backend
	run             backend.Executable
	params          map[string]*backend.Tensor
	tokens, targets *backend.Tensor
	losses          *backend.Tensor
	c               Config
	reference       []float64 // of the rows of the batch
}

func newExactDPO(t *testing.T, c Config, inputs, targets []int32) *exactDPO {
	t.Helper()
	plain, err := recipe.Lookup("fp32")
	require.NoError(t, err)
	c.Model.Activation = string(nn.SwiGLU)
	vars := backend.NewVars()
	m, err := nn.New(c.ModelConfig(), plain, vars)
	require.NoError(t, err)
	n := len(inputs)
	e := &exactDPO{
		t: t, c: c, params: map[string]*backend.Tensor{}, tokens: vars.Tensor(backend.Input, "tokens", fp8.I32, n),
		targets: vars.Tensor(backend.Input, "targets", fp8.I32, n), losses: vars.Tensor(backend.Output, "losses", fp8.F32, n),
	}
	pass := m.Pass(vars.Program("loss"), nn.Frozen, nn.Shape{Batch: c.Train.MicroBatch, Seq: c.Data.Seq, Control: vars.Tensor(backend.Input, "step.control", fp8.I32, backend.ControlWords)})
	pass.Losses = e.losses
	m.CastWeights(pass)
	m.Loss(pass, e.tokens, e.targets)
	require.NoError(t, pass.Err())
	e.dev = ref.Open(nil, ref.Exact)
	loaded, err := e.dev.Load(pass.Program)
	require.NoError(t, err)
	e.run = loaded[0]
	for _, p := range m.Params {
		e.params[p.Name] = p.Master
	}
	for x, list := range map[*backend.Tensor][]int32{e.tokens: inputs, e.targets: targets} {
		values := make([]float64, n)
		for i, v := range list {
			values[i] = float64(v)
		}
		require.NoError(t, e.dev.SetValues(x, values))
	}
	return e
}

func (e *exactDPO) set(name string, x []float64) {
	require.NoError(e.t, e.dev.SetValues(e.params[name], x))
}

// logProbs returns those of the rows.
func (e *exactDPO) logProbs() (list []float64) {
	require.NoError(e.t, e.run.Run(e.t.Context()))
	losses, err := e.dev.Values(e.losses)
	require.NoError(e.t, err)
	for row := range e.c.Train.MicroBatch {
		sum := 0.0
		for _, x := range losses[row*e.c.Data.Seq:][:e.c.Data.Seq] {
			sum -= x
		}
		list = append(list, sum)
	}
	return list
}

// loss returns the mean of −log σ(z).
func (e *exactDPO) loss() float64 {
	l, r, sum := e.logProbs(), e.reference, 0.0
	for i := 0; i < len(l); i += 2 {
		z := e.c.Train.DPOBeta * (l[i] - r[i] - l[i+1] + r[i+1])
		sum += math.Log(1 + math.Exp(-z))
	}
	return sum / float64(len(l)/2)
}

// allWeights returns the values of all parameters.
func allWeights(t *testing.T, tr *team) map[string][]float64 {
	t.Helper()
	all := map[string][]float64{}
	for _, p := range tr.Model.Params {
		x, err := tr.Weights(p)
		require.NoError(t, err)
		for _, v := range x {
			all[p.Name] = append(all[p.Name], float64(v))
		}
	}
	return all
}

// The loss and the gradients of a step are those of the definition: central differences of the loss
// in float64, of some elements and along the gradient of each parameter.
func TestDPOGradients(t *testing.T) {
	c := smallDPO(t, "fp32")
	c.Train.DPOBeta, c.Optimizer.LR, c.Optimizer.Warmup, c.Train.Steps = 0.3, 5e-3, 0, 50
	tr := newDPO(t, c, false)
	initial := allWeights(t, tr)
	steps(t, tr, 3)
	before := allWeights(t, tr)
	inputs, targets := make([]int32, 4*32), make([]int32, 4*32)
	loader := tr.Trainer.device.loader
	at := loader.Position()
	require.NoError(t, loader.Next(inputs, targets))
	require.NoError(t, loader.Restore(at))
	got := steps(t, tr, 1)[0]

	e := newExactDPO(t, c, inputs, targets)
	for name, x := range initial {
		e.set(name, x)
	}
	e.reference = e.logProbs()
	for name, x := range before {
		e.set(name, x)
	}
	require.InDelta(t, e.loss(), got.Loss, 2e-5)
	require.Greater(t, math.Abs(got.Loss-math.Ln2), 1e-3)

	slope := func(name string, direction []float64) float64 {
		const h = 1e-5
		shifted := func(h float64) float64 {
			x := append([]float64{}, before[name]...)
			for i := range x {
				x[i] += h * direction[i]
			}
			e.set(name, x)
			return e.loss()
		}
		up, down := shifted(h), shifted(-h)
		e.set(name, before[name])
		return (up - down) / (2 * h)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	squares := 0.0
	for _, p := range tr.Model.Params {
		grad := values(t, tr.ranks[0], p.Grad)
		norm := 0.0
		for _, g := range grad {
			norm += g * g
		}
		squares += norm
		norm = math.Sqrt(norm)
		along := make([]float64, len(grad))
		for i, g := range grad {
			along[i] = g / norm
		}
		require.InEpsilon(t, slope(p.Name, along), norm, 1e-4, p.Name)
		for range 3 {
			unit := make([]float64, len(grad))
			i := rng.IntN(p.Rows * p.Cols())
			unit[i] = 1
			require.InDelta(t, slope(p.Name, unit), grad[i], 1e-4*norm, "%s[%d]", p.Name, i)
		}
	}
	require.InEpsilon(t, math.Sqrt(squares), got.GradNorm, 1e-5)
}

// Exchanging chosen and rejected turns the first gradient around, and β multiplies it.
func TestDPODirection(t *testing.T) {
	c := smallDPO(t, "fp32")
	_, plain := gradients(t, newDPO(t, c, false))
	_, swapped := gradients(t, newDPO(t, c, true))
	c.Train.DPOBeta *= 4
	_, strong := gradients(t, newDPO(t, c, false))
	for name, x := range plain {
		sum := make([]float64, len(x))
		for i := range x {
			require.Equal(t, 4*x[i], strong[name][i], name)
			sum[i] = x[i] + swapped[name][i]
		}
		require.Less(t, normOf(sum)/normOf(x), 1e-5, name)
	}
}

// A run learns which answers are preferred, of prompts that it has not seen. Trained on the exchanged
// answers, it learns the opposite.
func TestDPOLearnsThePreference(t *testing.T) {
	for _, name := range []string{"bf16", "fp8-smooth"} {
		c := smallDPO(t, name)
		c.Train.Steps, c.Train.DPOBeta, c.Train.MicroBatch = 40, 0.5, 8
		for _, swapped := range []bool{false, true} {
			tr := newDPO(t, c, swapped)
			list := steps(t, tr, 40)
			last := list[39].Preference
			require.InDelta(t, 1, last.Accuracy, 0.05)
			require.Positive(t, last.Margin)
			require.Less(t, list[39].Loss, 0.3)
			loss, val, err := tr.EvaluatePairs(t.Context())
			require.NoError(t, err)
			require.Greater(t, val.Accuracy, 0.95)
			require.Less(t, loss, 0.3)
			other := preferences(t, !swapped)
			d := tr.Trainer.device
			d.pairs.val, err = other.Pairs(data.LoaderOptions{Seq: c.Data.Seq}, true)
			require.NoError(t, err)
			for i := range tr.Trainer.reference.val {
				if i%2 == 0 {
					r := tr.Trainer.reference.val[i : i+2]
					r[0], r[1] = r[1], r[0]
				}
			}
			_, val, err = tr.EvaluatePairs(t.Context())
			require.NoError(t, err)
			require.Less(t, val.Accuracy, 0.05)
		}
	}
}

// A resumed run has the bits of an uninterrupted one: reference, losses and weights, also across a
// change of recipe, with telemetry, and after a rewind.
func TestDPORestores(t *testing.T) {
	sharded := smallDPO(t, "fp8-smooth")
	sharded.Train.Ranks, sharded.Train.ZeroStage = 2, 1
	for name, c := range map[string]Config{
		"bf16": smallDPO(t, "bf16"), "fp8-smooth": smallDPO(t, "fp8-smooth"), "fp16": smallDPO(t, "fp16"),
		"sharded": sharded, "schedule": scheduled(smallDPO(t, "bf16"), RecipeChange{5, "fp8-smooth"}),
	} {
		t.Run(name, func(t *testing.T) {
			c.Train.Steps, c.Train.Accumulate, c.Train.HealthEvery = 8, 2, 1
			uninterrupted := newDPO(t, c, false)
			want := steps(t, uninterrupted, 8)
			require.Equal(t, math.Ln2, want[0].Loss)

			stopped := newDPO(t, c, false)
			steps(t, stopped, 4)
			state := snapshot(t, stopped)
			resumed := newDPO(t, c, false)
			require.NoError(t, resumed.Restore(t.Context(), state))
			counts, err := resumed.MeasureReference(t.Context(), nil)
			require.NoError(t, err)
			require.Zero(t, counts) // known
			require.Equal(t, want[4:6], steps(t, resumed, 2))
			_, err = resumed.Health(t.Context())
			require.NoError(t, err)
			require.Equal(t, want[6:], steps(t, resumed, 2))
			require.Equal(t, uninterrupted.reference, resumed.reference)
			require.Equal(t, saved(t, uninterrupted), saved(t, resumed))
			a, err := uninterrupted.Evaluate(t.Context())
			require.NoError(t, err)
			b, err := resumed.Evaluate(t.Context())
			require.NoError(t, err)
			require.Equal(t, a, b)

			require.NoError(t, resumed.Rewind(t.Context(), state))
			require.Equal(t, uninterrupted.reference, resumed.reference)
			require.NotEqual(t, want[4].Loss, steps(t, resumed, 1)[0].Loss) // other pairs
			require.NoError(t, resumed.Init(t.Context()))
			require.Nil(t, resumed.reference.train)
			require.Equal(t, want[:2], steps(t, resumed, 2))
		})
	}
}

// A step is the mean over its pairs, however they are divided into micro-batches and ranks.
func TestDPOPairsAreDividedAlike(t *testing.T) {
	split := func(micro, accumulate, ranks, stage int) *team {
		c := smallDPO(t, "fp32")
		c.Train.MicroBatch, c.Train.Accumulate, c.Train.Ranks, c.Train.ZeroStage = micro, accumulate, ranks, stage
		return newDPO(t, c, false)
	}
	whole := split(8, 1, 1, 0)
	want := steps(t, whole, 3)
	val, err := whole.Evaluate(t.Context())
	require.NoError(t, err)
	for _, tr := range []*team{split(4, 2, 1, 0), split(4, 1, 2, 0), split(2, 2, 2, 1), split(2, 1, 4, 1), split(2, 1, 4, 3)} {
		got := steps(t, tr, 3)
		for i := range want {
			require.InDelta(t, want[i].Loss, got[i].Loss, 1e-6)
			require.InEpsilon(t, want[i].GradNorm, got[i].GradNorm, 1e-4)
			require.InDelta(t, want[i].Preference.Margin, got[i].Preference.Margin, 1e-5)
			require.Equal(t, want[i].Preference.Pairs, got[i].Preference.Pairs)
		}
		require.Equal(t, math.Ln2, got[0].Loss)
		require.Equal(t, whole.reference, tr.reference)
		loss, err := tr.Evaluate(t.Context())
		require.NoError(t, err)
		require.InDelta(t, val, loss, 1e-5)
	}
}

// Steps allocate nothing.
func TestDPODoesNotAllocate(t *testing.T) {
	c := smallDPO(t, "fp8-smooth")
	c.Train.Accumulate = 2
	tr := newDPO(t, c, false)
	steps(t, tr, 2)
	require.Zero(t, testing.AllocsPerRun(20, func() { _, _ = tr.Trainer.Next(t.Context()) }))
}

// A NaN in a weight skips the step; the op that reads it is named.
func TestDPONonFinite(t *testing.T) {
	c := smallDPO(t, "fp8-smooth")
	c.Train.OnNonfinite = 2
	tr := newDPO(t, c, false)
	steps(t, tr, 1)
	gain := tr.Vars.Lookup("model.norm.weight")
	raw, err := tr.read(gain)
	require.NoError(t, err)
	require.NoError(t, tr.write(gain, append(fp8.AppendFloats(nil, float32(math.NaN())), raw[4:]...)))
	require.True(t, steps(t, tr, 1)[0].Skipped)
	_, err = tr.Next(t.Context())
	require.ErrorIs(t, err, ErrNonFinite)
	require.ErrorContains(t, err, "norm")
	// The initial weights must be finite.
	tr = newDPO(t, c, false)
	require.NoError(t, tr.write(tr.Vars.Lookup("model.norm.weight"), append(fp8.AppendFloats(nil, float32(math.NaN())), raw[4:]...)))
	_, err = tr.MeasureReference(t.Context(), nil)
	require.ErrorContains(t, err, "model.init")
}

// What has no pairs, or belongs to another reference, is refused by name.
func TestDPORefuses(t *testing.T) {
	c := smallDPO(t, "bf16")
	err := c.CheckCorpus(testCorpus())
	require.ErrorContains(t, err, "--kind preference")
	tr := newDPO(t, c, false)
	_, _, err = tr.EvaluatePairs(t.Context())
	require.ErrorContains(t, err, "MeasureReference")
	steps(t, tr, 1)
	state := snapshot(t, tr)

	other := c
	other.Data.Seq = 48
	require.ErrorContains(t, newDPO(t, other, false).Restore(t.Context(), state), "data.seq = 32")
	other = c
	other.Train.Objective = ObjectiveCrossEntropy
	require.ErrorContains(t, newDPO(t, other, false).Restore(t.Context(), state), `train.objective = "dpo"`)
	plain := newDPO(t, other, false)
	_, _, err = plain.EvaluatePairs(t.Context())
	require.ErrorContains(t, err, "call Evaluate")
	steps(t, plain, 1)
	require.ErrorContains(t, tr.Restore(t.Context(), snapshot(t, plain)), "no log-probabilities of the reference")

	short := c
	short.Data.Seq = 4
	_, err = newDPO(t, short, false).Next(t.Context())
	require.ErrorContains(t, err, "data.seq = 4 is too short")
}

// A checkpoint stores log-probabilities without loss.
func TestReferenceIsStoredExactly(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	var list []float64
	lost := 0
	for i := range 1000 {
		x := -math.Exp(12*rng.NormFloat64()) / 3
		if i%10 == 0 {
			x = float64(float32(x)) * (1 + 0x1p-25) // between two FP32 values
		}
		y := roundPair(x)
		require.InEpsilon(t, x, y, 0x1p-47)
		require.Equal(t, y, roundPair(y))
		if x != y {
			lost++
		}
		list = append(list, y)
	}
	require.Greater(t, lost, 500)
	var raw bytes.Buffer
	x := referenceTensor("x", list)
	require.Equal(t, []int{500, 4}, x.Shape)
	require.NoError(t, x.Data(&raw))
	values := make([]float32, 2000)
	fp8.F32.Decode(values, raw.Bytes())
	for i, y := range list {
		require.Equal(t, y, float64(values[2*i])+float64(values[2*i+1]))
	}
}
