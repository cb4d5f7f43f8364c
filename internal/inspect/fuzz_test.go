package inspect

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/checkpoint"
	"octet/fp8"
	"octet/safetensors"
)

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
			m, err := measure(tensors, x, 3, func(int64) {})
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
		r.examine(config)
		_, err = json.Marshal(r)
		require.NoError(t, err)
	})
}

// FuzzDiffLine: the first difference between any two lines is a field whose values differ, and
// a line does not differ from itself.
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
