package writers

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMetricsLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "metrics.jsonl")
	val := Float(2.5)
	lines := []Metrics{
		{Step: 1, Loss: 5.545177444479562, LR: 1.5e-4, GradNorm: Float(math.Inf(1)), Tokens: 2048, Skipped: true},
		{
			Step: 2, Loss: Float(math.NaN()), ValLoss: &val, LR: 3e-3, GradNorm: 0.1, Tokens: 4096,
			FP8:    map[string]FP8Stats{"layers.1.mlp.hidden": {Amax: 4, Scale: new(Float(64)), AmaxRMS: 5, Kurtosis: 3.25, SQNR: 31.5}, "layers.0.mlp.hidden": {Amax: 1e-7, Saturated: 0.5, Flushed: 0.25, SQNR: Float(math.Inf(1)), ScaleMin: new(Float(0.5)), ScaleMax: new(Float(8)), ScaleLog2Mean: new(Float(1)), ScaleLog2Std: new(Float(2))}},
			SwiGLU: map[string]SwiGLUStats{"layers.0.mlp": {Channel: 17, Amax: 3, Cosine: -1, OthersRMS: 2, CosineMean: 0.25, Aligned: 0.5, Correlation: Float(math.NaN())}},
		},
	}
	for _, line := range lines { // opened again each time, as by a resumed run
		j, err := OpenJSONL(path)
		require.NoError(t, err)
		require.NoError(t, j.Write(line))
		require.NoError(t, j.Sync())
		require.NoError(t, j.Close())
	}
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, `{"step":1,"loss":5.545177444479562,"lr":0.00015,"grad_norm":null,"tokens":2048,"skipped":true}
{"step":2,"loss":null,"val_loss":2.5,"lr":0.003,"grad_norm":0.1,"tokens":4096,"skipped":false,`+
		`"fp8":{"layers.0.mlp.hidden":{"amax":1e-07,"saturated":0.5,"flushed":0.25,"amax_rms":0,"kurtosis":0,"sqnr_db":null,"scale_min":0.5,"scale_max":8,"scale_log2_mean":1,"scale_log2_std":2},"layers.1.mlp.hidden":{"amax":4,"scale":64,"saturated":0,"flushed":0,"amax_rms":5,"kurtosis":3.25,"sqnr_db":31.5}},`+
		`"swiglu":{"layers.0.mlp":{"channel":17,"amax":3,"median":0,"cosine":-1,"norm_up":0,"norm_gate":0,"others_rms":2,"cosine_mean":0.25,"aligned":0.5,"correlation":null}}}
`, string(text))
}

func TestTimingLine(t *testing.T) {
	mfu := Float(0.34)
	text, err := json.Marshal(Timing{Step: 1, StepSeconds: 0.1, TokensPerSec: 2e4, FlopsPerSec: 1e21, MFU: &mfu, Memory: 31e6})
	require.NoError(t, err)
	require.Equal(t, `{"step":1,"step_s":0.1,"tokens_per_s":20000,"flops_per_s":1e+21,"mfu":0.34,"memory":31000000}`, string(text))
}

// Unknown values are absent, zeros are not: an idle device, or a clock without throttling.
func TestDevicesOfATimingLine(t *testing.T) {
	text, err := json.Marshal(Timing{Devices: []Device{
		{
			Utilization: new(0.97), MemoryUsed: new(int64(6 << 30)), MemoryTotal: new(int64(24 << 30)), Power: new(300.25),
			Temperature: new(60.0), Clock: new(1755.0), Throttled: []string{"power cap"}, Energy: new(1e7),
		},
		{Utilization: new(0.0), Throttled: []string{}, Energy: new(0.0), EnergyEstimated: true},
		{},
	}})
	require.NoError(t, err)
	require.Equal(t, `{"step":0,"step_s":0,"tokens_per_s":0,"flops_per_s":0,"memory":0,"devices":[`+
		`{"utilization":0.97,"memory_used":6442450944,"memory_total":25769803776,"power_w":300.25,"temperature_c":60,"clock_mhz":1755,"throttled":["power cap"],"energy_j":10000000},`+
		`{"utilization":0,"throttled":[],"energy_j":0,"energy_estimated":true},`+
		`{}]}`, string(text))
}

