package main

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/conformance"
	"octet/backend/ref"
	"octet/command"
	"octet/fp8"
)

var backends = []string{"ref", "emu", "emu:h100", "emu:gaudi2"}

// Backends compute what Reference defines, in every format and rounding.
func TestOps(t *testing.T) {
	builds := map[string]func(*conformance.Bench) backend.Op{
		"forward": func(b *conformance.Bench) backend.Op {
			return &SquaredReLU{X: b.Input("x", b.Rows, b.Cols), Out: b.Casts("out", b.Rows, b.Cols)}
		},
		"backward": func(b *conformance.Bench) backend.Op {
			return &SquaredReLUGrad{
				DOut: b.Input("dout", b.Rows, b.Cols), X: b.Input("x", b.Rows, b.Cols), DX: b.Casts("dx", b.Rows, b.Cols),
			}
		},
	}
	for _, name := range backends {
		driver, device, err := backend.Find(name)
		require.NoError(t, err)
		for op, build := range builds {
			for c := range conformance.Of(op, 0, build) {
				t.Run(name+"/"+c.Name, func(t *testing.T) { require.NoError(t, c.Run(t.Context(), driver, device)) })
			}
		}
	}
}

// The gradient equals central differences of the forward op, in float64.
func TestGradient(t *testing.T) {
	const n, h = 100, 1e-6
	v := backend.NewVars()
	x, dOut := v.Tensor(backend.Input, "x", fp8.F32, 1, n), v.Tensor(backend.Input, "dout", fp8.F32, 1, n)
	y, dx := v.Tensor(backend.Output, "y", fp8.F32, 1, n), v.Tensor(backend.Output, "dx", fp8.F32, 1, n)
	p := v.Program("both")
	p.Add(&SquaredReLU{X: x, Out: []backend.Cast{{Out: y}}})
	p.Add(&SquaredReLUGrad{DOut: dOut, X: x, DX: []backend.Cast{{Out: dx}}})
	dev := ref.Open(nil, ref.Exact)
	run, err := backend.Load(dev, p)
	require.NoError(t, err)
	// at returns an output for inputs shifted by d.
	at := func(out *backend.Tensor, d float64) []float64 {
		inputs, grads := make([]float64, n), make([]float64, n)
		for i := range inputs {
			inputs[i], grads[i] = 3*math.Sin(float64(i))+d, math.Cos(float64(i))
		}
		require.NoError(t, dev.SetValues(x, inputs))
		require.NoError(t, dev.SetValues(dOut, grads))
		require.NoError(t, run[0].Run(t.Context()))
		values, err := dev.Values(out)
		require.NoError(t, err)
		return values
	}
	below, above := at(y, -h), at(y, h)
	for i, got := range at(dx, 0) {
		require.InDelta(t, math.Cos(float64(i))*(above[i]-below[i])/(2*h), got, 1e-5)
	}
}

var registered = register()

// octet runs a command line and returns its exit status and what it wrote to stderr.
func octet(t *testing.T, arguments ...string) (status int, errors string) {
	name := filepath.Join(t.TempDir(), "stderr")
	file, err := os.Create(name)
	require.NoError(t, err)
	stderr := os.Stderr
	os.Stderr = file
	status = command.Main(append([]string{"activation"}, arguments...), nil)
	os.Stderr = stderr
	require.NoError(t, file.Close())
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	return status, string(text)
}

// The command trains, resumes, evaluates and generates with the activation by its name, and
// refuses by name what it cannot do with it.
func TestCommand(t *testing.T) {
	require.NoError(t, registered)
	const file = "squared-relu.toml"
	corpus, dir := filepath.Join(t.TempDir(), "text.txt"), filepath.Join(t.TempDir(), "run")
	require.NoError(t, os.WriteFile(corpus, []byte(strings.Repeat("the quick brown fox ", 1000)), 0o600))
	for _, arguments := range [][]string{
		{"train", file, "--out", dir, "--data", corpus, "--steps", "4", "--backend", "emu", "--json", "train.health_every=2", "train.recompute=block", "train.ranks=2"},
		{"train", "--resume", "--out", dir, "--steps", "6", "--backend", "emu", "--json"},
		{"eval", dir, "--data", corpus, "--backend", "emu"},
		{"generate", dir, "--prompt", "the", "--tokens", "4", "--backend", "emu"},
		{"compare", file, "--backend", "ref", "--backend", "emu", "data.paths=" + corpus},
		{"plan", file, "--backend", "emu:gaudi2"},
		{"plan", file, "--backend", "cuda"},
	} {
		status, text := octet(t, arguments...)
		require.Zero(t, status, "%s: %s", arguments, text)
	}
	config, err := os.ReadFile(filepath.Join(dir, "config.toml"))
	require.NoError(t, err)
	require.Regexp(t, `activation = "squared-relu" +# .* swiglu smooth-swiglu gelu relu squared-relu\n`, string(config))

	for want, arguments := range map[string][]string{
		"unsupported by backend gaudi: no kernel for *main.SquaredReLU":                           {"plan", file, "--backend", "gaudi"},
		`octet exports models with silu, gelu or relu alone, not "squared-relu"`:                  {"export", dir, "--out", dir + "-hf", "--backend", "emu"},
		`precision.smooth = "token" needs model.activation = "smooth-swiglu", not "squared-relu"`: {"plan", file, "precision.smooth=token"},
	} {
		status, text := octet(t, arguments...)
		require.Equal(t, 2, status, "%s", arguments)
		require.Contains(t, text, want)
	}
}
