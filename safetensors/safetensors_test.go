package safetensors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// raw returns a file with the given header and data, valid or not.
func raw(header string, data []byte) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), data...)
}

func openBytes(b []byte) (*File, error) { return NewReader(bytes.NewReader(b), int64(len(b))) }

func write(t testing.TB, tensors []Source, metadata map[string]string) []byte {
	var b bytes.Buffer
	require.NoError(t, Write(&b, tensors, metadata))
	return b.Bytes()
}

// TestWriteBytes compares two small files with bytes derived by hand from the
// format's description.
func TestWriteBytes(t *testing.T) {
	require.Equal(t, raw("{}      ", nil), write(t, nil, nil))

	got := write(t, []Source{
		{"b", "F8_E4M3", []int64{3}, Bytes([]byte{1, 2, 3})},
		{"c", "F32", []int64{}, Bytes([]byte{4, 5, 6, 7})},
		{"a", "F8_E4M3", []int64{1, 0}, Bytes(nil)},
	}, map[string]string{"k": "v\n", "e4m3_max": "240"})
	header := `{"__metadata__":{"e4m3_max":"240","k":"v\n"},` +
		`"c":{"dtype":"F32","shape":[],"data_offsets":[0,4]},` +
		`"a":{"dtype":"F8_E4M3","shape":[1,0],"data_offsets":[4,4]},` +
		`"b":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[4,7]}}`
	header += strings.Repeat(" ", (8-len(header)%8)%8)
	require.Equal(t, raw(header, []byte{4, 5, 6, 7, 1, 2, 3}), got)
}

// TestRoundTrip writes random tensors and reads them back. The file must depend
// neither on the order of the tensors nor on the sizes of the written pieces.
func TestRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var tensors []Source
		data := map[string][]byte{}
		for i := range rng.IntN(12) {
			name := fmt.Sprintf("layers.%d.\"µ\"\\%c", i, rune(32+rng.IntN(5000)))
			dtype := rng.IntN(len(dtypes))
			shape := make([]int64, rng.IntN(4))
			for d := range shape {
				shape[d] = rng.Int64N(6)
			}
			if dtypes[dtype].bits < 8 {
				shape = append(shape, 4) // fill whole bytes
			}
			size, err := byteSize(dtype, shape)
			require.NoError(t, err)
			bytes := make([]byte, size)
			for j := range bytes {
				bytes[j] = byte(rng.Uint32())
			}
			data[name] = bytes
			tensors = append(tensors, Source{name, dtypes[dtype].name, shape, Bytes(bytes)})
		}
		metadata := map[string]string{"format": "pt", "µ<&>": "\x00 "}
		file := write(t, tensors, metadata)

		rng.Shuffle(len(tensors), func(i, j int) { tensors[i], tensors[j] = tensors[j], tensors[i] })
		for i := range tensors {
			b := data[tensors[i].Name]
			tensors[i].Data = func(w io.Writer) error {
				for j := range b {
					if _, err := w.Write(b[j : j+1]); err != nil {
						return err
					}
				}
				return nil
			}
		}
		require.Equal(t, file, write(t, tensors, metadata))

		f, err := openBytes(file)
		require.NoError(t, err)
		require.Equal(t, metadata, f.Metadata())
		require.Len(t, f.Tensors(), len(tensors))
		for _, want := range tensors {
			got, ok := f.Tensor(want.Name)
			require.True(t, ok)
			require.Equal(t, want.DType, got.DType)
			require.Equal(t, want.Shape, got.Shape)
			require.Zero(t, got.Offset%max(1, dtypes[dtypeIndex(got.DType)].bits/8), "misaligned tensor")
			b := make([]byte, got.Size)
			require.NoError(t, f.ReadInto(want.Name, b))
			require.Equal(t, data[want.Name], b)
			section, err := f.Section(want.Name)
			require.NoError(t, err)
			b, err = io.ReadAll(section)
			require.NoError(t, err)
			require.Equal(t, data[want.Name], b)
		}
		require.NoError(t, f.Close())
	}
}