// Every line is in the file before Write returns: a killed process loses none.
func TestLinesAreNotBuffered(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.jsonl")
	j, err := OpenJSONL(path)
	require.NoError(t, err)
	defer j.Close()
	for i := range 3 {
		require.NoError(t, j.Write(Timing{Step: i}))
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, i+1, bytes.Count(text, []byte("\n")))
	}
}

// The digits read back as the same bits.
func TestFloatPrecision(t *testing.T) {
	for _, x := range []float64{0, math.Copysign(0, -1), 1.0 / 3, math.SmallestNonzeroFloat64, math.MaxFloat64, 1e21, 1e-7, float64(float32(0.1))} {
		text, err := json.Marshal(Float(x))
		require.NoError(t, err)
		var again float64
		require.NoError(t, json.Unmarshal(text, &again))
		require.Equal(t, math.Float64bits(x), math.Float64bits(again), string(text))
	}
}

func TestTruncateAfter(t *testing.T) {
	whole := func(steps ...int) (text string) {
		for _, s := range steps {
			text += fmt.Sprintf(`{"step":%d,"loss":1.5}`+"\n", s)
		}
		return text
	}
	for _, test := range []struct{ name, text, want string }{
		{"nothing to cut", whole(1, 2, 3), whole(1, 2, 3)},
		{"later steps", whole(1, 2, 3, 4, 5), whole(1, 2, 3)},
		{"a gap", whole(1, 2, 8, 9), whole(1, 2)},
		{"all", whole(4, 5), ""},
		{"empty", "", ""},
		{"torn", whole(1, 2) + `{"step":3,"lo`, whole(1, 2)},
		{"torn before its newline", whole(1, 2) + `{"step":3}`, whole(1, 2)},
		{"torn later step", whole(1, 2, 3, 4) + `{"st`, whole(1, 2, 3)},
		{"zeros after a power cut", whole(1, 2) + strings.Repeat("\x00", 5000), whole(1, 2)},
		{"damaged lines at the end", whole(1, 2) + "{}\n\x00\x00\n", whole(1, 2)},
		{"a long line", `{"step":1,"x":"` + strings.Repeat("y", 200_000) + "\"}\n" + whole(4), `{"step":1,"x":"` + strings.Repeat("y", 200_000) + "\"}\n"},
	} {
		path := filepath.Join(t.TempDir(), "metrics.jsonl")
		require.NoError(t, os.WriteFile(path, []byte(test.text), 0o600))
		for range 2 { // the second call changes nothing
			last, err := TruncateAfter(path, 3)
			require.NoError(t, err, test.name)
			require.Equal(t, strings.Count(test.want, "\n"), last, test.name)
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, test.want, string(text), test.name)
		}
	}
	path := filepath.Join(t.TempDir(), "metrics.jsonl")
	last, err := TruncateAfter(path, 3)
	require.NoError(t, err)
	require.Zero(t, last)
	require.NoFileExists(t, path)

	damaged := whole(1) + "{\n" + whole(2, 3)
	require.NoError(t, os.WriteFile(path, []byte(damaged), 0o600))
	_, err = TruncateAfter(path, 3)
	require.ErrorContains(t, err, "line 2 is damaged")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, damaged, string(text), "left as it was")
}

func TestMinValLoss(t *testing.T) {
	path := filepath.Join(t.TempDir(), "metrics.jsonl")
	for _, test := range []struct {
		text string
		step int
		loss float64
	}{
		{"", 0, 0},
		{`{"step":1,"loss":1}` + "\n", 0, 0},
		{`{"step":1,"val_loss":null}` + "\n" + `{"step":2,"val_loss":3}` + "\n" + `{"step":3,"loss":1}` + "\n" + `{"step":4,"val_loss":2.5}` + "\n" + `{"step":5,"val_loss":2.5}` + "\n", 4, 2.5},
		{"damaged\n" + `{"step":2,"val_loss":-1}` + "\n" + `{"step":3,"val_loss":-2}`, 2, -1},
	} {
		require.NoError(t, os.WriteFile(path, []byte(test.text), 0o600))
		step, loss, err := MinValLoss(path)
		require.NoError(t, err)
		require.Equal(t, test.step, step, test.text)
		require.Equal(t, test.loss, loss, test.text)
	}
}

