package inspect

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/checkpoint"
	"octet/fp8"
	"octet/internal/writers"
	"octet/safetensors"
	"octet/train"
)

// config is the shape of no tensor here: package inspect takes what is there.
var config = checkpoint.Config{
	HiddenSize: 32, IntermediateSize: 48, NumHiddenLayers: 1, NumAttentionHeads: 2, NumKeyValueHeads: 1,
	VocabSize: 256, MaxPositionEmbeddings: 64, RMSNormEps: 1e-5, RopeTheta: 10000, HiddenAct: "silu", TorchDType: "float32",
}

func f32(name string, x ...float32) checkpoint.Tensor {
	return checkpoint.Tensor{Name: name, DType: fp8.F32, Shape: []int{len(x)}, Data: checkpoint.Bytes(fp8.AppendFloats(nil, x...))}
}

func codes(name string, d fp8.DType, b ...byte) checkpoint.Tensor {
	return checkpoint.Tensor{Name: name, DType: d, Shape: []int{len(b) / d.Size()}, Data: checkpoint.Bytes(b)}
}

// cast is the scale state of a cast.
func cast(name string, scale float32, history ...float32) []checkpoint.Tensor {
	return []checkpoint.Tensor{f32(name+".amax_history", history...), f32(name+".scale", scale), f32(name+".scale_inv", 1/scale)}
}

func state(change func(*train.State)) train.State {
	s := train.State{Version: 2, Octet: "devel", Backend: "emu", Recipe: "fp8-smooth", Step: 3, Seed: 1}
	if change != nil {
		change(&s)
	}
	return s
}

func save(t *testing.T, dir string, step int, s train.State, model, optimizer []checkpoint.Tensor) *checkpoint.Checkpoint {
	t.Helper()
	path, err := checkpoint.Save(dir, step, checkpoint.Contents{Config: config, Model: model, Optimizer: optimizer, State: s})
	require.NoError(t, err)
	c, err := checkpoint.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func report(t *testing.T, s train.State, model, optimizer []checkpoint.Tensor) *Report {
	t.Helper()
	r, err := Checkpoint(save(t, t.TempDir(), s.Step, s, model, optimizer))
	require.NoError(t, err)
	return r
}

// Every measure, against values that can be seen.
func TestMeasures(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(-1))
	long := make([]float32, 3*chunk+1)
	long[len(long)-1], long[chunk] = -7, nan
	r := report(t, state(nil),
		[]checkpoint.Tensor{f32("model.a.weight", 1, -2.5, 0, float32(math.Copysign(0, -1)), nan, inf, 2, 0), f32("model.long", long...), f32("none")},
		[]checkpoint.Tensor{
			codes("model.a.weight.master", fp8.F16, 0x00, 0x3c, 0x00, 0xc0), f32("model.a.weight.scale_inv", 0.25), // 1, -2
			codes("model.a.weight.m1", fp8.E4M3, 0x7e, 0x00, 0x7f), f32("model.a.weight.m1.scale_inv", 0.5), // 448, 0, NaN
			codes("model.a.weight.m2", fp8.E5M2, 0x7b, 0x7c), f32("model.a.weight.m2.scale_inv", 1, 2), // 57344, infinity; by block
			codes("optimizer.step", fp8.I32, 3, 0, 0, 0),
		})
	got := map[string]Tensor{}
	for _, x := range r.Tensors {
		got[x.Name] = x
	}
	for _, want := range []struct {
		name        string
		amax, zeros float64 // -1: nil
		notFinite   int64
		isScale     bool
	}{
		{"model.a.weight", 2.5, 3. / 8, 2, false},
		{"model.long", 7, 3 * chunk / float64(3*chunk+1) * (1 - 1./(3*chunk)), 1, false},
		{"none", -1, -1, 0, false},
		{"model.a.weight.master", 0.5, 0, 0, false},
		{"model.a.weight.scale_inv", 0.25, 0, 0, true},
		{"model.a.weight.m1", 224, 1. / 3, 1, false},
		{"model.a.weight.m2", -1, 0, 1, false},
		{"optimizer.step", -1, -1, 0, false},
	} {
		x, ok := got[want.name]
		require.True(t, ok, want.name)
		number := func(x *writers.Float) float64 {
			if x == nil {
				return -1
			}
			return float64(*x)
		}
		require.Equal(t, want.amax, number(x.Amax), want.name)
		require.InDelta(t, want.zeros, number(x.Zeros), 1e-12, want.name)
		require.Equal(t, want.notFinite, x.NotFinite, want.name)
		require.Equal(t, want.isScale, x.IsScale(), want.name)
	}
	require.Equal(t, checkpoint.ModelFile, got["model.long"].File)
	require.Equal(t, checkpoint.OptimizerFile, got["optimizer.step"].File)
	require.Len(t, r.Health, 4, "%q", r.Health)
}