func TestOpenRefuses(t *testing.T) {
	data := make([]byte, 8)
	one := func(s string) string { return `{"a":` + s + `}` }
	two := func(a, b string) string {
		return `{"a":{"dtype":"U8","shape":[4],"data_offsets":` + a + `},"b":{"dtype":"U8","shape":[4],"data_offsets":` + b + `}}`
	}
	for _, c := range []struct{ header, want string }{
		{``, "does not start with {"},
		{` {}`, "does not start with {"},
		{`[]`, "does not start with {"},
		{`{`, "JSON: unexpected EOF"},
		{`{"a"`, "JSON: unexpected EOF"},
		{"{\"\xff\":{}}", "not valid UTF-8"},
		{`{} {}`, "trailing data after the closing brace at byte 2"},
		{"{}\x00", "trailing data"},
		{one(`1`), `tensor "a": expected {, got "1"`},
		{one(`null`), "expected {"},
		{one(`{}`), "all required"},
		{one(`{"dtype":"U8","shape":[8]}`), "all required"},
		{one(`{"dtype":"U8","shape":[8],"data_offsets":[0,8],"extra":1}`), `unknown key "extra"`},
		{one(`{"DType":"U8","shape":[8],"data_offsets":[0,8]}`), `unknown key "DType"`},
		{one(`{"dtype":"U8","dtype":"U8","shape":[8],"data_offsets":[0,8]}`), `the key "dtype" appears twice`},
		{one(`{"dtype":"U8","shape":[],"shape":[8],"data_offsets":[0,8]}`), `the key "shape" appears twice`},
		{one(`{"dtype":"F7","shape":[8],"data_offsets":[0,8]}`), `unknown dtype "F7"`},
		{one(`{"dtype":8,"shape":[8],"data_offsets":[0,8]}`), "dtype: expected a string"},
		{one(`{"dtype":"U8","shape":8,"data_offsets":[0,8]}`), "shape: expected ["},
		{one(`{"dtype":"U8","shape":["8"],"data_offsets":[0,8]}`), "expected an integer"},
		{one(`{"dtype":"U8","shape":[8.0],"data_offsets":[0,8]}`), "expected an integer"},
		{one(`{"dtype":"U8","shape":[8e0],"data_offsets":[0,8]}`), "expected an integer"},
		{one(`{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,8]}`), "at most 64 bits"},
		{one(`{"dtype":"U8","shape":[-8],"data_offsets":[0,8]}`), "negative dimension"},
		{one(`{"dtype":"U8","shape":[-1,-8],"data_offsets":[0,8]}`), "negative dimension"},
		{one(`{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,8]}`), "number of elements overflows 64 bits"},
		{one(`{"dtype":"F64","shape":[2305843009213693953],"data_offsets":[0,8]}`), "number of bits overflows 64 bits"},
		{one(`{"dtype":"F4","shape":[3],"data_offsets":[0,2]}`), "not a whole number of bytes"},
		{one(`{"dtype":"U8","shape":[8],"data_offsets":[0]}`), "expected [begin, end]"},
		{one(`{"dtype":"U8","shape":[8],"data_offsets":[0,8,8]}`), "data_offsets: more than 2 numbers"},
		{one(`{"dtype":"U8","shape":[8` + strings.Repeat(",1", 64) + `],"data_offsets":[0,8]}`), "shape: more than 64 numbers"},
		{one(`{"dtype":"U8","shape":[8],"data_offsets":[8,0]}`), "expected [begin, end]"},
		{one(`{"dtype":"U8","shape":[8],"data_offsets":[-8,0]}`), "expected [begin, end]"},
		{one(`{"dtype":"U8","shape":[8],"data_offsets":[0,7]}`), "has 8 bytes, but its data_offsets [0, 7] span 7"},
		{one(`{"dtype":"U8","shape":[9],"data_offsets":[0,9]}`), "truncated"},
		{one(`{"dtype":"U8","shape":[4],"data_offsets":[9223372036854775803,9223372036854775807]}`), "gap"},
		{one(`{"dtype":"U8","shape":[7],"data_offsets":[0,7]}`), "1 bytes at the end belong to no tensor"},
		{one(`{"dtype":"U8","shape":[7],"data_offsets":[1,8]}`), `gap before tensor "a"`},
		{two(`[0,4]`, `[0,4]`), "overlaps"},
		{two(`[0,4]`, `[3,7]`), "overlaps"},
		{two(`[4,8]`, `[4,8]`), "gap"},
		{`{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[0],"data_offsets":[4,4]}}`, "overlaps"},
		{`{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"\u0061":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}`, `the name "a" appears twice`},
		{`{"__metadata__":{"k":1}}`, `__metadata__: "k": expected a string`},
		{`{"__metadata__":{"k":{"deep":"x"}}}`, "expected a string"},
		{`{"__metadata__":{"k":"","k":""}}`, `the key "k" appears twice`},
		{`{"__metadata__":{},"__metadata__":{}}`, "appears twice"},
		{`{"__metadata__":null}`, "expected {"},
		{strings.Repeat(`{"a":`, 1_000_000), `unknown key "a"`},
		{one(`{"shape":` + strings.Repeat("[", 1_000_000)), "expected an integer"},
		{`{"` + strings.Repeat("x", 1000) + `":1}`, `x"…: expected {`},
	} {
		_, err := openBytes(raw(c.header, data))
		require.ErrorContains(t, err, c.want, "%.200s", c.header)
		require.NotContains(t, err.Error(), "\n")
		require.Less(t, len(err.Error()), 400)
	}

	_, err := openBytes([]byte("short"))
	require.ErrorContains(t, err, "it has 5 bytes")
	_, err = openBytes(binary.LittleEndian.AppendUint64(nil, 100_000_001))
	require.ErrorContains(t, err, "must be at most 100000000")
	_, err = openBytes(binary.LittleEndian.AppendUint64(nil, 1<<63+1))
	require.ErrorContains(t, err, "must be at most")
	_, err = openBytes(raw("{}", nil)[:9])
	require.ErrorContains(t, err, "truncated: header length is 2 bytes, file size 9")
}

