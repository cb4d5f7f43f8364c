package cost

import (
	"math"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// samplesOf returns noisy times of a curve.
func samplesOf(c Curve, key string, noise float64, n int) (list []Sample) {
	r := rand.New(rand.NewPCG(5, uint64(n)))
	for range n {
		x := backend.Cost{Bytes: int64(r.ExpFloat64() * 1e7)}
		if c.TFLOPs > 0 {
			x.FLOPs = int64(r.ExpFloat64() * 1e10)
		}
		s, _ := c.time(float64(x.FLOPs), float64(x.Bytes))
		list = append(list, Sample{key, x, s * (1 + noise*(r.Float64()-0.5))})
	}
	return list
}

func TestFitCurves(t *testing.T) {
	for _, want := range []Curve{
		{Overhead: 20, TFLOPs: 2, GBytes: 50},
		{Overhead: 20, GBytes: 50},
		{TFLOPs: 2, GBytes: 50},
		{Overhead: 300},
		{GBytes: 7},
	} {
		got := FitCurves("step", samplesOf(want, "op", 0, 20))["op"]
		require.InDelta(t, want.Overhead, got.Overhead, 1e-3, want)
		require.InDelta(t, want.TFLOPs, got.TFLOPs, 1e-6, want)
		require.InDelta(t, want.GBytes, got.GBytes, 1e-4, want)
		require.Less(t, got.RMS, 1e-6)
		require.Equal(t, 20, got.Samples)

		got = FitCurves("step", samplesOf(want, "op", 0.1, 100))["op"]
		require.InDelta(t, 0.029, got.RMS, 0.006, want) // of a uniform error of ±5 %
		for _, s := range samplesOf(want, "op", 0, 50) {
			s.Key = "other"
			seconds, _ := got.time(float64(s.Cost.FLOPs), float64(s.Cost.Bytes))
			require.InEpsilon(t, s.Seconds, seconds, 0.1, want)
		}
	}
}

// Samples of one size say nothing of an overhead: time grows with the work.
func TestFitOfOneSize(t *testing.T) {
	x := backend.Cost{FLOPs: 1e9, Bytes: 1e6}
	c := FitCurves("gemm", []Sample{{"op", x, 1e-3}, {"op", x, 1e-3}})["op"]
	require.InDelta(t, 1, c.TFLOPs, 1e-9)
	require.Zero(t, c.Overhead)
	require.Zero(t, c.GBytes)
	c = FitCurves("gemm", []Sample{{"op", backend.Cost{Bytes: 1e6}, 1e-3}})["op"]
	require.InDelta(t, 1, c.GBytes, 1e-9)
	c = FitCurves("gemm", []Sample{{"op", backend.Cost{}, 1e-3}})["op"]
	require.InDelta(t, 1000, c.Overhead, 1e-9)
	require.Empty(t, FitCurves("gemm", []Sample{{"op", x, 0}}))
}

func TestCalibration(t *testing.T) {
	r := record()
	r.gemm(fp8.E4M3, 1000, 1000, 1000)
	out := r.gemm(fp8.BF16, 1000, 1000, 1000)
	r.p.Add(&backend.Quantize{X: out, Out: []backend.Cast{{Out: r.tensor(fp8.BF16, 1000, 1000)}}})
	s := r.step(t)

	c := &Calibration{Backend: "cuda", Device: "GPU"}
	c.Add(map[string]Curve{
		"MatMul NT e4m3 e4m3 > fp32": {TFLOPs: 100, Overhead: 5},
		"Quantize bf16 > bf16":       {GBytes: 10},
	})
	c.Set("bandwidth", 2, "here")
	path := filepath.Join(t.TempDir(), "c.toml")
	require.NoError(t, c.Write(path))
	read, err := ReadCalibration(path)
	require.NoError(t, err)
	require.Equal(t, c, read)

	m := gpu(1, 1)
	m.Backend = "cuda:sm_90"
	require.NoError(t, m.Calibrate(read))
	p := predict(t, m, s)
	require.Equal(t, []string{"MatMul NT bf16 bf16 > fp32", "Quantize fp32 > bf16"}, p.Unmeasured)
	require.InDelta(t, 5e-6+2e9/100e12, p.Classes[0].Seconds, 1e-12, "measured beats published")
	require.InDelta(t, 2e9/100e12, p.Classes[1].Seconds, 1e-12, "a GEMM of other formats has another rate")
	require.InDelta(t, 6e6/10e9, p.Classes[2].Seconds, 1e-12, "a cast is like that of other formats")
	m.Backend = "gaudi:gaudi2"
	require.ErrorContains(t, m.Calibrate(read), "the calibration is of backend cuda, GPU")
	m.Backend = "cuda:sm_90"
	read.Device = "NVIDIA RTX 4090, compute capability 8.9"
	require.ErrorContains(t, m.Calibrate(read), "the calibration is of backend cuda, NVIDIA RTX 4090")
	m.Backend = "cuda:sm_89"
	require.NoError(t, m.Calibrate(read))

	local := Devices().Local(read)
	require.Equal(t, 2.0, local.Numbers["bandwidth"].Value)
	_, err = local.Predict(s)
	require.ErrorIs(t, err, ErrNoData)
	require.ErrorContains(t, err, `the calibration has no curve of "MatMul NT bf16 bf16 > fp32": calibrate with a recipe that has such ops, or give a value by --assume bf16_peak=VALUE`)
}

// A network that is named replaces the one that was measured.
func TestCalibrationOfAnotherNetwork(t *testing.T) {
	c := &Calibration{Backend: "cuda", Device: "GPU"}
	for _, name := range []string{"nic", "nic_share", "nic_latency", "link"} {
		c.Set(name, 0.25, "here")
	}
	cluster := Cluster{"h100", 8, 2}
	for network, want := range map[string][4]float64{"": {0.25, 0.25, 0.25, 0.25}, "ib-200": {25, 0.8, 12, 0.25}} {
		m, err := Devices().Machine(cluster, network)
		require.NoError(t, err)
		require.NoError(t, m.Calibrate(c))
		for i, name := range []string{"nic", "nic_share", "nic_latency", "link"} {
			require.Equal(t, want[i], m.Numbers[name].Value, "%s, network %q", name, network)
		}
	}
}

// Without a curve of an op's formats, the median of the curves of other formats counts, and the
// residual covers them all.
func TestCurveOfOtherFormats(t *testing.T) {
	c := &Calibration{Curves: map[string]Curve{
		"Add a > b":   {GBytes: 10, RMS: 0.03},
		"Add c > d":   {Overhead: 500}, // the longest for 1 MB, and without a term for bytes
		"Add e > f":   {GBytes: 20},
		"AddTo g > h": {GBytes: 1},
	}}
	x, measured, ok := c.curve(&work{class: RowOps, key: "Add x > y", bytes: 1e6})
	require.True(t, ok)
	require.False(t, measured)
	require.Equal(t, 10.0, x.GBytes)
	require.InDelta(t, math.Hypot(0.03, 4), x.RMS, 1e-12, "500 µs for 100")
	_, _, ok = c.curve(&work{class: RowOps, key: "Sub x > y", bytes: 1e6})
	require.False(t, ok)
}

func TestBadCalibrations(t *testing.T) {
	const head = "backend = \"emu\"\ndevice = \"CPU\"\n"
	for text, want := range map[string]string{
		"device = \"CPU\"":                                   "backend or device is missing",
		head + "speed = 3":                                   "unknown key speed",
		head + "[curve.x]\noverhead_us = -1":                 "curve \"x\" has the value -1",
		head + "[curve.x]\noverhead_us = nan":                "curve \"x\" has the value NaN",
		head + "[curve.x]\nsamples = 3":                      "curve \"x\" takes no time",
		head + "[number]\nbandwidth = { value = 1 }":         "number.bandwidth: give its source",
		head + "[number]\nspeed = { value=1, measured='a' }": "number.speed: unknown number",
		"backend = ": "expected value",
	} {
		_, err := ParseCalibration(text)
		require.ErrorContains(t, err, want, text)
	}
	_, err := ReadCalibration(filepath.Join(t.TempDir(), "none.toml"))
	require.ErrorContains(t, err, "none.toml")
}

func FuzzParseCalibration(f *testing.F) {
	f.Add("backend = \"emu\"\ndevice = \"CPU\"\n[curve.\"a > b\"]\noverhead_us = 3.0\nbench = \"step\"\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseCalibration(text)
		if err != nil {
			return
		}
		for key := range c.Curves {
			x, measured, ok := c.curve(&work{key: key})
			require.True(t, measured && ok)
			seconds, _ := x.time(1e9, 1e6)
			require.Positive(t, seconds)
		}
	})
}