func TestCasts(t *testing.T) {
	r := report(t, state(nil), nil, append(cast("layers.0.mlp.input.e4m3", 64, 3.5, 0, 7, 1.75), cast("layers.0.mlp.up_proj.grad.e5m2", 1, 0, 0)...))
	require.Len(t, r.Casts, 2)
	c := r.Casts[0]
	c.history = nil
	require.Equal(t, Cast{
		Name: "layers.0.mlp.input.e4m3", Scale: 64, ScaleInv: 1. / 64, Newest: 3.5, Lowest: 1.75, Highest: 7,
		Updates: 3, Window: 4, Fill: 0.5, format: fp8.E4M3,
	}, c)
	require.Zero(t, r.Casts[1].Highest)
	require.Zero(t, r.Casts[1].Updates)

	for want, optimizer := range map[string][]checkpoint.Tensor{
		`there is no tensor "a.e4m3.scale"`:              {f32("a.e4m3.amax_history", 1)},
		`unknown number format "x"`:                      cast("a.x", 1, 1),
		"0 maxima, 1 scales and 1 inverses":              cast("a.e4m3", 1),
		"a.e4m3.amax_history is i32 [1]: expected a few": {codes("a.e4m3.amax_history", fp8.I32, 0, 0, 0, 0)},
	} {
		_, err := Checkpoint(save(t, t.TempDir(), 3, state(nil), nil, optimizer))
		require.ErrorContains(t, err, want)
	}
}

// Each thing that can be wrong is found, by name, and nothing else is.
func TestHealth(t *testing.T) {
	nan := float32(math.NaN())
	const name = "layers.0.mlp.input.e4m3"
	healthy := cast(name, 64, 3.5, 3)
	for _, c := range []struct {
		want      string
		state     func(*train.State)
		model     []checkpoint.Tensor
		optimizer []checkpoint.Tensor
	}{
		{want: "", optimizer: healthy},
		{want: "", optimizer: cast("layers.0.mlp.up_proj.weight.e4m3", 64, 8, 7)},
		{want: "", optimizer: cast(name, 1, 0, 0), state: func(s *train.State) { s.Step = 0 }},
		{want: "", optimizer: []checkpoint.Tensor{codes("a.m1", fp8.E4M3, 0, 1), f32("b.m1", 0, 0), f32("c.grad", 0, 0)}},
		{want: "the last 2 steps were skipped: their gradients were not finite", state: func(s *train.State) { s.Skipped = 2 }},
		{want: "the run went back 1 times because its loss spiked", state: func(s *train.State) { s.Rewinds = 1 }},
		{want: "a: 1 of 2 values are not finite", model: []checkpoint.Tensor{f32("a", nan, 1)}},
		{want: "a.m2: 67% of its values are too small for e5m2 beside the largest, and zero", optimizer: []checkpoint.Tensor{codes("a.m2", fp8.E5M2, 0, 0x80, 1)}},
		{want: name + ": a maximum in its history is -1", optimizer: cast(name, 64, 3, -1)},
		{want: name + ": its scale is 0", optimizer: []checkpoint.Tensor{f32(name+".amax_history", 1), f32(name+".scale", 0), f32(name+".scale_inv", 1)}},
		{want: name + ": its scale 2 and its scale_inv 0.25 are not each other's inverse", optimizer: []checkpoint.Tensor{f32(name+".amax_history", 1), f32(name+".scale", 2), f32(name+".scale_inv", 0.25)}},
		{want: name + ": its scale 8.507059e+37 is at the end of the range of scales", optimizer: cast(name, 0x1p126, 0x1p-120, 0x1p-120)},
		{want: name + ": its newest maximum 8 is cast by scale 64, beyond the largest e4m3: it saturates", optimizer: cast(name, 64, 8, 7)},
		{want: name + ": nothing but zeros were cast in the last 2 updates", optimizer: cast(name, 64, 0, 0)},
		{want: name + ": its maximum grew from 0.125 at most to 3.5 within an update", optimizer: cast(name, 64, 3.5, 0.125, 0.0625)},
	} {
		r := report(t, state(c.state), c.model, c.optimizer)
		require.Equal(t, c.want, strings.Join(r.Health, "; "))
	}
	// What is no number is null in JSON, in a history too.
	r := report(t, state(nil), nil, []checkpoint.Tensor{f32(name+".amax_history", nan, 1), f32(name+".scale", nan), f32(name+".scale_inv", 1)})
	require.Equal(t, []string{name + ".amax_history: 1 of 2 values are not finite", name + ".scale: 1 of 1 values are not finite", name + ": a maximum in its history is NaN"}, r.Health)
	text, err := json.Marshal(r)
	require.NoError(t, err)
	require.Contains(t, string(text), `"scale":null,"scale_inv":1,"newest":null`)
}

