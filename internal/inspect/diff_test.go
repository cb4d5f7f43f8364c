package inspect

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/checkpoint"
	"octet/fp8"
	"octet/internal/writers"
	"octet/train"
)

// runFolder makes a run folder with the metrics.
func runFolder(t *testing.T, metrics string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(metricsOf(dir), []byte(metrics), 0o600))
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
		a, b := runFolder(t, threeSteps), runFolder(t, strings.Replace(threeSteps, c.change, c.to, 1))
		d, err := Diff(a, b)
		require.NoError(t, err)
		require.Equal(t, c.want, d.Metrics, c.to)
		require.Nil(t, d.Checkpoints)
		require.Equal(t, c.want.Same == 3, d.Equal())
	}
	// A line may be as long as writers.MaxLine, and may have a key twice.
	var long strings.Builder
	for i := range 300_000 {
		fmt.Fprintf(&long, `"%d":0,`, i)
	}
	d, err := Diff(runFolder(t, `{"step":1,`+long.String()+`"a":1,"a":3}`+"\n"), runFolder(t, `{"step":1,`+long.String()+`"a":2}`+"\n"))
	require.NoError(t, err)
	require.Equal(t, &Field{1, "a", "1", "2"}, d.Metrics.First)

	whole := runFolder(t, threeSteps)
	for _, c := range []struct{ b, want string }{
		{runFolder(t, "{\"step\":1}\n{\"step\n"), "metrics.jsonl, line 2 is damaged"},
		{runFolder(t, "{\"step\":1}\n[]\n"), "line 2 is damaged: expected an object"},
		{runFolder(t, strings.Repeat(`{"a":`, 20)+"1"+strings.Repeat(`}`, 20)+"\n"), "line 1 is damaged: more than 16 nested objects"},
		{runFolder(t, "{} {}\n"), "line 1 is damaged: there is text after the object"},
		{runFolder(t, strings.Repeat(" ", writers.MaxLine)), "metrics.jsonl, line 1: "},
		{t.TempDir(), "is not a run folder: it has no metrics.jsonl"},
		{filepath.Join(t.TempDir(), "nothere"), "nothere does not exist: name the folder of a run"},
	} {
		a := whole
		if strings.Contains(c.want, "line 2") {
			a = runFolder(t, "{\"step\":1}\n{\"step\":2}\n")
		}
		_, err := Diff(a, c.b)
		require.ErrorContains(t, err, c.want)
	}
}

func TestDiffCheckpoints(t *testing.T) {
	a, b := runFolder(t, threeSteps), runFolder(t, threeSteps)
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

	// The version and backend of a state are ignored.
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

	// A damaged checkpoint is skipped, and the step before is compared.
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

	// Values include the scales: one, or one for each block of a row.
	matrix := func(code byte, cols int) checkpoint.Tensor {
		x := codes("x.m1", fp8.E5M2, bytes.Repeat([]byte{code}, 2*cols)...)
		x.Shape = []int{2, cols}
		return x
	}
	scaled := func(x checkpoint.Tensor, scaleInv ...float32) *checkpoint.Tensors {
		return save(t, t.TempDir(), 3, state(nil), nil, []checkpoint.Tensor{x, f32("x.m1.scale_inv", scaleInv...)}).Optimizer
	}
	const two, four = 0x40, 0x44
	for _, c := range []struct {
		a, b             byte
		scalesA, scalesB []float32
		want             *TensorDifference
	}{
		{two, four, []float32{1}, []float32{0.5}, &TensorDifference{"x.m1", "e5m2 [2 300]", "e5m2 [2 300]", 600, 0, 0}},
		{two, two, []float32{1}, []float32{1}, nil},
		{two, two, []float32{0.25}, []float32{0.5}, &TensorDifference{"x.m1", "e5m2 [2 300]", "e5m2 [2 300]", 600, 1, 0.5}},
		{two, four, []float32{3, 3, 3}, []float32{1}, &TensorDifference{"x.m1", "e5m2 [2 300]", "e5m2 [2 300]", 600, 1, 2}}, // three scales do not fit the tensor
		// Rows have a block of 256 and one of 44; the last block differs by 3·2.
		{two, two, []float32{1, 0, 0, 0}, []float32{1, 0, 0, 3}, &TensorDifference{"x.m1", "e5m2 [2 300]", "e5m2 [2 300]", 44, writers.Float(3 * math.Sqrt(44./256)), 6}},
	} {
		x, y := matrix(c.a, 300), matrix(c.b, 300)
		got, err := diffTensor(scaled(x, c.scalesA...), scaled(y, c.scalesB...), x, y)
		require.NoError(t, err)
		if c.want != nil && got != nil {
			require.InDelta(t, float64(c.want.Relative), float64(got.Relative), 1e-12)
			got.Relative = c.want.Relative
		}
		require.Equal(t, c.want, got)
	}

	order := []*TensorDifference{ // each is worse than those before
		{Differ: 9, Relative: 0.1}, {Differ: 1, Relative: 2}, {Differ: 1, Relative: writers.Float(math.Inf(1))}, {Differ: 1, Relative: writers.Float(nan)}, {Differ: 0},
	}
	for i, x := range order {
		for j, y := range order {
			require.Equal(t, i > j, x.worseThan(y), "%d and %d", i, j)
		}
	}
}
