package cost

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// gpu is a device of round numbers: 100 TFLOP/s in BF16, 200 in FP8, 1 TB/s.
func gpu(devices, nodes int) *Machine {
	given := func(x float64) Number { return Number{Value: x, Assumed: "for a test"} }
	m := &Machine{Cluster: Cluster{"gpu", devices, nodes}, Numbers: Numbers{}}
	for name, x := range map[string]float64{
		"bandwidth": 1, "copy_share": 1, "bf16_peak": 100, "bf16_share": 1, "fp8_peak": 200, "fp8_share": 1, "gemm": 1, "rest": 1,
		"processors": 0, "tile_k": 192, "launch": 0, "attention_forward": 0.5, "attention_backward": 0.25,
		"link": 10, "nic": 1, "link_share": 1, "nic_share": 1, "link_latency": 10, "nic_latency": 10, "hidden": 0.5,
	} {
		m.Numbers[name] = given(x)
	}
	return m
}

// recorder records ops for a Step.
type recorder struct {
	v *backend.Vars
	p *backend.Program
	n int
}

func record() *recorder {
	v := backend.NewVars()
	return &recorder{v: v, p: v.Program("p")}
}

func (r *recorder) tensor(d fp8.DType, shape ...int) *backend.Tensor {
	r.n++
	t := r.v.Tensor(backend.Stash, fmt.Sprint("t", r.n), d, shape...)
	if d.IsQuantized() {
		r.n++
		t.Scale = r.v.Tensor(backend.Stash, fmt.Sprint("t", r.n), fp8.F32, 1)
	}
	return t
}

// gemm adds a GEMM of M×N×K and returns its result.
func (r *recorder) gemm(d fp8.DType, m, n, k int) *backend.Tensor {
	out := r.tensor(fp8.F32, m, n)
	r.p.Add(&backend.MatMul{A: r.tensor(d, m, k), B: r.tensor(d, n, k), TransB: true, Out: out})
	return out
}

func (r *recorder) reduce(x *backend.Tensor) { r.p.On(backend.CommQueue).Add(&backend.AllReduce{X: x}) }

func (r *recorder) step(t testing.TB) *Step {
	require.NoError(t, r.p.Err())
	return NewStep(Run{r.p, 1})
}

func predict(t testing.TB, m *Machine, s *Step) Prediction {
	p, err := m.Predict(s)
	require.NoError(t, err)
	sum, shares := 0.0, 0.0
	for _, c := range p.Classes {
		sum, shares = sum+c.Seconds, shares+c.Share
	}
	require.InDelta(t, p.Step, sum, 1e-12*p.Step, "classes sum to the step")
	if p.Step > 0 {
		require.InDelta(t, 1, shares, 1e-9)
	}
	return p
}

func TestGEMM(t *testing.T) {
	r := record()
	r.gemm(fp8.BF16, 1000, 2000, 4000)
	p := predict(t, gpu(1, 1), r.step(t))
	require.InDelta(t, 2*1000*2000*4000/100e12, p.Step, 1e-12)
	require.Equal(t, []ClassTime{{"GEMMs, bf16", p.Step, 1, "flops"}}, p.Classes)

	r = record()
	r.gemm(fp8.E4M3, 1000, 2000, 4000)
	require.InDelta(t, p.Step/2, predict(t, gpu(1, 1), r.step(t)).Step, 1e-12)

	r = record()
	r.gemm(fp8.BF16, 1000, 1000, 16)
	p = predict(t, gpu(1, 1), r.step(t))
	require.InDelta(t, (4*1e6+2*2*16000)/1e12, p.Step, 1e-15)
	require.Equal(t, "bytes", p.Classes[0].Bound)

	// Tiles of 128×256 on 10 processors: 8·8 of them are 6.4 waves.
	m := gpu(1, 1)
	m.Numbers["processors"] = Number{Value: 10, Assumed: "for a test"}
	r = record()
	r.gemm(fp8.BF16, 1000, 2000, 4000)
	require.InDelta(t, 2*1000*2000*4000/100e12*(6.9/6.4)*(4192.0/4000), predict(t, m, r.step(t)).Step, 1e-12)
}

