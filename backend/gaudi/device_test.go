//go:build gaudi && cgo && linux

package gaudi

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/conformance"
	"octet/backend/world"
	"octet/csrc/libsynapse"
	"octet/csrc/standin"
	"octet/fp8"
)

// The stand-in's devices are free immediately.
var _ = func() bool { resetTimeout = 100 * time.Millisecond; return true }()

// devices replaces SynapseAI by a stand-in for this test, with count devices of a model
// and an empty cache. It checks at the end that everything was released.
func devices(t *testing.T, model, count string) {
	t.Helper()
	t.Setenv("OCTET_LIBSYNAPSE", standin.Build(t, "libsynapse"))
	t.Setenv("STANDIN_GAUDI2", "0")
	t.Setenv("STANDIN_"+strings.ToUpper(model), count)
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	kernels := filepath.Join(t.TempDir(), "libtpc_kernels.so")
	require.NoError(t, os.WriteFile(kernels, nil, 0o666))
	t.Setenv("GC_KERNEL_PATH", kernels)
	t.Setenv("STANDIN_KERNELS", "1")
	t.Cleanup(func() { require.NoError(t, forgetDevice()) })
}

// forgetDevice closes the device that the process would otherwise keep.
func forgetDevice() error {
	mine.Lock()
	defer mine.Unlock()
	l := mine.local
	mine.local = nil
	if l == nil || l.lost.Load() {
		return nil
	}
	return l.close()
}

// A mode is a model with device options, and the setting that gives the stand-in the same
// behaviour.
type mode struct{ model, options, setting, value string }

var modes = []mode{
	{model: "gaudi2"},
	{model: "gaudi3"},
	{"gaudi3", "pairs=mixed", "STANDIN_MIXED", "1"},
	{"gaudi3", "e4m3=240", "STANDIN_E4M3", "240"},
}

func (m mode) begin(t *testing.T, count string) {
	devices(t, m.model, count)
	if m.setting != "" {
		t.Setenv(m.setting, m.value)
	}
}

// declines are the reasons for which a Gaudi does not support a case.
var declines = []string{
	"draws its own random bits",
	"SynapseAI gives a process one device",              // TestConformanceOfRanks
	"a transposed copy: GEMMs take operands either way", // no program for Gaudi has one
	"Gaudi takes per-tensor scales only",                // in all GEMMs
	"Gaudi's casts have no such rounding",               // BF16 with fewer bits
	"has no FP16 activations and gradients",
	"the format e4m3; the E4M3 of Gaudi 2", "the format e4m3; the E4M3 of Gaudi 3", "the format e4m3ieee; the E4M3 of Gaudi 3",
	"quantize: unsupported by backend gaudi: the format ", // besides FP8
	"the format int8 of a momentum",
	"an op of mixtures of experts",
	" × ", // a pair of formats that the matrix engine does not multiply
	"a scale beside block scales",
	" × ",                 // a pair of formats that the matrix engine does not multiply
	"signs from the seed", // of Hadamard
	"balanced smoothing scales that are not powers of two",
	"has an odd number of bytes, and HCCL moves two or four at a time",
}

// The backend on the stand-in passes every conformance case of one rank. How the device's maxima treat NaN is not documented: the stand-in keeps NaN
// or loses it.
func TestConformanceOnTheStandIn(t *testing.T) {
	for _, m := range modes {
		for _, nan := range []string{"", "drop"} {
			if nan != "" && m.options != "" {
				continue // an option changes no maximum
			}
			t.Run(m.model+m.options+nan, func(t *testing.T) {
				m.begin(t, "4")
				t.Setenv("STANDIN_NAN", nan)
				conform(t, m.options, nan)
			})
		}
	}
}

func conform(t *testing.T, options, nan string) {
	d, _, err := backend.Find("gaudi")
	require.NoError(t, err)
	all, passed, declined := 0, 0, 0
	for c := range conformance.Cases() {
		if nan == "drop" && amaxOfCasts(c) {
			continue
		}
		all++
		t.Run(c.Name, func(t *testing.T) {
			err := c.Run(t.Context(), d, options)
			if errors.Is(err, backend.ErrUnsupported) {
				declined++
				named := func(reason string) bool { return strings.Contains(err.Error(), reason) }
				require.True(t, slices.ContainsFunc(declines, named), "unexpected reason for declining: %v", err)
				t.Skip(err)
			}
			require.NoError(t, err)
			passed++
		})
	}
	t.Logf("%d of %d cases passed, %d declined", passed, all, declined)
	require.Positive(t, passed, "no selected case ran: gaudi declines them all, or none has this name")
	if passed+declined == all { // else -run selected some
		require.Greater(t, passed, 300)
	}
}