// run makes a folder of what Diff reads.
func run(t *testing.T, metrics string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, metricsFile), []byte(metrics), 0o600))
	return dir
}

const threeSteps = `{"step":1,"loss":3,"lr":0.1,"fp8":{"a":{"amax":1,"scale":2}}}
{"step":2,"loss":2.5,"val_loss":2,"lr":0.1}
{"step":3,"loss":null,"lr":0.1}
`

func TestDiffMetrics(t *testing.T) {
	for _, c := range []struct {
		change, to string // in B
		want       MetricsDifference
	}{
		{"", "", MetricsDifference{Same: 3, StepsA: 3, StepsB: 3}},
		{`"loss":2.5`, `"loss":2.75`, MetricsDifference{1, &Field{2, "loss", "2.5", "2.75"}, 3, 3}},
		{`"scale":2`, `"scale":4`, MetricsDifference{0, &Field{1, "fp8.a.scale", "2", "4"}, 3, 3}},
		{`"loss":null`, `"loss":2`, MetricsDifference{2, &Field{3, "loss", "null", "2"}, 3, 3}},
		{`"val_loss":2,`, ``, MetricsDifference{1, &Field{2, "val_loss", "2", ""}, 3, 3}},
		{`"val_loss":2,`, `"val_loss":2,"more":[1, 2],`, MetricsDifference{1, &Field{2, "more", "", "[1,2]"}, 3, 3}},
		{`{"step":3,"loss":null,"lr":0.1}` + "\n", "", MetricsDifference{2, nil, 3, 2}},
		{`{"step":3,"loss":null,"lr":0.1}` + "\n", `{"step":3,"loss":nu`, MetricsDifference{2, nil, 3, 2}}, // being written
		{`"lr":0.1}` + "\n" + `{"step":3`, `"lr": 0.1 }` + "\n" + `{"step":3`, MetricsDifference{Same: 3, StepsA: 3, StepsB: 3}},
		{`{"step":1`, `{"step":9`, MetricsDifference{0, &Field{1, "step", "1", "9"}, 3, 3}},
	} {
		a, b := run(t, threeSteps), run(t, strings.Replace(threeSteps, c.change, c.to, 1))
		d, err := Diff(a, b)
		require.NoError(t, err)
		require.Equal(t, c.want, d.Metrics, c.to)
		require.Nil(t, d.Checkpoints)
		require.Equal(t, c.want.Same == 3, d.Equal())
	}
	whole := run(t, threeSteps)
	for _, c := range []struct{ b, want string }{
		{run(t, "{\"step\":1}\n{\"step\n"), "metrics.jsonl, line 2 is damaged"},
		{run(t, "{\"step\":1}\n[]\n"), "line 2 is damaged: expected an object"},
		{run(t, strings.Repeat(`{"a":`, 20)+"1"+strings.Repeat(`}`, 20)+"\n"), "line 1 is damaged: objects within objects, more than 16 deep"},
		{run(t, "{} {}\n"), "line 1 is damaged: something follows the object"},
		{run(t, strings.Repeat(" ", maxLine)), "metrics.jsonl, line 1: "},
		{t.TempDir(), "is not a run folder: it has no metrics.jsonl"},
	} {
		a := whole
		if strings.Contains(c.want, "line 2") {
			a = run(t, "{\"step\":1}\n{\"step\":2}\n")
		}
		_, err := Diff(a, c.b)
		require.ErrorContains(t, err, c.want)
	}
}

