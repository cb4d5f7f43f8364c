package cuda

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/conformance"
	_ "octet/backend/emu"
	"octet/csrc/standin"
	"octet/data"
	"octet/fp8"
	"octet/nn"
	"octet/recipe"
	"octet/train"
)

// small returns the configuration of a model whose layers all have different shapes.
func small(name string) train.Config {
	c := train.Default()
	c.Recipe = name
	c.Model.Layers, c.Model.Dim, c.Model.Heads, c.Model.KVHeads, c.Model.FFN = 2, 32, 2, 1, 48
	c.Data.Seq, c.Train.MicroBatch, c.Train.Accumulate = 16, 3, 2
	c.Train.HealthEvery = 5
	if name == "nvfp4" {
		c.Model.Layers = 3 // the first and the last one are BF16
	}
	return c
}

func forDevice(t *testing.T) backend.Spec {
	t.Helper()
	s, err := spec("")
	require.NoError(t, err)
	return s
}

// only lists the compute capabilities on which recipes run that do not run on all: those
// with block scales, and those that no version of cuBLASLt multiplies.
var only = map[string][]string{
	"te-block": {"sm_90"}, "torchao-row": {"sm_90"}, "torchao-row-gw-hp": {"sm_90"}, "deepseek-v3": {"sm_90"},
	"mxfp8": {"sm_100", "sm_120"}, "nvfp4": {"sm_100", "sm_120"}, "nvfp4-wgrad-bf16": {"sm_100", "sm_120"}, "nvfp4-plain": {"sm_100", "sm_120"},
	"mxfp6": {}, "mxfp4": {}, "mxfp4-rht": {}, "int8-switchback": {}, "fp16": {},
	"int8-wgrad": {}, "int8-unified": {}, "coat": {},
}

// runnable requires that a program contains only ops that the device can run.
func runnable(t *testing.T, s backend.Spec, p *backend.Program) {
	t.Helper()
	for _, n := range p.Nodes() {
		require.LessOrEqual(t, longestCasts(n.Op), maxCasts, "%s", n)
		o, ok := n.Op.(*backend.MatMul)
		if !ok {
			continue
		}
		require.True(t, hasEpilogue(o), "%s", n)
		if !o.A.DType.IsQuantized() {
			continue
		}
		require.True(t, !o.TransA && o.TransB, "%s", n)
		a, b := o.Encodings()
		require.True(t, s.Multiplies(a, b), "%s", n)
		_, _, k := o.Dims()
		require.Zero(t, k%16|o.A.DType.Bytes(o.A.LD)%16|o.B.DType.Bytes(o.B.LD)%16|o.Out.LD*o.Out.DType.Size()%16, "%s", n)
	}
}

func TestLoweredProgramsAreRunnable(t *testing.T) {
	for _, device := range []string{"", "sm_89", "sm_90", "sm_100", "sm_120"} {
		s, err := spec(device)
		require.NoError(t, err)
		for _, name := range recipe.Names() {
			devices, limited := only[name]
			if device != "" && !limited {
				continue // like the device ""
			}
			c := small(name)
			if slices.Contains(devices, "sm_100") {
				c.Model.Dim, c.Model.FFN, c.Data.Seq = 64, 96, 32 // k in multiples of 32
			}
			if limited && !slices.Contains(devices, device) {
				_, err := train.NewJob(c, s)
				require.ErrorIs(t, err, backend.ErrUnsupported, name)
				require.ErrorContains(t, err, "unsupported by backend "+s.DeviceName()+": recipe "+name)
				continue
			}
			lowersToRunnable(t, s, c)
			if name == "fp8-smooth" {
				c.Train.Recompute = "block"
				lowersToRunnable(t, s, c)
			}
		}
	}
}

