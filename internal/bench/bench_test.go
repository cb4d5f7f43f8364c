package bench

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/backend"
	_ "octet/backend/cuda"
	_ "octet/backend/emu"
	"octet/fp8"
	"octet/recipe"
	"octet/train"
)

func open(t *testing.T) *Bench {
	t.Helper()
	b, err := Open(Options{Backend: "emu", Threads: 2})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

func TestPeaks(t *testing.T) {
	b := open(t)
	list, err := b.Peaks()
	require.NoError(t, err)
	require.Len(t, list, 2)
	for i, device := range []string{"1 thread", "2 threads"} {
		require.Contains(t, list[i].Device, device)
		require.Positive(t, list[i].PeakGFLOPs)
		require.Positive(t, list[i].CopyGBytes)
		require.GreaterOrEqual(t, list[i].Repeats, minBursts)
	}
	b.meter = nil
	list, err = b.Peaks()
	require.NoError(t, err)
	require.Empty(t, list)
}

// The GEMMs of a layer are those of a step: each has the layer's FLOPs, and matching shapes
// and formats.
func TestGEMM(t *testing.T) {
	b := open(t)
	formats := formats(t)
	layer := []Layer{{16, 32, 48}}
	cases, err := b.GEMM(layer, formats)
	require.NoError(t, err)
	require.Len(t, cases, len(formats)*len(Passes))
	var names []string
	for _, c := range cases {
		names = append(names, c.name+" "+c.shape)
		r, err := b.Measure(context.Background(), c)
		require.NoError(t, err)
		require.Empty(t, r.Unsupported)
		require.Equal(t, "gemm", r.Bench)
		require.InEpsilon(t, 2*16*32*48/r.Median/1e9, r.GFLOPs, 1e-12)
		require.InEpsilon(t, r.GFLOPs/r.PeakGFLOPs, r.PeakShare, 1e-12)
		require.True(t, r.Min <= r.Median && r.Median <= r.Max)
		require.Zero(t, r.CopyGBytes)
	}
	require.Equal(t, []string{
		"fp8 fprop 16x32x48", "fp8 dgrad 16x48x32", "fp8 wgrad 32x48x16",
		"bf16 fprop 16x32x48", "bf16 dgrad 16x48x32", "bf16 wgrad 32x48x16",
		"fp32 fprop 16x32x48", "fp32 dgrad 16x48x32", "fp32 wgrad 32x48x16",
	}, names)
	o := cases[1].program.Nodes()[0].Op.(*backend.MatMul)
	require.Equal(t, []fp8.DType{fp8.E5M2, fp8.E4M3, fp8.BF16}, []fp8.DType{o.A.DType, o.B.DType, o.Out.DType})

	// A device that multiplies equal formats only reads copies in E5M2.
	b.spec.Pairs = fp8.PerTensor([2]fp8.DType{fp8.E4M3IEEE, fp8.E4M3IEEE}, [2]fp8.DType{fp8.E5M2, fp8.E5M2})
	b.spec.E4M3 = fp8.E4M3IEEE
	cases, err = b.GEMM(layer, formats)
	require.NoError(t, err)
	o = cases[2].program.Nodes()[0].Op.(*backend.MatMul)
	require.Equal(t, []fp8.DType{fp8.E5M2, fp8.E5M2}, []fp8.DType{o.A.DType, o.B.DType})
	o = cases[0].program.Nodes()[0].Op.(*backend.MatMul)
	require.Equal(t, []fp8.DType{fp8.E4M3IEEE, fp8.E4M3IEEE}, []fp8.DType{o.A.DType, o.B.DType})
}

func formats(t *testing.T) []Operands {
	t.Helper()
	list, err := Formats()
	require.NoError(t, err)
	return list
}

// A recipe's operands have its formats and scales in every GEMM, and casts that fill both.
func TestGEMMOfRecipes(t *testing.T) {
	b := open(t)
	var list []Operands
	for _, name := range []string{"nvfp4", "int8-switchback", "deepseek-v3", "bf16-e8m5", "mxfp6", "fp16"} {
		r, err := recipe.Lookup(name)
		require.NoError(t, err)
		list = append(list, Operands{name, r})
	}
	cases, err := b.GEMM([]Layer{{32, 64, 128}}, list)
	require.NoError(t, err)
	var got []string
	for _, c := range cases {
		o := c.program.Nodes()[0].Op.(*backend.MatMul)
		x, y := o.Encodings()
		got = append(got, fmt.Sprintf("%s: %s by %s to %s", c.name, x, y, o.Out.DType))
		r, err := b.Measure(t.Context(), c)
		require.NoError(t, err)
		require.Empty(t, r.Unsupported)
		require.Positive(t, r.GFLOPs)
	}
	require.Equal(t, []string{
		"nvfp4 fprop: e2m1 1x16 e4m3+fp32 by e2m1 16x16 e4m3+fp32 to bf16",
		"nvfp4 dgrad: e2m1 1x16 e4m3+fp32 by e2m1 16x16 e4m3+fp32 to bf16",
		"nvfp4 wgrad: e2m1 1x16 e4m3+fp32 by e2m1 1x16 e4m3+fp32 to fp32",
	}, got[:3])
	require.Equal(t, []string{
		"int8-switchback dgrad: int8 row fp32 by int8 tensor fp32 to bf16",
		"int8-switchback wgrad: bf16 by bf16 to fp32",
		"deepseek-v3 fprop: e4m3 1x128 fp32 by e4m3 128x128 fp32 to bf16",
	}, got[4:7])
	require.Equal(t, "bf16-e8m5 fprop: bf16 by bf16 to bf16", got[9])
	require.Equal(t, "fp16 wgrad: fp16 by fp16 to fp32", got[17])

	b.spec.Pairs = fp8.PerTensor([2]fp8.DType{fp8.E4M3, fp8.E4M3})
	_, err = b.GEMM([]Layer{{32, 64, 128}}, list[:1])
	require.ErrorContains(t, err, "unsupported by backend emu: recipe nvfp4: layers.mlp.up_proj: fprop multiplies input in e2m1 1x16 e4m3+fp32")
}

func TestQuantize(t *testing.T) {
	b := open(t)
	cases, err := b.Quantize([]Matrix{{48, 33}})
	require.NoError(t, err)
	require.Len(t, cases, 15)
	for _, c := range []int{0, 4, 11} { // fp32, its pair, fp16 stochastic
		r, err := b.Measure(context.Background(), cases[c])
		require.NoError(t, err)
		bytes := map[int]float64{0: 4 + 1, 4: 4 + 1 + 1, 11: 2 + 1}[c]*48*33 + map[int]float64{0: 4 + 8, 4: 8 + 8, 11: 4 + 4 + 8 + 64}[c]
		require.InEpsilon(t, bytes/r.Median/1e9, r.GBytes, 0.01, r.Name)
		require.InEpsilon(t, r.GBytes/r.CopyGBytes, r.CopyShare, 1e-12)
		require.Zero(t, r.PeakGFLOPs)
	}
}

// Attention has the FLOPs of its op, and the backward reads what the forward wrote.
func TestAttention(t *testing.T) {
	b := open(t)
	cases, err := b.Attention([]Heads{{2, 48, 4, 2, 16}})
	require.NoError(t, err)
	require.Len(t, cases, 2)
	for i, gemms := range []float64{2, 5} {
		r, err := b.Measure(t.Context(), cases[i])
		require.NoError(t, err)
		require.Equal(t, []string{"attention", Directions[i], "2x48x4/2x16"}, []string{r.Bench, r.Name, r.Shape})
		require.InEpsilon(t, gemms*2*4*48*48/2*2*16/r.Median/1e9, r.GFLOPs, 1e-12)
		require.InEpsilon(t, r.GFLOPs/r.PeakGFLOPs, r.PeakShare, 1e-12)
	}
	device, err := b.open(1)
	require.NoError(t, err)
	defer device.Close()
	x, _, err := load(t.Context(), device, cases[1])
	require.NoError(t, err)
	require.NoError(t, x.Run(t.Context()))
	found, err := backend.FindNonFinite(t.Context(), x)
	require.NoError(t, err)
	require.Nil(t, found)
	lse := cases[1].program.Vars().Lookup("lse")
	raw := make([]byte, lse.Bytes())
	require.NoError(t, device.Read(lse, raw))
	require.NotZero(t, binary.LittleEndian.Uint32(raw))
}

func TestLayers(t *testing.T) {
	b := open(t)
	for _, shape := range []Matrix{{48, 128}, {7, 30}} {
		cases, err := b.Layers([]Matrix{shape})
		require.NoError(t, err)
		require.Len(t, cases, len(layerOps))
		for _, c := range cases {
			r, err := b.Measure(t.Context(), c)
			require.NoError(t, err)
			require.Empty(t, r.Unsupported, r.Name)
			require.Equal(t, []string{"layers", shape.String()}, []string{r.Bench, r.Shape})
			require.InEpsilon(t, r.GBytes/r.CopyGBytes, r.CopyShare, 1e-12)
			require.InEpsilon(t, float64(c.program.Nodes()[0].Cost().Bytes)/r.Median/1e9, r.GBytes, 1e-12)
		}
	}
}

func TestOptimizer(t *testing.T) {
	b := open(t)
	cases, err := b.Optimizer([]int{3000})
	require.NoError(t, err)
	require.Len(t, cases, 3)
	for i, perElement := range []float64{4 + 3*8, 4 + 4 + 2 + 2, 4 + 4 + 2 + 2} {
		r, err := b.Measure(context.Background(), cases[i])
		require.NoError(t, err)
		require.Equal(t, "3000", r.Shape)
		require.InEpsilon(t, 3000*perElement/r.Median/1e9, r.GBytes, 0.02, r.Name)
	}
}

// The measured optimizer changes its state: values that become NaN or stay zero might take a
// different time.
func TestOptimizerChangesItsState(t *testing.T) {
	b := open(t)
	cases, err := b.Optimizer([]int{1000})
	require.NoError(t, err)
	for _, c := range cases {
		device, err := b.open(1)
		require.NoError(t, err)
		x, _, err := load(context.Background(), device, c)
		require.NoError(t, err)
		o := c.program.Nodes()[0].Op.(*backend.AdamW)
		for range 3 {
			require.NoError(t, x.Run(context.Background()))
		}
		for _, tensor := range []*backend.Tensor{o.Master[0], o.M1[0], o.M2[0]} {
			raw := make([]byte, tensor.Bytes())
			require.NoError(t, device.Read(tensor, raw))
			distinct := map[string]bool{}
			for i := 0; i < len(raw); i += tensor.DType.Size() {
				distinct[string(raw[i:i+tensor.DType.Size()])] = true
			}
			require.Greater(t, len(distinct), 20, tensor.Name)
		}
		found, err := backend.FindNonFinite(context.Background(), x)
		require.NoError(t, err)
		require.Nil(t, found)
		require.NoError(t, device.Close())
	}
}

// FP8 GEMMs read the operands that the prepare program casts, and a device that takes operands
// in one orientation only gets them in that one.
func TestOperandsArePrepared(t *testing.T) {
	b := open(t)
	cases, err := b.GEMM([]Layer{{32, 48, 64}}, formats(t))
	require.NoError(t, err)
	cuda, err := backend.SpecOf("cuda")
	require.NoError(t, err)
	for _, c := range cases {
		if c.prepare != nil {
			device, err := b.open(1)
			require.NoError(t, err)
			_, _, err = load(context.Background(), device, c)
			require.NoError(t, err)
			o := c.program.Nodes()[0].Op.(*backend.MatMul)
			for _, tensor := range []*backend.Tensor{o.A, o.B} {
				wide := c.program.Vars().Lookup(tensor.Name + ".bf16")
				codes, values := make([]byte, tensor.Bytes()), make([]byte, wide.Bytes())
				require.NoError(t, device.Read(tensor, codes))
				require.NoError(t, device.Read(wide, values))
				for i, code := range codes {
					x := fp8.BF16.Float32(uint32(binary.LittleEndian.Uint16(values[2*i:])))
					require.Equal(t, tensor.DType.Nearest(x, fp8.Saturate), uint32(code), "%s of %s", tensor.Name, c.name)
				}
			}
			require.NoError(t, device.Close())
			_, err = backend.Lower(cuda, c.program, c.prepare)
			require.NoError(t, err, c.name)
		}
		require.Equal(t, strings.HasPrefix(c.name, "fp8"), c.prepare != nil, c.name)
	}
}

func TestSteps(t *testing.T) {
	b := open(t)
	var configs []train.Config
	for _, name := range []string{"bf16", "fp8-smooth"} {
		c := train.Default()
		c.Recipe, c.Model.Layers, c.Model.Dim, c.Model.Heads, c.Model.KVHeads, c.Model.FFN = name, 1, 32, 2, 2, 48
		c.Data.Seq, c.Train.MicroBatch, c.Train.Accumulate = 32, 2, 2
		configs = append(configs, c)
	}
	s, err := b.Steps(context.Background(), configs)
	require.NoError(t, err)
	list, err := s.Measure(context.Background())
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.Len(t, list, 2)
	for i, r := range list {
		require.Equal(t, configs[i].Recipe, r.Name)
		require.EqualValues(t, 128, r.Tokens)
		require.EqualValues(t, 2*256*32+4*32*32+3*32*48+3*32, r.Parameters)
		require.InEpsilon(t, 128/r.Median, r.TokensPerS, 1e-12)
		require.Positive(t, r.PeakShare)
		require.Positive(t, r.Planned)
		require.Positive(t, r.TimeRatio)
	}
	require.Equal(t, 1.0, list[0].TimeRatio)
	text, err := json.Marshal(list[1])
	require.NoError(t, err)
	for _, key := range []string{"bench", "name", "median_s", "min_s", "gflops", "peak_gflops", "peak_share", "tokens_per_s", "planned_bytes", "time_ratio"} {
		require.Contains(t, string(text), `"`+key+`":`)
	}

	configs[1].Model.Vocab = 1 << 40
	_, err = b.Steps(context.Background(), configs)
	require.Error(t, err)
}

// A case that does not fit the machine is refused before anything runs.
func TestTooLarge(t *testing.T) {
	b := open(t)
	if !b.spec.HostMemory {
		t.Skip("the memory of this machine cannot be read")
	}
	_, err := b.GEMM([]Layer{{16, 16, 16}, {MaxDim, MaxDim, MaxDim}}, formats(t))
	if err == nil {
		t.Skip("the free memory of this machine cannot be read")
	}
	require.ErrorContains(t, err, "bench gemm of 1048576x1048576x1048576 needs 11 TB of memory")
}

// The result of an op that the backend refuses says so.
func TestUnsupported(t *testing.T) {
	b := open(t)
	cases, err := b.Quantize([]Matrix{{16, 16}})
	require.NoError(t, err)
	vars := backend.NewVars()
	x := vars.Tensor(backend.Input, "x", fp8.F32, 1, 32)
	x.Scale, x.Block = vars.Tensor(backend.Input, "x.scale_inv", fp8.F32, 1), backend.PerRow
	c := cases[0]
	c.program, c.prepare = vars.Program("per row"), nil
	c.program.Add(&backend.Amax{X: x, Out: vars.Tensor(backend.Output, "amax", fp8.F32, 1)})
	r, err := b.Measure(context.Background(), c)
	require.NoError(t, err)
	require.Contains(t, r.Unsupported, "unsupported by backend emu: x:fp32[1, 32] has scales per block")
	require.Zero(t, r.Median)
}

func TestParse(t *testing.T) {
	l, err := ParseLayer("16x32x1048576")
	require.NoError(t, err)
	require.Equal(t, Layer{16, 32, 1 << 20}, l)
	require.Equal(t, "16x32x1048576", l.String())
	m, err := ParseMatrix("3x5")
	require.NoError(t, err)
	require.Equal(t, Matrix{3, 5}, m)
	for text, want := range map[string]Heads{"4x256x6x64": {4, 256, 6, 6, 64}, "1x4096x8/2x128": {1, 4096, 8, 2, 128}} {
		h, err := ParseHeads(text)
		require.NoError(t, err)
		require.Equal(t, want, h)
		require.Equal(t, text, h.String())
	}
	for text, want := range map[string]int{"7": 7, "12k": 12_000, "14M": 14_000_000, "2G": 2_000_000_000} {
		n, err := ParseSize(text)
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
	for _, text := range []string{"", "0", "0x1", "1x0", "-1x2", "1x2x", "1048577x1", "1x1048577x1", "99999999999999999999x1", "3G", "12m", "1.5M", "1e6", " 1x1"} {
		_, err := ParseLayer(text)
		require.Error(t, err, text)
		_, err = ParseMatrix(text)
		require.Error(t, err, text)
		_, err = ParseSize(text)
		require.Error(t, err, text)
		_, err = ParseHeads("4x" + text + "x8/2x64")
		require.Error(t, err, text)
	}
}

func TestInterleave(t *testing.T) {
	var order strings.Builder
	note := func(name string, x float64) burst {
		return func() (float64, error) { order.WriteString(name); return x, nil }
	}
	samples, err := interleave(0, note("a", 1), note("b", 2))
	require.NoError(t, err)
	require.Equal(t, "ababab", order.String())
	require.Equal(t, [][]float64{{1, 1, 1}, {2, 2, 2}}, samples)

	n := 0
	samples, err = interleave(0.02, func() (float64, error) { n++; time.Sleep(time.Millisecond); return 0, nil })
	require.NoError(t, err)
	require.Len(t, samples[0], n)

	broken := errors.New("broken")
	_, err = interleave(0, note("a", 1), func() (float64, error) { return 0, broken })
	require.ErrorIs(t, err, broken)
}

func TestRepeated(t *testing.T) {
	n := 0
	waits := 0
	wait := func() error { waits++; return nil }
	work, err := repeated(func() error { n++; time.Sleep(burstSeconds * 1e9); return nil }, wait)
	require.NoError(t, err)
	require.Equal(t, 2, n, "warm-up")
	s, err := work()
	require.NoError(t, err)
	require.Equal(t, 3, n, "work that is long enough runs once")
	require.GreaterOrEqual(t, s, burstSeconds)
	require.Equal(t, 3, waits)

	meter := 0
	r, err := rate(func() float64 { meter++; time.Sleep(time.Millisecond); return float64(meter) })()
	require.NoError(t, err)
	require.InDelta(t, float64(1+meter)/2, r, 1e-9, "the mean of 1, 2, … meter")

	broken := errors.New("broken")
	_, err = repeated(func() error { return broken }, wait)
	require.ErrorIs(t, err, broken)
	_, err = repeated(func() error { return nil }, func() error { return broken })
	require.ErrorIs(t, err, broken)
}

func TestMedian(t *testing.T) {
	require.Equal(t, 2.0, median([]float64{3, 1, 2}))
	require.Equal(t, 2.0, median([]float64{4, 3, 1, 2}))
	x := []float64{2, 1}
	median(x)
	require.Equal(t, []float64{2, 1}, x, "samples keep their order")
	require.Equal(t, 2.0, ratio([]float64{2, 40, 9}, []float64{1, 10, 9}))
}

// Operands are neither zero, which some kernels skip, nor NaN, which may be slow.
func TestNormal(t *testing.T) {
	vars := backend.NewVars()
	for _, d := range []fp8.DType{fp8.F32, fp8.BF16, fp8.F16, fp8.E4M3, fp8.E4M3IEEE, fp8.E5M2} {
		tensor := vars.Tensor(backend.Stash, d.String(), d, 300, 300)
		raw := normal(tensor)
		require.Len(t, raw, int(tensor.Bytes()))
		zeros := 0
		for i := 0; i < len(raw); i += d.Size() {
			var code uint32
			for j, b := range raw[i : i+d.Size()] {
				code |= uint32(b) << (8 * j)
			}
			x := float64(d.Float32(code))
			require.False(t, math.IsNaN(x) || math.IsInf(x, 0))
			if x == 0 {
				zeros++
			}
		}
		require.Less(t, zeros, 90)
	}
}

func TestTokens(t *testing.T) {
	s := tokens{300}
	a, b := make([]int32, 1000), make([]int32, 10)
	require.NoError(t, s.ReadTokens(a, 5))
	require.NoError(t, s.ReadTokens(b, 505))
	require.Equal(t, a[500:510], b, "reads at any offset agree")
	require.Less(t, slices.Max(a), int32(300))
	require.Greater(t, slices.Max(a), int32(280))
	require.GreaterOrEqual(t, slices.Min(a), int32(0))
}