func TestDiffCheckpoints(t *testing.T) {
	a, b := run(t, threeSteps), run(t, threeSteps)
	nan := float32(math.NaN())
	model := []checkpoint.Tensor{f32("same", 1, 2), f32("nan", nan, 1), f32("near", 3, 4), codes("codes", fp8.E4M3, 0x38, 0x40)} // 1, 2
	put := func(dir string, step int, s train.State, optimizer ...checkpoint.Tensor) {
		save(t, filepath.Join(dir, "checkpoints"), step, s, model, optimizer)
	}
	put(a, 1, state(nil))
	put(b, 1, state(nil))
	put(a, 2, state(nil), f32("x.m1", 1), codes("optimizer.step", fp8.I32, 1, 0, 0, 0), f32("gone", 1))
	put(a, 3, state(nil))

	compare := func() *CheckpointDifference {
		t.Helper()
		d, err := Diff(a, b)
		require.NoError(t, err)
		require.Equal(t, d.Checkpoints == nil || d.Checkpoints.Equal(), d.Equal())
		return d.Checkpoints
	}
	require.Equal(t, &CheckpointDifference{Step: 1, Tensors: 4}, compare(), "of the last step that is in both")

	// Who computed a state is no part of it.
	model = []checkpoint.Tensor{f32("same", 1, 2), f32("nan", nan, 1), f32("near", 3, 5), codes("codes", fp8.E4M3, 0x38, 0x41)} // 1, 2.25
	other := state(func(s *train.State) { s.Octet, s.Backend, s.Position.Index = "another", "cuda", 7 })
	put(b, 2, other, f32("x.m1", 1), codes("optimizer.step", fp8.I32, 2, 0, 0, 0), f32("new", 1))
	got := compare()
	require.Equal(t, &Field{0, "data.index", "0", "7"}, got.State)
	require.Equal(t, []string{"gone"}, got.OnlyA)
	require.Equal(t, []string{"new"}, got.OnlyB)
	require.Equal(t, 2, got.Step)
	require.Equal(t, 6, got.Tensors)
	require.Equal(t, 3, got.Differ)
	require.Equal(t, &TensorDifference{"optimizer.step", "i32 [1]", "i32 [1]", 1, 1, 1}, got.Largest)

	// Damage is passed over: the step before is compared.
	file := filepath.Join(b, "checkpoints", "step-00000002", checkpoint.ModelFile)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, append(bytes.Clone(text[:len(text)-1]), text[len(text)-1]^1), 0o600))
	require.Equal(t, 1, compare().Step)
}

func TestDiffTensor(t *testing.T) {
	nan := float32(math.NaN())
	long, longer := make([]float32, 2*chunk+5), make([]float32, 2*chunk+5)
	long[0], longer[0] = 4, 4
	longer[chunk], longer[2*chunk+4] = 3, -4
	open := func(x checkpoint.Tensor) *checkpoint.Tensors {
		return save(t, t.TempDir(), 3, state(nil), []checkpoint.Tensor{x}, nil).Model
	}
	for _, c := range []struct {
		a, b checkpoint.Tensor
		want *TensorDifference
	}{
		{f32("x", 3, 4), f32("x", 3, 4), nil},
		{f32("x", nan), f32("x", nan), nil},
		{f32("x", 3, 4), f32("x", 3, 5), &TensorDifference{"x", "fp32 [2]", "fp32 [2]", 1, 0.2, 1}},
		{f32("x", 0, 0), f32("x", 0, float32(math.Copysign(0, -1))), &TensorDifference{"x", "fp32 [2]", "fp32 [2]", 1, 0, 0}},
		{f32("x", 0, 0), f32("x", 0, 1), &TensorDifference{"x", "fp32 [2]", "fp32 [2]", 1, writers.Float(math.Inf(1)), 1}},
		{f32("x", 2, nan), f32("x", 1, nan), &TensorDifference{"x", "fp32 [2]", "fp32 [2]", 1, writers.Float(nan), 1}},
		{f32("x", long...), f32("x", longer...), &TensorDifference{"x", "fp32 [131077]", "fp32 [131077]", 2, 1.25, 4}},
		{f32("x", 1), f32("x", 1, 2), &TensorDifference{Name: "x", A: "fp32 [1]", B: "fp32 [2]"}},
		{f32("x", 1), codes("x", fp8.E4M3, 0x38), &TensorDifference{Name: "x", A: "fp32 [1]", B: "e4m3 [1]"}},
		{codes("x", fp8.E4M3, 0x40, 0x40), codes("x", fp8.E4M3, 0x40, 0x38), &TensorDifference{"x", "e4m3 [2]", "e4m3 [2]", 1, writers.Float(math.Sqrt(1. / 8)), 1}},
	} {
		got, err := diffTensor(open(c.a), open(c.b), c.a, c.b)
		require.NoError(t, err)
		if c.want != nil && c.want.Relative != c.want.Relative {
			require.True(t, got.Relative != got.Relative)
			got.Relative, c.want.Relative = 0, 0
		}
		if c.want != nil && got != nil && !math.IsInf(float64(c.want.Relative), 0) {
			require.InDelta(t, float64(c.want.Relative), float64(got.Relative), 1e-12)
			got.Relative = c.want.Relative
		}
		require.Equal(t, c.want, got)
	}
	order := []*TensorDifference{ // each worse than those before
		{Differ: 9, Relative: 0.1}, {Differ: 1, Relative: 2}, {Differ: 1, Relative: writers.Float(math.Inf(1))}, {Differ: 1, Relative: writers.Float(nan)}, {Differ: 0},
	}
	for i, x := range order {
		for j, y := range order {
			require.Equal(t, i > j, x.worseThan(y), "%d and %d", i, j)
		}
	}
}