// amaxOfCasts reports whether a case's amax comes from a cast kernel, which must not lose
// a NaN, see store.
func amaxOfCasts(c conformance.Case) bool {
	op, _, _ := strings.Cut(c.Name, "/")
	return slices.Contains([]string{"matmul", "epilogue", "quantize"}, op)
}

// Every error of an unsuitable machine is one sentence that says what to do, for one rank
// and for two.
func TestUnsuitableMachines(t *testing.T) {
	for _, c := range []struct {
		variable, value string
		want            []string
	}{
		{"OCTET_LIBSYNAPSE", "missing.so", []string{"missing.so", fixSynapse}},
		{"STANDIN_GAUDI2", "0", []string{"no Gaudi 2 or 3", fixDevice}},
		{"STANDIN_SYNAPSE", "26", []string{"synInitialize returned 26 (synFail)", fixDevice}},
		{"STANDIN_DRIVER", "1.15.0.abc", []string{"version 1.15.0.abc", fixVersion}},
		{"GC_KERNEL_PATH", "", []string{"GC_KERNEL_PATH is not set", "export GC_KERNEL_PATH="}},
		{"GC_KERNEL_PATH", "missing.so", []string{"missing.so", "libtpc_kernels.so"}},
	} {
		t.Run(c.variable+"="+c.value, func(t *testing.T) {
			devices(t, "gaudi2", "2")
			if c.value == "missing.so" {
				c.value = filepath.Join(t.TempDir(), c.value)
			}
			t.Setenv(c.variable, c.value)
			_, one := open("", backend.Options{})
			for _, err := range []error{available(""), one} {
				require.ErrorIs(t, err, backend.ErrNoDevice)
				require.NotContains(t, err.Error(), "\n")
				for _, want := range c.want {
					require.ErrorContains(t, err, want)
				}
			}
			require.ErrorContains(t, one, "use --backend emu")
		})
	}
}

// acquire retries while another process holds the device, and returns all other errors at
// once.
func TestAcquireRetriesBusyDevices(t *testing.T) {
	taken := fmt.Errorf("acquire: %w", &libsynapse.Error{Call: "synDeviceAcquireByModuleId", Status: 8})
	reset := &libsynapse.Error{Call: "synDeviceAcquireByModuleId", Status: 26}
	second := &libsynapse.Error{Call: "synDeviceAcquireByModuleId", Status: 20}
	here := &libsynapse.Device{Name: "here"}
	for _, c := range []struct {
		name    string
		answers []error // the last one repeats
		tries   int
	}{
		{"free", []error{nil}, 1},
		{"free in a moment", []error{taken, nil}, 2},
		{"in use", []error{taken}, 3}, // after 0, 100 and 200 ms
		{"does not start", []error{reset}, 1},
		{"this process's", []error{second}, 1},
		{"left by another, and does not start", []error{taken, reset}, 2},
		{"no library", []error{errors.New("no library")}, 1},
	} {
		if resetTimeout = time.Minute; c.name == "in use" {
			resetTimeout = 150 * time.Millisecond
		}
		tries := 0
		d, err := acquire(func() (*libsynapse.Device, error) {
			answer := c.answers[min(tries, len(c.answers)-1)]
			tries++
			if answer != nil {
				return nil, answer
			}
			return here, nil
		})
		resetTimeout = 100 * time.Millisecond
		want := c.answers[len(c.answers)-1]
		require.Equal(t, want, err, c.name)
		require.Equal(t, want == nil, d == here, c.name)
		if c.name != "in use" { // fewer on a slow machine
			require.Equal(t, c.tries, tries, c.name)
		}
	}
}

// Errors of open on a suitable machine.
func TestOpenErrors(t *testing.T) {
	devices(t, "gaudi3", "2")
	s, err := spec("")
	require.NoError(t, err)
	require.Equal(t, "Gaudi 3", s.Device, "not this machine's model")
	_, err = open("gaudi2", backend.Options{})
	require.ErrorIs(t, err, backend.ErrNoDevice)
	require.ErrorContains(t, err, "this is a gaudi3")
	require.EqualError(t, available("gaudi2"), "no device of model gaudi2: SynapseAI shows 0 Gaudi 2 and 2 Gaudi 3")
	require.NoError(t, available("gaudi3"))
	require.NoError(t, available("1"))
	require.ErrorContains(t, available("gaudi1"), "unknown device")
	_, err = open("", backend.Options{Group: world.Local(2, time.Minute)[1]})
	require.EqualError(t, err, "backend gaudi: unsupported: SynapseAI gives a process one device: start each of the 2 ranks as a process, as octet train --ranks does")
	require.NoError(t, forgetDevice())
	_, err = open("5", backend.Options{})
	require.ErrorIs(t, err, backend.ErrNoDevice)
	require.ErrorContains(t, err, "acquire the Gaudi with module number 5")
	require.ErrorContains(t, err, "hl-smi")

	opened, err := open("1", backend.Options{})
	require.NoError(t, err)
	require.Contains(t, opened.Spec().Device, "Gaudi 3, Stand-in Gaudi3 1, SynapseAI 1.24.0-standin")
	require.Equal(t, "gaudi3+synapse1.24.0-standin", opened.Spec().Arithmetic)
	again, err := open("1", backend.Options{})
	require.NoError(t, err)
	require.NoError(t, again.Close())
	_, err = open("0", backend.Options{})
	require.ErrorIs(t, err, backend.ErrNoDevice)
	require.ErrorContains(t, err, "it already has another one")
	require.NoError(t, opened.Close())
}

