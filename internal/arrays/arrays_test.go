package arrays

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/fp8"
	"octet/internal/npy"
	"octet/safetensors"
)

func all(t *testing.T, file, pattern string) (list []Matrix) {
	require.NoError(t, Each(file, pattern, func(m Matrix) error {
		list = append(list, m)
		return nil
	}))
	return list
}

// The same values come back from every format of both kinds of files, rows joined.
func TestReadsEveryFormat(t *testing.T) {
	dir := t.TempDir()
	want := Matrix{Rows: 4, Cols: 3, Values: []float32{0, -1, 2, 0.5, 4, -8, 1, 1.5, 3, -0.25, 16, 6}}
	double := []byte{}
	for _, v := range want.Values {
		double = append(double, 0, 0, 0, 0) // these values have few significant bits
		double = append(double, fp8.AppendFloats(nil, v)...)
	}
	for i := range want.Values { // FP64 from FP32: exponent and mantissa shift by three bits
		bits := uint64(double[8*i+4]) | uint64(double[8*i+5])<<8 | uint64(double[8*i+6])<<16 | uint64(double[8*i+7])<<24
		var x uint64
		if m := bits & 0x7fffffff; m != 0 {
			x = m<<29 + (1023-127)<<52
		}
		x |= bits >> 31 << 63
		for j := range 8 {
			double[8*i+j] = byte(x >> (8 * j))
		}
	}
	shape := []int64{2, 2, 3}
	sources := []safetensors.Source{
		{Name: "f64", DType: "F64", Shape: shape, Data: safetensors.Bytes(double)},
		{Name: "codes", DType: "U8", Shape: []int64{1}, Data: safetensors.Bytes([]byte{1})},
	}
	for _, d := range []fp8.DType{fp8.F32, fp8.BF16, fp8.F16} {
		var raw []byte
		for _, v := range want.Values {
			code := d.Nearest(v, fp8.Saturate)
			for i := range d.Size() {
				raw = append(raw, byte(code>>(8*i)))
			}
		}
		sources = append(sources, safetensors.Source{Name: d.String(), DType: d.Format().File, Shape: shape, Data: safetensors.Bytes(raw)})
	}
	var b bytes.Buffer
	require.NoError(t, safetensors.Write(&b, sources, nil))
	file := filepath.Join(dir, "x.safetensors")
	require.NoError(t, os.WriteFile(file, b.Bytes(), 0o600))
	names := []string{}
	for _, m := range all(t, file, "") {
		names = append(names, m.Name+" "+m.Source)
		m.Name, m.Source = "", ""
		require.Equal(t, want, m, names)
	}
	require.Equal(t, []string{"bf16 BF16", "f64 F64", "fp16 F16", "fp32 F32"}, names)
	require.Len(t, all(t, file, "fp*"), 2)
	for pattern, wanted := range map[string]string{
		"fp3":   "no tensor matches fp3; did you mean fp32? (4 tensors: bf16, f64, fp16, …)",
		"codes": "matches codes",
		"[":     "glob pattern",
	} {
		require.ErrorContains(t, Each(file, pattern, nil), wanted)
	}
	_, err := ReadOne(file, "fp*")
	require.ErrorContains(t, err, "holds several tensors, such as fp16 and fp32: name one")

	b.Reset()
	require.NoError(t, npy.Write(&b, npy.Array{DType: npy.Float64, Shape: []int{2, 2, 3}, Data: double}))
	file = filepath.Join(dir, "x.npy")
	require.NoError(t, os.WriteFile(file, b.Bytes(), 0o600))
	got, err := ReadOne(file, "")
	require.NoError(t, err)
	want.Name, want.Source = "x", "float64"
	require.Equal(t, want, got)
}