// lowersToRunnable requires that the programs of a configuration lower to runnable ones.
func lowersToRunnable(t *testing.T, s backend.Spec, c train.Config) {
	t.Helper()
	j, err := train.NewJob(c, s)
	require.NoError(t, err, c.Recipe)
	before := j.Programs()[0].Hash()
	lowered, err := lower(s, j.Programs())
	require.NoError(t, err, c.Recipe)
	require.Equal(t, before, j.Programs()[0].Hash(), "lower does not change its input")
	declared := len(slices.Collect(j.Vars.All()))
	again, err := lower(s, j.Programs())
	require.NoError(t, err)
	require.Len(t, slices.Collect(j.Vars.All()), declared, "lowering again declares no variable")
	for i, p := range lowered {
		require.Equal(t, j.Programs()[i].Name(), p.Name())
		require.Equal(t, p.Hash(), again[i].Hash())
		runnable(t, s, p)
	}
	if strings.HasPrefix(c.Recipe, "fp8-") && c.Recipe != "fp8-lm-adam" { // which has BF16 GEMMs
		require.NotNil(t, j.Vars.Lookup("model.layers.0.self_attn.q_proj.weight.e4m3.t"), c.Recipe)
	}
	// Equal layers are still equal, except for their random streams.
	units, other := lowered[0].Blocks(), 1
	if c.Recipe == "nvfp4" {
		other = 2
	}
	require.Equal(t, units[0].Hash, units[other].Hash, c.Recipe)
}

// lowered is a backend of this lowering and emu's execution: a difference from emu is an
// error of the lowering.
const lowered = "lowered"

type loweredBackend struct{ backend.Backend }

func (b loweredBackend) Spec() backend.Spec {
	s := b.Backend.Spec()
	s.Backend = lowered
	return s
}

func registerLowered() {
	emu, _, err := backend.Find("emu")
	if err != nil {
		panic(err)
	}
	backend.Register(backend.Driver{
		Name: lowered, Priority: -2, Spec: spec,
		Lower: func(_ backend.Spec, list []*backend.Program) ([]*backend.Program, error) {
			s, err := spec("")
			if err != nil {
				return nil, err
			}
			return lower(s, list)
		},
		Open: func(device string, o backend.Options) (backend.Backend, error) {
			b, err := emu.Open(device, o)
			return loweredBackend{b}, err
		},
	})
}

func TestMain(m *testing.M) {
	registerLowered()
	if standin.InRank() { // with the cache of the process that started it
		os.Exit(m.Run())
	}
	// The tests compile the current kernels into a cache of their own.
	dir, err := os.MkdirTemp("", "octet-cuda")
	if err != nil {
		panic(err)
	}
	os.Setenv("XDG_CACHE_HOME", dir)
	m.Run()
	os.RemoveAll(dir)
}

// trained runs a few steps, a health check and an evaluation, and returns the bytes of
// every tensor.
func trained(t *testing.T, c train.Config, on string) (results []train.StepResult, val float64, tensors map[string][]byte) {
	t.Helper()
	j, err := train.NewJob(c, forDevice(t))
	require.NoError(t, err)
	declared := slices.Collect(j.Vars.All())
	d, err := backend.Open(on, backend.Options{Threads: 1})
	require.NoError(t, err)
	defer func() { require.NoError(t, d.Close()) }()
	text := strings.Repeat("to be or not to be, that is the question: ", 120)
	tr, err := train.NewTrainer(j, &data.Corpus{Train: data.Text(text[:4000]), Val: data.Text(text[4000:])}, d, nil)
	require.NoError(t, err)
	require.NoError(t, tr.Init(t.Context()))
	for range 4 {
		r, err := tr.Next(t.Context())
		require.NoError(t, err)
		r.Elapsed = 0
		results = append(results, r)
	}
	_, err = tr.Health(t.Context())
	require.NoError(t, err)
	val, err = tr.Evaluate(t.Context())
	require.NoError(t, err)
	tensors = map[string][]byte{}
	for _, x := range declared {
		raw := make([]byte, x.Bytes())
		require.NoError(t, d.Read(x, raw))
		tensors[x.Name] = raw
	}
	return results, val, tensors
}