// Sync distinguishes a missing file from a failed lookup.
func TestSyncWithoutTheFile(t *testing.T) {
	dir := t.TempDir()
	folder := filepath.Join(dir, "run")
	require.NoError(t, os.Mkdir(folder, 0o700))
	j, err := OpenJSONL(filepath.Join(folder, MetricsFile))
	require.NoError(t, err)
	defer j.Close()
	require.NoError(t, j.Sync())
	if runtime.GOOS != "windows" { // Windows does not move a folder with an open file
		moved := filepath.Join(dir, "moved")
		require.NoError(t, os.Rename(folder, moved))
		require.ErrorContains(t, j.Sync(), "was removed or replaced")
		require.NoError(t, os.Symlink("run", folder)) // to itself
		err = j.Sync()
		require.ErrorIs(t, err, syscall.ELOOP)
		require.NotContains(t, err.Error(), "was removed or replaced")
		require.NoError(t, os.Remove(folder))
		require.NoError(t, os.Rename(moved, folder))
		require.NoError(t, j.Sync())
	}
}

// Any number of zeros without a newline, as a power cut leaves them, are a torn end. A line
// longer than MaxLine is damaged. Neither is kept in memory.
func TestTruncateLongLines(t *testing.T) {
	const whole = "{\"step\":1}\n"
	zeros := io.LimitReader(zeroReader{}, 1<<28)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	keep, _, err := lengthUpTo(io.MultiReader(strings.NewReader(whole), zeros), 9)
	runtime.ReadMemStats(&after)
	require.NoError(t, err)
	require.EqualValues(t, len(whole), keep)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(8*MaxLine))

	padded := "{\"step\":2}" + strings.Repeat(" ", MaxLine) + "\n"
	keep, _, err = lengthUpTo(strings.NewReader(whole+padded), 9)
	require.NoError(t, err)
	require.EqualValues(t, len(whole), keep)
	_, _, err = lengthUpTo(strings.NewReader(whole+padded+whole), 9)
	require.ErrorContains(t, err, "line 2 is damaged")
	keep, _, err = lengthUpTo(strings.NewReader(whole+padded[:10]+padded[len(padded)-MaxLine/2:]), 9)
	require.NoError(t, err)
	require.EqualValues(t, len(whole)+10+MaxLine/2, keep, "a line of the largest length")
}

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// lengthUpTo keeps a prefix of complete lines with steps up to the limit.
func FuzzTruncate(f *testing.F) {
	f.Add([]byte("{\"step\":1}\n{\"step\":2}\n{\"ste"), 1)
	f.Add([]byte("{\"step\":1}\n{\n{\"step\":2}\n"), 5)
	f.Add([]byte("\x00\n\n{}"), 0)
	f.Fuzz(func(t *testing.T, text []byte, step int) {
		keep, last, err := lengthUpTo(bytes.NewReader(text), step)
		if err != nil {
			return
		}
		require.LessOrEqual(t, keep, int64(len(text)))
		kept := text[:keep]
		require.True(t, len(kept) == 0 || kept[len(kept)-1] == '\n')
		again, sameLast, err := lengthUpTo(bytes.NewReader(kept), step)
		require.NoError(t, err)
		require.Equal(t, keep, again)
		require.Equal(t, last, sameLast)
		ends := 0
		for line := range bytes.Lines(kept) {
			var l struct {
				Step *int `json:"step"`
			}
			require.NoError(t, json.Unmarshal(line, &l))
			require.LessOrEqual(t, *l.Step, step)
			ends = *l.Step
		}
		require.Equal(t, ends, last)
	})
}