// A ring of 8 sends 7/8 of the tensor, twice for an all-reduce, at 10 GB/s. Two nodes have one
// more latency, and each of 4 devices of a node sends 1 GB/s to the other.
func TestCollective(t *testing.T) {
	r := record()
	r.reduce(r.tensor(fp8.F32, 1000, 1000))
	s := r.step(t)
	p := predict(t, gpu(8, 1), s)
	require.InDelta(t, 10e-6+2*4e6*7/8/10e9, p.Step, 1e-12)
	require.Equal(t, []ClassTime{{"communication", p.Step, 1, "wire"}}, p.Classes)
	require.InDelta(t, 20e-6+2*4e6*7/8/4e9, predict(t, gpu(4, 2), s).Step, 1e-12)
	require.InDelta(t, 40e-6+2*4e6*7/8/1e9, predict(t, gpu(1, 8), s).Step, 1e-12)
	require.Zero(t, predict(t, gpu(1, 1), record().step(t)).Step)

	r = record()
	r.gemm(fp8.BF16, 1000, 1000, 1000)
	r.reduce(r.tensor(fp8.F32, 1000, 1000))
	p = predict(t, gpu(1, 1), r.step(t))
	require.Len(t, p.Classes, 1, "one device communicates with none")
	require.NotContains(t, p.Used, "link")
	require.Zero(t, p.Wire)
}

// Between nodes each device sends its own part by its own nic, and within a node by its link.
func TestAllToAll(t *testing.T) {
	r := record()
	r.p.Add(&backend.AllToAll{X: r.tensor(fp8.F32, 1000, 1000), Out: r.tensor(fp8.F32, 1000, 1000)})
	s := r.step(t)
	require.InDelta(t, 10e-6+4e6*7/8/10e9, predict(t, gpu(8, 1), s).Step, 1e-12)
	require.InDelta(t, 20e-6+4e6*4/8/1e9, predict(t, gpu(4, 2), s).Step, 1e-12)
	m := gpu(4, 2).with("link", 0.5)
	require.InDelta(t, 20e-6+4e6*3/8/0.5e9, predict(t, m, s).Step, 1e-12)
	m = m.with("link_share", 0.5).with("nic_share", 0.125).with("nic_latency", 3)
	require.InDelta(t, 6e-6+4e6*4/8/0.125e9, predict(t, m, s).Step, 1e-12)
}

// A collective on the compute queue waits for those on the communication queue and hides nothing.
func TestBlockingCollective(t *testing.T) {
	const gemm, reduce = 2*1000*1000*1000/100e12 + 0, 10e-6 + 2*4e6*7/8/10e9
	r := record()
	r.reduce(r.gemm(fp8.BF16, 1000, 1000, 1000))
	r.gemm(fp8.BF16, 1000, 1000, 1000)
	r.p.Add(&backend.AllReduce{X: r.tensor(fp8.F32, 1000, 1000)})
	r.gemm(fp8.BF16, 1000, 1000, 1000)
	p := predict(t, gpu(8, 1), r.step(t))
	require.InDelta(t, 3*gemm-gemm/2+2*reduce, p.Step, 1e-12)
	require.InDelta(t, 2*reduce, p.Wire, 1e-12)
}

// Attention and its gradient have rates of their own.
func TestAttentionRates(t *testing.T) {
	w := work{class: Attention, flops: 1e12}
	r := newRates(gpu(1, 1))
	forward, _ := r.time(&w)
	w.backward = true
	backward, _ := r.time(&w)
	require.InDelta(t, 1e12/50e12, forward, 1e-12)
	require.InDelta(t, 1e12/25e12, backward, 1e-12)
}