// Lowering changes no bit of losses, gradients, codes, scales and moments. The random
// bits of stochastic casts depend on the tensor, not on its layout.
func TestLoweringKeepsEveryBit(t *testing.T) {
	for _, name := range []string{"bf16", "fp8-current", "fp8-delayed", "fp8-w3-bf16", "fp8-smooth", "fp8-smooth-token", "fp8-paper", "fp8-unit"} {
		t.Run(name, func(t *testing.T) {
			c := small(name)
			steps, val, want := trained(t, c, "emu")
			gotSteps, gotVal, got := trained(t, c, lowered)
			require.Equal(t, steps, gotSteps)
			require.Equal(t, val, gotVal)
			require.False(t, steps[3].Skipped)
			for x := range want {
				require.True(t, bytes.Equal(want[x], got[x]), "%s", x)
			}
		})
	}
}

// Programs of generation have a single row.
func TestGenerationIsLowered(t *testing.T) {
	s := forDevice(t)
	c := small("fp8-smooth-token")
	require.NoError(t, c.Resolve())
	r, err := recipe.Lookup(c.Recipe)
	require.NoError(t, err)
	vars := backend.NewVars()
	m, err := nn.New(c.ModelConfig(), r, vars)
	require.NoError(t, err)
	control := vars.Tensor(backend.Input, "step.control", fp8.I32, backend.ControlWords)
	pass := m.Pass(vars.Program("decode"), nn.Frozen, nn.Shape{Batch: 1, Seq: 1, Control: control})
	pass.Cache = m.NewCache(1, 64, 0)
	m.Logits(pass, vars.Tensor(backend.Input, "token", fp8.I32, 1), vars.Tensor(backend.Output, "logits", fp8.F32, 1, m.Config.PaddedVocab()))
	prepare := m.Pass(vars.Program("prepare"), nn.Train, nn.Shape{Control: control})
	m.CastWeights(prepare)
	list, err := lower(s, []*backend.Program{pass.Program, prepare.Program})
	require.NoError(t, err)
	for _, p := range list {
		runnable(t, s, p)
	}
}

// scratch declares variables for single ops.
type scratch struct {
	*backend.Vars
	p *backend.Program
}

func newScratch() scratch {
	v := backend.NewVars()
	return scratch{v, v.Program("p")}
}

func (w scratch) tensor(name string, d fp8.DType, shape ...int) *backend.Tensor {
	t := w.Tensor(backend.Stash, name, d, shape...)
	if d.IsQuantized() {
		t.Scale = w.Tensor(backend.Stash, name+".scale_inv", fp8.F32, 1)
	}
	return t
}