// Closing a backend twice does not release a device that another backend uses.
func TestCloseTwice(t *testing.T) {
	devices(t, "gaudi2", "2")
	first, err := open("", backend.Options{})
	require.NoError(t, err)
	second, err := open("", backend.Options{})
	require.NoError(t, err)
	require.NoError(t, first.Close())
	require.NoError(t, first.Close())
	require.Equal(t, 1, mine.users)
	require.NoError(t, second.Close())
}

// A device that was acquired but did not start is released.
func TestDeviceThatDoesNotStart(t *testing.T) {
	devices(t, "gaudi2", "1")
	t.Setenv("STANDIN_OOM", "100")
	_, err := open("", backend.Options{})
	require.ErrorContains(t, err, "start the device")
	t.Setenv("STANDIN_OOM", "1000000")
	opened, err := open("", backend.Options{})
	require.NoError(t, err)
	require.NoError(t, opened.Close())
}

// loadOne loads the program adding on the stand-in.
func loadOne(t *testing.T) (*device, backend.Executable, error) {
	t.Helper()
	_, p, _, _, _, _ := adding()
	opened, err := open("", backend.Options{})
	require.NoError(t, err)
	d := opened.(*device)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	loaded, err := d.Load(p)
	if err != nil {
		return d, nil, err
	}
	return d, loaded[0], nil
}

func TestDoesNotCompile(t *testing.T) {
	devices(t, "gaudi2", "1")
	t.Setenv("STANDIN_COMPILE_FAIL", "reduce_max_multi_dim_fwd_f32")
	_, _, err := loadOne(t)
	require.ErrorContains(t, err, "gaudi: compile: recipe record: ")
	require.ErrorContains(t, err, "returned 26 (synFail)")
	require.NotErrorIs(t, err, backend.ErrUnsupported)
}

func TestOutOfMemory(t *testing.T) {
	devices(t, "gaudi2", "1")
	t.Setenv("STANDIN_OOM", "300")
	_, p, _, _, _, _ := adding()
	opened, err := open("", backend.Options{})
	if err == nil {
		defer func() { require.NoError(t, opened.Close()) }()
		_, err = opened.Load(p)
	}
	require.ErrorIs(t, err, backend.ErrOutOfMemory)
	require.ErrorContains(t, err, "synOutOfDeviceMemory")
	require.ErrorContains(t, err, "asked for")
}

// The next call that waits, and every later open, reports a lost device.
func TestDeviceLost(t *testing.T) {
	devices(t, "gaudi2", "1")
	d, x, err := loadOne(t)
	require.NoError(t, err)
	t.Setenv("STANDIN_LOST", "2")
	err = x.Run(t.Context())
	out := d.vars.Lookup("out")
	if err == nil {
		err = d.Read(out, make([]byte, out.Bytes()))
	}
	require.ErrorIs(t, err, backend.ErrDeviceLost)
	require.ErrorContains(t, err, "31 (synSynapseTerminated)")
	require.ErrorContains(t, err, "start again")
	require.NotContains(t, err.Error(), "\n")
	require.ErrorIs(t, d.Read(out, make([]byte, out.Bytes())), backend.ErrDeviceLost)
	require.NoError(t, d.Close(), "Close of a lost device")
	_, err = open("", backend.Options{})
	require.ErrorIs(t, err, backend.ErrDeviceLost)
}

// Read waits for copies that arrive late.
func TestLateCopies(t *testing.T) {
	devices(t, "gaudi2", "1")
	d, x, err := loadOne(t)
	require.NoError(t, err)
	a, out := d.vars.Lookup("a"), d.vars.Lookup("out")
	t.Setenv("STANDIN_LATE", "30")
	for _, from := range []float32{1, 2, 3} {
		require.NoError(t, d.Write(a, floats(consecutive(12, from)...)))
		require.NoError(t, x.Run(t.Context()))
		raw := make([]byte, out.Bytes())
		require.NoError(t, d.Read(out, raw))
		require.Equal(t, floats(consecutive(12, from)...), raw)
	}
}