// The band of a calibrated machine is the error of the curves, weighted by the ops' times.
func TestResidual(t *testing.T) {
	r := record()
	r.gemm(fp8.E4M3, 1000, 1000, 1000)
	r.gemm(fp8.BF16, 1000, 1000, 1000)
	m := gpu(1, 1)
	m.Calibration = &Calibration{}
	m.Calibration.Add(map[string]Curve{
		"MatMul NT e4m3 e4m3 > fp32": {TFLOPs: 100, RMS: 0.03},
		"MatMul NT bf16 bf16 > fp32": {TFLOPs: 50, RMS: 0.06},
	})
	s := r.step(t)
	p := predict(t, m, s)
	require.InDelta(t, 0.05, p.Residual, 1e-9)
	band, effects, err := m.Band(s, p)
	require.NoError(t, err)
	require.Empty(t, effects)
	require.InDelta(t, p.Step*1.05, band[1], 1e-12)
	require.InDelta(t, p.Step/1.05, band[0], 1e-12)
}

// A curve says when an op is far below its samples.
func TestExtended(t *testing.T) {
	r := record()
	r.gemm(fp8.BF16, 64, 64, 64)
	s := r.step(t)
	m := gpu(1, 1)
	for smallest, want := range map[float64]float64{0: 0, 10: 0, 19.9: 0, 20.1: 1} {
		m.Calibration = &Calibration{Curves: map[string]Curve{s.programs[0].work[0].key: {Overhead: 10, Smallest: smallest}}}
		require.Equal(t, want, predict(t, m, s).Extended, smallest)
	}
}