func TestRefusedGEMMs(t *testing.T) {
	for _, c := range []struct {
		want string
		op   func(w scratch) *backend.MatMul
	}{
		{"k is 40, A is a:e4m3[32, 40] and B is b:e4m3[16, 40]: the k of an FP8 GEMM must be a multiple of 16, such as 32 or 48", func(w scratch) *backend.MatMul {
			return &backend.MatMul{A: w.tensor("a", fp8.E4M3, 32, 40), B: w.tensor("b", fp8.E4M3, 16, 40), TransB: true, Out: w.tensor("y", fp8.BF16, 32, 16)}
		}},
		{"k is 5, A is a:e4m3[32, 5] and B is b:e4m3[16, 5]: the k of an FP8 GEMM must be a multiple of 16, such as 16", func(w scratch) *backend.MatMul {
			return &backend.MatMul{A: w.tensor("a", fp8.E4M3, 32, 5), B: w.tensor("b", fp8.E4M3, 16, 5), TransB: true, Out: w.tensor("y", fp8.BF16, 32, 16)}
		}},
		{"n is 24, B is b:e4m3[24, 32] and Out is y:bf16[3, 24]: the n of an FP8 GEMM must be a multiple of 16, such as 16 or 32", func(w scratch) *backend.MatMul {
			return &backend.MatMul{A: w.tensor("a", fp8.E4M3, 3, 32), B: w.tensor("b", fp8.E4M3, 24, 32), TransB: true, Out: w.tensor("y", fp8.BF16, 3, 24)}
		}},
		{"n is 20, B is b:e4m3[20, 32] and Out is y:fp32[16, 20]: the n of an FP8 GEMM must be a multiple of 16, such as 16 or 32", func(w scratch) *backend.MatMul {
			return &backend.MatMul{A: w.tensor("a", fp8.E4M3, 16, 32), B: w.tensor("b", fp8.E4M3, 20, 32), TransB: true, Out: w.tensor("y", fp8.F32, 16, 20)}
		}},
		{"e5m2 tensor fp32 × e5m2 tensor fp32, A is a:e5m2[16, 32]", func(w scratch) *backend.MatMul {
			return &backend.MatMul{A: w.tensor("a", fp8.E5M2, 16, 32), B: w.tensor("b", fp8.E5M2, 16, 32), TransB: true, Out: w.tensor("y", fp8.BF16, 16, 16)}
		}},
		{"e4m3ieee tensor fp32 × e4m3 tensor fp32, ", func(w scratch) *backend.MatMul {
			return &backend.MatMul{A: w.tensor("a", fp8.E4M3IEEE, 16, 32), B: w.tensor("b", fp8.E4M3, 16, 32), TransB: true, Out: w.tensor("y", fp8.BF16, 16, 16)}
		}},
		{"e4m3 row fp32 × e4m3 tensor fp32, A is a:e4m3[16, 32]", func(w scratch) *backend.MatMul {
			a := w.tensor("a", fp8.E4M3, 16, 32)
			a.Block, a.Scale = backend.PerRow, w.tensor("rows", fp8.F32, 16)
			return &backend.MatMul{A: a, B: w.tensor("b", fp8.E4M3, 16, 32), TransB: true, Out: w.tensor("y", fp8.BF16, 16, 16)}
		}},
		{"only FP8 operands have scales", func(w scratch) *backend.MatMul {
			a := w.tensor("a", fp8.BF16, 16, 32)
			a.Scale = w.tensor("s", fp8.F32, 1)
			return &backend.MatMul{A: a, B: w.tensor("b", fp8.BF16, 16, 32), TransB: true, Out: w.tensor("y", fp8.BF16, 16, 16)}
		}},
		{"is a view whose rows do not begin on multiples of 16 bytes", func(w scratch) *backend.MatMul {
			return &backend.MatMul{A: w.tensor("a", fp8.E4M3, 16, 48).Columns("half", 8, 32), B: w.tensor("b", fp8.E4M3, 16, 32), TransB: true, Out: w.tensor("y", fp8.BF16, 16, 16)}
		}},
		{"an FP8 GEMM reads a:e4m3[32, 16] transposed, and no op of these programs casts to it", func(w scratch) *backend.MatMul {
			return &backend.MatMul{A: w.tensor("a", fp8.E4M3, 32, 16), TransA: true, B: w.tensor("b", fp8.E4M3, 16, 32), TransB: true, Out: w.tensor("y", fp8.BF16, 16, 16)}
		}},
	} {
		w := newScratch()
		w.p.Add(c.op(w))
		require.NoError(t, w.p.Err())
		_, err := lower(forDevice(t), []*backend.Program{w.p})
		require.ErrorIs(t, err, backend.ErrUnsupported, c.want)
		require.ErrorContains(t, err, c.want)
		require.NotContains(t, err.Error(), "\n")
	}
	// An op that writes FP8 without a cast cannot write a transposed copy.
	w := newScratch()
	y := w.tensor("y", fp8.E4M3, 16, 16)
	a, b := w.tensor("a", fp8.E4M3, 16, 16), w.tensor("b", fp8.E4M3, 16, 16)
	w.p.Add(&backend.MatMul{A: a, B: b, TransB: true, Out: y})
	w.p.Add(&backend.MatMul{A: a, B: y, Out: w.tensor("z", fp8.F32, 16, 16)})
	_, err := lower(forDevice(t), []*backend.Program{w.p})
	require.ErrorIs(t, err, backend.ErrUnsupported)
	require.ErrorContains(t, err, "an FP8 GEMM reads y:e4m3[16, 16] transposed, but the op that writes it has no cast")
}