// TestTruncated checks that a file truncated at any byte, or with one byte too
// many, does not open.
func TestTruncated(t *testing.T) {
	file := write(t, []Source{{"a", "F32", []int64{2}, Bytes(make([]byte, 8))}, {"b", "U8", []int64{1}, Bytes([]byte{1})}}, nil)
	for n := range file {
		_, err := openBytes(file[:n])
		require.Error(t, err, "%d of %d bytes", n, len(file))
	}
	_, err := openBytes(append(file, 0))
	require.ErrorContains(t, err, "belong to no tensor")
}

// TestOpenAllocatesLittle checks that small files with large sizes in the header
// do not make Open allocate those sizes.
func TestOpenAllocatesLittle(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	require.NoError(t, os.WriteFile(path, append(binary.LittleEndian.AppendUint64(nil, maxHeader), '{'), 0o666))
	huge := raw(`{"a":{"dtype":"U8","shape":[576460752303423488],"data_offsets":[0,576460752303423488]}}`, nil)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 10 {
		_, err := Open(path)
		require.ErrorContains(t, err, "truncated")
		_, err = openBytes(huge)
		require.ErrorContains(t, err, "truncated")
	}
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
}

// TestHeaderMemory checks that parsing any header allocates at most maxMemory
// times its length.
func TestHeaderMemory(t *testing.T) {
	const n = 20_000
	repeat := func(open, each, end string) string {
		var b strings.Builder
		b.WriteString(open)
		for i := range n {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(strings.ReplaceAll(each, "#", strconv.Itoa(i)))
		}
		return b.String() + end
	}
	for name, header := range map[string]string{
		"empty tensors":  repeat(`{`, `"#":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`, `}`),
		"long shape":     repeat(`{"a":{"dtype":"U8","data_offsets":[0,0],"shape":[`, `0`, `]}}`),
		"metadata":       repeat(`{"__metadata__":{`, `"#":""`, `}}`),
		"long name":      `{"` + strings.Repeat("x", 40*n) + `":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`,
		"escapes":        `{"` + strings.Repeat(`\u0001`, 10*n) + `":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`,
		"white space":    `{` + strings.Repeat(" ", 40*n) + `}`,
		"duplicates":     repeat(`{`, `"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`, `}`),
		"deep":           strings.Repeat(`{"a":`, 10*n),
		"deep metadata":  `{"__metadata__":` + strings.Repeat(`[`, 40*n),
		"long offsets":   repeat(`{"a":{"dtype":"U8","shape":[0],"data_offsets":[`, `0`, `]}}`),
		"a long integer": `{"a":{"dtype":"U8","shape":[` + strings.Repeat("9", 40*n) + `]}}`,
	} {
		file := raw(header, nil)
		took := allocated(func() { _, _ = openBytes(file) })
		t.Logf("%-15s %9d bytes of header, %5.1f times that", name, len(header), float64(took)/float64(len(header)))
		require.Less(t, took, uint64(maxMemory*len(header)), name)
	}
}

// maxMemory is the maximum number of bytes that opening a file may allocate per
// byte of its header. (The decoder adds a constant.)
const maxMemory = 40