// While GEMMs run, an all-reduce has half its rate. Only a use of its result waits for it.
func TestOverlap(t *testing.T) {
	const gemm, reduce = 2*1000*1000*1000/100e12 + 0, 10e-6 + 2*4e6*7/8/10e9 // 20 µs and 710 µs
	build := func(before int, use bool, after int) *Step {
		r := record()
		var out *backend.Tensor
		for range 1 + before {
			out = r.gemm(fp8.BF16, 1000, 1000, 1000)
		}
		r.reduce(out)
		for range after {
			r.gemm(fp8.BF16, 1000, 1000, 1000)
		}
		if use {
			r.p.Add(&backend.Quantize{X: out, Out: []backend.Cast{{Out: r.tensor(fp8.BF16, 1000, 1000)}}})
		}
		return r.step(t)
	}
	m := gpu(8, 1)
	cast := 6e6 / 1e12
	require.InDelta(t, gemm+reduce, predict(t, m, build(0, false, 0)).Step, 1e-12, "the end of the program waits")
	require.InDelta(t, 11*gemm+reduce-10*gemm/2, predict(t, m, build(0, false, 10)).Step, 1e-12)
	require.InDelta(t, 11*gemm+reduce-10*gemm/2+cast, predict(t, m, build(0, true, 10)).Step, 1e-12)
	hidden := predict(t, m, build(0, true, 200))
	require.InDelta(t, 201*gemm+cast, hidden.Step, 1e-12, "all is hidden")
	require.InDelta(t, reduce, hidden.Wire, 1e-12)
	require.InDelta(t, 11*gemm+reduce, predict(t, m, build(10, false, 0)).Step, 1e-12, "work before it hides nothing")

	// Collectives of a program end with it.
	r := record()
	r.reduce(r.gemm(fp8.BF16, 1000, 1000, 1000))
	s := NewStep(Run{r.p, 1}, Run{r.p, 1})
	require.InDelta(t, 2*(gemm+reduce), predict(t, m, s).Step, 1e-12)
}

func TestRunTimes(t *testing.T) {
	r := record()
	r.gemm(fp8.BF16, 1000, 1000, 1000)
	require.InDelta(t, 2.5*2e9/100e12, predict(t, gpu(1, 1), NewStep(Run{r.p, 2}, Run{r.p, 0.5})).Step, 1e-15)
}

// randomStep has GEMMs, casts and collectives of random shapes.
func randomStep(t testing.TB, r *rand.Rand) *Step {
	x := record()
	dim := func() int { return 16 * (1 + r.IntN(200)) }
	for range 10 {
		d := []fp8.DType{fp8.BF16, fp8.E4M3}[r.IntN(2)]
		out := x.gemm(d, dim(), dim(), dim())
		if r.IntN(2) == 0 {
			x.reduce(out)
		}
		x.p.Add(&backend.Quantize{X: out, Out: []backend.Cast{{Out: x.tensor(fp8.BF16, out.Rows(), out.Cols())}}})
		x.p.Add(&backend.Add{A: out, B: out, Out: []backend.Cast{{Out: x.tensor(fp8.BF16, out.Rows(), out.Cols())}}})
	}
	return x.step(t)
}