// TestLowering compares a lowered program with one written by hand.
func TestLowering(t *testing.T) {
	w := newScratch()
	x, control := w.tensor("x", fp8.BF16, 32, 16), w.Tensor(backend.Input, "step.control", fp8.I32, backend.ControlWords)
	weight, amax := w.tensor("w", fp8.E4M3, 48, 16), w.tensor("amax", fp8.F32, 1)
	w.p.Add(&backend.Quantize{X: w.tensor("master", fp8.F32, 48, 16), Out: []backend.Cast{{Out: weight}}})
	codes := func(name string, cols int) *backend.Tensor {
		c := w.p.Temp(name, fp8.E5M2, 32, cols)
		c.Scale = w.tensor(name+".scale_inv", fp8.F32, 1)
		return c
	}
	// both is read in both layouts, g only transposed, and as a view.
	both, g := w.p.Temp("both", fp8.E4M3, 32, 16), codes("g", 48)
	both.Scale = w.tensor("both.scale_inv", fp8.F32, 1)
	w.p.Add(&backend.Quantize{X: x, Out: []backend.Cast{{Out: both, Amax: amax}}})
	w.p.Add(&backend.Quantize{X: w.tensor("dy", fp8.BF16, 32, 48), Out: []backend.Cast{
		{Out: g, Amax: amax, Rounding: fp8.Stochastic, Control: control, Tokens: true},
	}})
	w.p.Add(&backend.MatMul{A: both, B: weight, TransB: true, Residual: w.tensor("r", fp8.F32, 32, 48), Out: w.tensor("y", fp8.BF16, 32, 48), Accum: backend.Fast})
	w.p.Add(&backend.MatMul{
		A: g.RowRange(16, 16).Columns("part", 16, 16), TransA: true, B: both.RowRange(0, 16), ColScale: w.tensor("c", fp8.F32, 16),
		Out: w.tensor("dw", fp8.F32, 16, 16), Accumulate: true,
	})
	require.NoError(t, w.p.Err())
	list, err := lower(forDevice(t), []*backend.Program{w.p})
	require.NoError(t, err)
	var b strings.Builder
	require.NoError(t, list[0].Dump(&b))
	require.Equal(t, strings.TrimPrefix(`
program p
- fwd Quantize X=master:fp32[48, 16] Out[0].Out:=w:e4m3[48, 16] Out[0].Out.Scale=w.scale_inv:fp32[1]
- fwd Quantize X=x:bf16[32, 16] Out[0].Out:=both:e4m3[32, 16] Out[0].Out.Scale=both.scale_inv:fp32[1] Out[0].Amax<>amax:fp32[1] Out[1].Out:=both.t:e4m3[16, 32] Out[1].Out.Scale=both.scale_inv:fp32[1] Out[1].Transpose=true
- fwd Quantize X=dy:bf16[32, 48] Out[0].Out:=g.t:e5m2[48, 32] Out[0].Out.Scale=g.scale_inv:fp32[1] Out[0].Amax<>amax:fp32[1] Out[0].Control=step.control:i32[16] Out[0].Rounding=stochastic Out[0].Tokens=true Out[0].Transpose=true Out[0].Stream=g
- fwd MatMul A=both:e4m3[32, 16] A.Scale=both.scale_inv:fp32[1] B=w:e4m3[48, 16] B.Scale=w.scale_inv:fp32[1] Out:=y.product:fp32[32, 48] TransB=true Accum=fast
- fwd Epilogue X=y.product:fp32[32, 48] Residual=r:fp32[32, 48] Out:=y:bf16[32, 48]
`, "\n"), b.String()[:strings.Index(b.String(), "- fwd MatMul A=part")])
	require.Contains(t, b.String(), "- fwd MatMul A=part.t:e5m2[16, 16]@g.t+528/32 A.Scale=g.scale_inv:fp32[1] B=both[0:16].t:e4m3[16, 16]@both.t+0/32 B.Scale=both.scale_inv:fp32[1] Out:=dw.product:fp32[16, 16] TransB=true")
	require.Contains(t, b.String(), "- fwd Epilogue X=dw.product:fp32[16, 16] ColScale=c:fp32[16] Out<>dw:fp32[16, 16] Accumulate=true")
}