func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, a npy.Array) string {
		var b bytes.Buffer
		require.NoError(t, npy.Write(&b, a))
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, b.Bytes(), 0o600))
		return path
	}
	one := npy.Array{DType: npy.Float32, Shape: []int{1}, Data: make([]byte, 4)}
	for _, c := range []struct{ file, pattern, want string }{
		{"x.txt", "", ".npy or .safetensors"},
		{filepath.Join(dir, "none.npy"), "", "no such file"},
		{file("scalar.npy", npy.Array{DType: npy.Float32, Data: make([]byte, 4)}), "", "its shape is []"},
		{file("empty.npy", npy.Array{DType: npy.Float32, Shape: []int{0, 3}}), "", "its shape is [0 3]"},
		{file("ints.npy", npy.Array{DType: npy.Int32, Shape: []int{1}, Data: make([]byte, 4)}), "", "its elements are int32"},
		{file("one.npy", one), "w", "omit the tensor's name"},
	} {
		require.ErrorContains(t, Each(c.file, c.pattern, nil), c.want)
	}
}

// Codes of four and six bits lie one after the other, the first in the lowest bits; a
// format that safetensors does not name, or codes that fill no whole bytes, lie in bytes.
func TestWrites(t *testing.T) {
	e3m4, err := fp8.ParseDType("e3m4")
	require.NoError(t, err)
	fnuz, err := fp8.ParseDType("e5m2fnuz")
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "x.safetensors")
	list := []Tensor{
		{"four", fp8.E2M1, []int{2, 2}, []byte{0x21, 0x43}, ""},
		{"odd", fp8.E2M1, []int{3}, []byte{0x21, 0x03}, ""},
		{"six", fp8.E3M2, []int{1, 4}, []byte{0x01, 0x3f, 0x20, 0x15}, ""},
		{"eight", e3m4, []int{2}, []byte{7, 9}, ""},
		{"fnuz", fnuz, []int{2}, []byte{7, 9}, ""},
		{"int4", fp8.INT4, []int{4}, []byte{0xf1, 0x79}, ""},
	}
	require.NoError(t, WriteSafetensors(file, list, map[string]string{"scale": "e8m0"}))
	f, err := safetensors.Open(file)
	require.NoError(t, err)
	defer f.Close()
	for _, want := range []struct {
		name, dtype string
		data        []byte
	}{
		{"four", "F4", []byte{0x21, 0x43}},
		{"odd", "U8", []byte{1, 2, 3}},
		{"six", "F6_E3M2", []byte{0xc1, 0x0f, 0x56}},
		{"eight", "U8", []byte{7, 9}},
		{"fnuz", "F8_E5M2FNUZ", []byte{7, 9}},
		{"int4", "U8", []byte{1, 15, 9, 7}},
	} {
		got, ok := f.Tensor(want.name)
		require.True(t, ok)
		require.Equal(t, want.dtype, got.DType, want.name)
		data := make([]byte, got.Size)
		require.NoError(t, f.ReadInto(want.name, data))
		require.Equal(t, want.data, data, want.name)
	}
	require.Equal(t, "e8m0", f.Metadata()["scale"])
	require.Equal(t, "e3m4", f.Metadata()["format.eight"])

	dir := filepath.Join(t.TempDir(), "new")
	list = append(list, Tensor{"wide", fp8.BF16, []int{1, 2}, []byte{0x80, 0x3f, 0x00, 0xc0}, ""})
	require.NoError(t, WriteNpy(dir, list))
	a, err := npy.ReadFile(filepath.Join(dir, "four.npy"))
	require.NoError(t, err)
	require.Equal(t, npy.Array{DType: npy.Uint8, Shape: []int{2, 2}, Data: []byte{1, 2, 3, 4}}, a)
	a, err = npy.ReadFile(filepath.Join(dir, "wide.npy"))
	require.NoError(t, err)
	require.Equal(t, npy.Array{DType: npy.Float32, Shape: []int{1, 2}, Data: fp8.AppendFloats(nil, 1, -2)}, a)
	require.NoError(t, WriteNpy(dir, []Tensor{{Name: "w.*x1", DType: fp8.F32, Shape: []int{1}, Data: fp8.AppendFloats(nil, 1)}}))
	require.FileExists(t, filepath.Join(dir, "w.allx1.npy"))
	require.ErrorContains(t, WriteNpy(dir, []Tensor{{Name: "../x", DType: fp8.F32}}), "cannot be that of a file")
}