// Recipes are compiled once and kept, and compiled again if the file is damaged.
func TestRecipesAreKept(t *testing.T) {
	devices(t, "gaudi2", "1")
	d, _, err := loadOne(t)
	require.NoError(t, err)
	require.NoError(t, d.Close())
	files, err := filepath.Glob(filepath.Join(os.Getenv("XDG_CACHE_HOME"), "octet", "gaudi", "*", "*.recipe"))
	require.NoError(t, err)
	require.Len(t, files, 2, "two units")

	again := func(damaged string) error {
		command := exec.Command(os.Args[0], "-test.run=^TestRecipesInAnotherProcess$", "-test.v")
		command.Env = append(os.Environ(), "OCTET_TEST_RECIPES=1", "STANDIN_COMPILE_FAIL="+damaged)
		out, err := command.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	require.NoError(t, forgetDevice())
	require.NoError(t, again("reduce_max_multi_dim_fwd_f32"), "the recipe is not in the cache")
	for _, f := range files {
		raw, err := os.ReadFile(f)
		require.NoError(t, err)
		raw[len(raw)/2] ^= 1
		require.NoError(t, os.WriteFile(f, raw, 0o666))
	}
	require.ErrorContains(t, again("reduce_max_multi_dim_fwd_f32"), "26 (synFail)")
	require.NoError(t, again(""))
	require.NoError(t, again("reduce_max_multi_dim_fwd_f32"))
}

// The other process of the test above.
func TestRecipesInAnotherProcess(t *testing.T) {
	if os.Getenv("OCTET_TEST_RECIPES") == "" {
		t.Skip("only runs in a process that TestRecipesAreKept starts")
	}
	_, _, err := loadOne(t)
	require.NoError(t, err)
}

// The device times the ops.
func TestNodesAreTimed(t *testing.T) {
	devices(t, "gaudi3", "2")
	opened, err := open("", backend.Options{})
	require.NoError(t, err)
	_, p, _, _, _, _ := adding()
	runs, err := opened.Load(p)
	require.NoError(t, err)
	var seen []*backend.Node
	last := time.Duration(0)
	require.NoError(t, runs[0].(backend.Timed).RunTimed(t.Context(), func(n *backend.Node, start, end time.Duration) {
		require.GreaterOrEqual(t, start, last)
		require.Greater(t, end, start, n.Path())
		seen, last = append(seen, n), end
	}))
	require.Equal(t, p.Nodes(), seen)
	require.NoError(t, opened.Close())
}

// A GEMM without scales has the same bits as one with scales of 1.
func TestGEMMWithoutScalesHasTheSameBits(t *testing.T) {
	codes := make([]byte, 48*80) // both signs, subnormals too, without the largest
	for i := range codes {
		codes[i] = byte(i*73+i>>3) &^ 0x40
	}
	for _, model := range []string{"gaudi2", "gaudi3"} {
		devices(t, model, "1")
		s := specOf(t, model)
		for _, format := range []fp8.DType{fp8.BF16, fp8.F32} {
			var results [][]byte
			for _, known := range []float32{1, 0} {
				vars := backend.NewVars()
				one := vars.Tensor(backend.Input, "one", fp8.F32, 1)
				one.Value = known
				a, b := vars.Tensor(backend.Stash, "a", s.E4M3, 48, 80), vars.Tensor(backend.Stash, "b", s.E4M3, 48, 80)
				a.Scale, b.Scale = one, one
				out := vars.Tensor(backend.Stash, "out", format, 48, 48)
				p := vars.Program("p")
				p.Add(&backend.MatMul{A: a, B: b, TransB: true, Out: out})
				opened, err := open("", backend.Options{})
				require.NoError(t, err)
				d := opened
				runs, err := d.Load(p)
				require.NoError(t, err)
				require.NoError(t, d.Write(one, floats(1)))
				require.NoError(t, d.Write(a, codes))
				require.NoError(t, d.Write(b, codes))
				require.NoError(t, runs[0].Run(t.Context()))
				raw := make([]byte, out.Bytes())
				require.NoError(t, d.Read(out, raw))
				require.NoError(t, d.Close())
				results = append(results, raw)
			}
			require.NotEqual(t, make([]byte, len(results[0])), results[0])
			require.Equal(t, results[1], results[0], "%s, %s", model, format)
		}
		require.NoError(t, forgetDevice())
	}
}