// A list of casts that is too long for a kernel becomes several passes over the result.
func TestManyCasts(t *testing.T) {
	w := newScratch()
	add := &backend.Add{A: w.tensor("a", fp8.F32, 4, 6), B: w.tensor("b", fp8.F32, 4, 6)}
	for _, name := range strings.Fields("c d e f g h i j k") {
		add.Out = append(add.Out, backend.Cast{Out: w.tensor(name, fp8.BF16, 4, 6)})
	}
	w.p.Add(add)
	list, err := lower(forDevice(t), []*backend.Program{w.p})
	require.NoError(t, err)
	var kinds []string
	for _, n := range list[0].Nodes() {
		kinds = append(kinds, backend.OpKind(n))
	}
	require.Equal(t, []string{"Add", "Quantize", "Quantize", "Quantize"}, kinds)
}

// The device supports the shapes of the conformance suite's chains of several ops: a
// declined case would test nothing.
func TestChainsOfTheSuiteAreSupported(t *testing.T) {
	d, _, err := backend.Find(lowered)
	require.NoError(t, err)
	chains := 0
	for c := range conformance.Cases() {
		if strings.HasPrefix(c.Name, "chain/") {
			require.NoError(t, c.Run(t.Context(), d, ""), c.Name)
			chains++
		}
	}
	require.Equal(t, 4, chains)
}

// The head's chunks on this device have at least 1,024 tokens, which the plan counts. No
// tensor of a checkpoint depends on them, so a run can move between backends.
func TestHeadChunks(t *testing.T) {
	c := small("bf16")
	c.Model.Layers, c.Model.Vocab, c.Data.Seq, c.Train.MicroBatch = 1, 128_256, 1024, 2
	job := func(headTokens int) (chunks []int, temps int64, kept []string) {
		s := forDevice(t)
		require.Equal(t, 1024, s.HeadTokens)
		s.HeadTokens = headTokens
		j, err := train.NewJob(c, s)
		require.NoError(t, err)
		list, err := lower(s, j.Programs())
		require.NoError(t, err)
		for _, n := range list[0].Nodes() {
			if o, ok := n.Op.(*backend.CrossEntropy); ok {
				chunks = append(chunks, o.Logits.Rows())
			}
		}
		o, err := outline(s, list)
		require.NoError(t, err)
		for v := range j.Vars.All() {
			if v.Class == backend.Param || v.Class == backend.State {
				kept = append(kept, v.String())
			}
		}
		return chunks, o.Temps, kept
	}
	wide, temps, kept := job(1024)
	require.Equal(t, []int{1024, 1024}, wide)
	narrow, fewer, same := job(0)
	require.Len(t, narrow, 2048/128)
	const logits = 128_256 * (4 + 2) // FP32, and their gradient in BF16
	require.InDelta(t, (1024-128)*logits, temps-fewer, 1<<20)
	require.Equal(t, same, kept)
}