// FuzzMeasure: a file of any tensors under any names is measured or refused.
func FuzzMeasure(f *testing.F) {
	file := func(tensors ...checkpoint.Tensor) []byte {
		var list []safetensors.Source
		for _, x := range tensors {
			stored := map[fp8.DType]string{fp8.F32: "F32", fp8.E4M3: "F8_E4M3", fp8.E8M0: "F8_E8M0", fp8.I32: "I32"}[x.DType]
			list = append(list, safetensors.Source{Name: x.Name, DType: stored, Shape: []int64{int64(x.Shape[0])}, Data: x.Data})
		}
		var b bytes.Buffer
		require.NoError(f, safetensors.Write(&b, list, nil))
		return b.Bytes()
	}
	f.Add(file(cast("a.e4m3", 2, 1, 0)...))
	f.Add(file(cast("e5m2", 1)...))
	f.Add(file(codes("a.m1", fp8.E4M3, 0x7f, 0), f32("a.m1.scale_inv", 2), f32("b.scale_inv"), f32("b", 1), codes("c.scale_inv", fp8.E8M0, 1), codes("c", fp8.I32, 1, 2, 3, 4)))
	f.Add(file(codes("a.fp32.amax_history", fp8.E4M3, 0x7f)))
	dir := f.TempDir()
	text, err := json.Marshal(config)
	require.NoError(f, err)
	require.NoError(f, os.WriteFile(filepath.Join(dir, checkpoint.ConfigFile), text, 0o600))
	f.Fuzz(func(t *testing.T, file []byte) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, checkpoint.ModelFile), file, 0o600))
		_, tensors, err := checkpoint.OpenModel(dir)
		if err != nil {
			return
		}
		defer func() { require.NoError(t, tensors.Close()) }()
		r := Report{State: state(nil)}
		for _, x := range tensors.List() {
			m, err := measure(tensors, x)
			require.NoError(t, err)
			require.LessOrEqual(t, m.NotFinite, m.Elements())
			require.True(t, m.Zeros == nil || *m.Zeros >= 0 && *m.Zeros <= 1)
			r.Tensors = append(r.Tensors, m)
			same, err := diffTensor(tensors, tensors, x, x)
			require.NoError(t, err)
			require.Nil(t, same)
		}
		if r.Casts, err = casts(tensors); err != nil {
			return
		}
		for _, c := range r.Casts {
			require.LessOrEqual(t, c.Updates, c.Window)
		}
		r.examine()
		_, err = json.Marshal(r)
		require.NoError(t, err)
	})
}

// FuzzDiffLine: two lines of anything part in a field that is not the same on
// both sides, and a line does not part from itself.
func FuzzDiffLine(f *testing.F) {
	one, two, _ := strings.Cut(threeSteps, "\n")
	f.Add([]byte(one), []byte(two))
	f.Add([]byte(`{"a":{"b":1},"a.b":2}`), []byte(`{"a.b":2,"a":{"b":1}}`))
	f.Add([]byte(`{"a":{},"b":[{"c":1}]}`), []byte(`{"a":1,"a":2}`))
	f.Add([]byte(strings.Repeat(`{"a":`, 50)), []byte(`{"":""}`))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		fieldsA, err := flatten(a)
		if err != nil {
			return
		}
		require.True(t, json.Valid(a))
		require.Nil(t, firstDifferent(fieldsA, fieldsA))
		fieldsB, err := flatten(b)
		if err != nil {
			return
		}
		if found := firstDifferent(fieldsA, fieldsB); found != nil {
			require.NotEqual(t, found.A, found.B)
		}
	})
}