// allocated returns the number of bytes that f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestReadErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.safetensors")
	file := write(t, []Source{{"a", "U8", []int64{4}, Bytes([]byte{1, 2, 3, 4})}}, nil)
	require.NoError(t, os.WriteFile(path, file, 0o666))
	f, err := Open(path)
	require.NoError(t, err)
	defer f.Close()
	require.ErrorContains(t, f.ReadInto("b", nil), `model.safetensors: no tensor "b"`)
	require.ErrorContains(t, f.ReadInto("a", make([]byte, 3)), "has 4 bytes, but the destination has 3")
	_, err = f.Section("b")
	require.ErrorContains(t, err, `no tensor "b"`)
	_, ok := f.Tensor("b")
	require.False(t, ok)

	require.NoError(t, os.Truncate(path, int64(len(file)-1)))
	require.ErrorIs(t, f.ReadInto("a", make([]byte, 4)), io.ErrUnexpectedEOF)

	_, err = Open(t.TempDir())
	require.ErrorContains(t, err, "not a regular file")
	_, err = Open(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestWriteRefuses(t *testing.T) {
	a := Source{"a", "U8", []int64{2}, Bytes([]byte{1, 2})}
	with := func(f func(*Source)) []Source { s := a; f(&s); return []Source{s} }
	for _, c := range []struct {
		tensors []Source
		want    string
	}{
		{[]Source{a, a}, `tensor "a": the name appears twice`},
		{with(func(s *Source) { s.Name = "__metadata__" }), "reserves this name"},
		{with(func(s *Source) { s.Name = "\xff" }), "UTF-8"},
		{with(func(s *Source) { s.DType = "e4m3" }), `unknown dtype "e4m3"`},
		{with(func(s *Source) { s.Shape = []int64{-2} }), "negative"},
		{with(func(s *Source) { s.Shape = []int64{1 << 40, 1 << 40} }), "elements overflows"},
	} {
		var b bytes.Buffer
		require.ErrorContains(t, Write(&b, c.tensors, nil), c.want)
		require.Zero(t, b.Len(), "Write wrote before it had checked everything")
	}
	require.ErrorContains(t, Write(io.Discard, nil, map[string]string{"k": "\xff"}), "UTF-8")

	var b bytes.Buffer
	require.ErrorContains(t, Write(&b, with(func(s *Source) { s.Data = Bytes([]byte{1}) }), nil), "ended 1 bytes short of 2")
	b.Reset()
	require.ErrorContains(t, Write(&b, with(func(s *Source) { s.Data = Bytes([]byte{1, 2, 3}) }), nil), "exceeds the tensor's shape")
	broken := errors.New("device lost")
	require.ErrorIs(t, Write(io.Discard, with(func(s *Source) { s.Data = func(io.Writer) error { return broken } }), nil), broken)
}

func TestSharded(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, tensors ...string) {
		var list []Source
		for _, n := range tensors {
			list = append(list, Source{n, "U8", []int64{1}, Bytes([]byte(n[:1]))})
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), write(t, list, nil), 0o666))
	}
	index := filepath.Join(dir, "model.safetensors.index.json")
	open := func(text string) ([]*File, error) {
		require.NoError(t, os.WriteFile(index, []byte(text), 0o666))
		return OpenSharded(index)
	}
	file("model-1.safetensors", "a", "b")
	file("model-2.safetensors", "c")

	files, err := open(`{"metadata":{"total_size":3},"weight_map":{"a":"model-1.safetensors","b":"model-1.safetensors","c":"model-2.safetensors"}}`)
	require.NoError(t, err)
	require.Len(t, files, 2)
	b := make([]byte, 1)
	require.NoError(t, files[1].ReadInto("c", b))
	require.Equal(t, "c", string(b))
	for _, f := range files {
		require.NoError(t, f.Close())
	}

	for _, c := range []struct{ text, want string }{
		{`{"weight_map":{"a":"model-1.safetensors"}}`, `tensor "b" is in model-1.safetensors, but is not in the index`},
		{`{"weight_map":{"a":"model-1.safetensors","b":"model-2.safetensors","c":"model-2.safetensors"}}`, "but the index says"},
		{`{"weight_map":{"a":"model-1.safetensors","b":"model-1.safetensors","d":"model-1.safetensors"}}`, "lacks 1 of the 3 tensors"},
		{`{"weight_map":{"a":"model-3.safetensors"}}`, "model-3.safetensors"},
		{`{"weight_map":{"a":"../x"}}`, "not a plain file name"},
		{`{"weight_map":{"a":"sub/x"}}`, "not a plain file name"},
		{`{"weight_map":{"a":"sub\\x"}}`, "not a plain file name"},
		{`{"weight_map":{"a":"C:x"}}`, "not a plain file name"},
		{`{"weight_map":{"a":"/etc/passwd"}}`, "not a plain file name"},
		{`{"weight_map":{"a":""}}`, "not a plain file name"},
		{`{"weight_map":{"a":"."}}`, "not a plain file name"},
		{`{"weight_map":{}}`, "lists no tensors"},
		{`{}`, "lists no tensors"},
		{`[`, "JSON"},
		{strings.Repeat(`[`, 100_000), "JSON"},
	} {
		_, err := open(c.text)
		require.ErrorContains(t, err, c.want, "%.100s", c.text)
	}
}