// Every op takes at least its roofline, and a better machine is never slower.
func TestRoofline(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	better := []string{"bandwidth", "copy_share", "bf16_peak", "fp8_peak", "bf16_share", "fp8_share", "gemm", "link", "link_share", "hidden"}
	worse := []string{"rest", "link_latency", "launch", "tile_k"}
	for range 30 {
		s, m := randomStep(t, r), gpu(8, 1+r.IntN(4))
		for _, name := range []string{"copy_share", "gemm", "bf16_share", "fp8_share", "hidden"} {
			m = m.with(name, 0.3+0.7*r.Float64())
		}
		m = m.with("rest", 1+r.Float64()).with("launch", r.Float64()).with("processors", float64(r.IntN(200)))
		rates := newRates(m)
		for _, p := range s.programs {
			for i := range p.work {
				w := &p.work[i]
				if w.class == Communication {
					continue
				}
				floor := w.bytes / (m.Numbers["bandwidth"].Value * 1e12)
				if w.class == GEMM {
					floor = max(floor, w.flops/(m.Numbers[w.format+"_peak"].Value*1e12))
				}
				got, _ := rates.time(w)
				require.GreaterOrEqual(t, got, floor)
				less := *w
				less.bytes, less.flops = w.bytes*r.Float64(), w.flops*r.Float64()
				quick, _ := rates.time(&less)
				require.LessOrEqual(t, quick, got)
			}
		}
		base := predict(t, m, s).Step
		for _, name := range better {
			require.LessOrEqual(t, predict(t, m.with(name, 1.5*m.Numbers[name].Value), s).Step, base*(1+1e-12), name)
		}
		for _, name := range worse {
			require.GreaterOrEqual(t, predict(t, m.with(name, 1.5*m.Numbers[name].Value+1e-3), s).Step, base*(1-1e-12), name)
		}
	}
}

func TestBand(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	s, m := randomStep(t, r), gpu(8, 2)
	p := predict(t, m, s)
	band, effects, err := m.Band(s, p)
	require.NoError(t, err)
	require.Equal(t, [2]float64{p.Step, p.Step}, band, "no number has a range")
	require.Empty(t, effects)

	ranges := func(name string, low, high float64) {
		n := m.Numbers[name]
		n.Low, n.High = low, high
		m.Numbers[name] = n
	}
	ranges("bandwidth", 0.5, 2)
	ranges("rest", 0.9, 1.1)
	band, effects, err = m.Band(s, p)
	require.NoError(t, err)
	require.Len(t, effects, 2)
	require.Equal(t, "bandwidth", effects[0].Name)
	slow, fast := predict(t, m.with("bandwidth", 0.5), s).Step/p.Step, predict(t, m.with("bandwidth", 2), s).Step/p.Step
	require.Equal(t, Effect{"bandwidth", fast, slow}, effects[0])
	require.InDelta(t, p.Step*math.Exp(math.Hypot(math.Log(slow), math.Log(effects[1].High))), band[1], 1e-12)
	require.Less(t, band[0], p.Step)
	require.Equal(t, 1.0, m.Numbers["bandwidth"].Value, "the machine stays as it is")
}

func TestMissingNumbers(t *testing.T) {
	r := record()
	r.gemm(fp8.E4M3, 64, 64, 64)
	m := gpu(1, 1)
	delete(m.Numbers, "fp8_share")
	_, err := m.Predict(r.step(t))
	require.ErrorIs(t, err, ErrNoData)
	require.EqualError(t, err, "no data for fp8_share of gpu (share of fp8_peak that large GEMMs reach): measure it there by octet bench step --calibrate FILE, or give a value by --assume fp8_share=VALUE")
	require.NoError(t, m.Assume("fp8_share=0.5"))
	slow := predict(t, m, r.step(t)).Step
	require.NoError(t, m.Assume("fp8_share=1", "bandwidth=1000"))
	require.InEpsilon(t, 2*64*64*64/200e12, predict(t, m, r.step(t)).Step, 1e-9)
	require.Greater(t, slow, 2*64*64*64/200e12)

	r = record()
	r.gemm(fp8.BF16, 64, 64, 64)
	predict(t, m, r.step(t)) // needs no number of FP8
	for _, bad := range []string{"fp8_shares=0.5", "fp8_share", "fp8_share=fast", "fp8_share=-1", "fp8_share=NaN", "=1", ""} {
		require.Error(t, m.Assume(bad), bad)
	}
	require.ErrorContains(t, m.Assume("fp8_shares=0.5"), "did you mean fp8_share?")
}

func TestNotValidated(t *testing.T) {
	r := record()
	r.gemm(fp8.BF16, 64, 64, 64)
	require.Empty(t, r.step(t).NotValidated())
	r.gemm(fp8.INT8, 64, 64, 64)
	require.Equal(t, []string{"GEMMs in int8"}, r.step(t).NotValidated())
}
