package npy

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// file returns a file of version 1 with a header and data, valid or not.
func file(header, data string) []byte {
	return []byte(magic + "\x01\x00" + string([]byte{byte(len(header)), byte(len(header) >> 8)}) + header + data)
}

func write(t testing.TB, a Array) []byte {
	var b bytes.Buffer
	require.NoError(t, Write(&b, a))
	return b.Bytes()
}

// The bytes are those that numpy 2 writes for arange(3, dtype='<f4').
func TestWriteBytes(t *testing.T) {
	header := "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }" + strings.Repeat(" ", 60) + "\n"
	data := "\x00\x00\x00\x00\x00\x00\x80?\x00\x00\x00@"
	require.Len(t, header, 118)
	require.Equal(t, string(file(header, data)), string(write(t, Array{Float32, []int{3}, []byte(data)})))
}

func TestRoundTrip(t *testing.T) {
	for _, f := range formats {
		for _, shape := range [][]int{{}, {3}, {2, 3}, {2, 1, 5}, {0, 4}} {
			n, ok := bytesOf(f.dtype, shape)
			require.True(t, ok)
			data := make([]byte, n)
			for i := range data {
				data[i] = byte(i + 1)
			}
			want := Array{f.dtype, shape, data}
			raw := write(t, want)
			require.Zero(t, (len(raw)-n)%64)
			got, err := Parse(raw)
			require.NoError(t, err)
			require.Equal(t, want, got)
			path := filepath.Join(t.TempDir(), "x.npy")
			require.NoError(t, os.WriteFile(path, raw, 0o600))
			got, err = ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
	}
	require.Error(t, Write(&bytes.Buffer{}, Array{"float8", []int{1}, []byte{1}}))
	require.Error(t, Write(&bytes.Buffer{}, Array{Float32, []int{2}, make([]byte, 4)}))
}

// Other writers order the keys differently, use double quotes, or longer lengths.
func TestParseVariants(t *testing.T) {
	want := Array{Uint8, []int{2, 1}, []byte("ab")}
	for _, header := range []string{
		`{"shape":(2,1),"fortran_order":False,"descr":"|u1"}`,
		"{'descr': '<u1', 'fortran_order': False, 'shape': (2, 1,)} \n",
	} {
		got, err := Parse(file(header, "ab"))
		require.NoError(t, err, header)
		require.Equal(t, want, got)
	}
	header := "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 1), }"
	for _, version := range []string{"\x02", "\x03"} {
		got, err := Parse([]byte(magic + version + "\x00" + string([]byte{byte(len(header)), 0, 0, 0}) + header + "ab"))
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

func TestParseRefuses(t *testing.T) {
	good := func(descr, order, shape string) string {
		return "{'descr': " + descr + ", 'fortran_order': " + order + ", 'shape': " + shape + ", }"
	}
	for _, c := range []struct{ header, want string }{
		{good("'<f4'", "True", "(1, 1)"), "fortran_order is True: the array is column-major (store numpy.ascontiguousarray(x))"},
		{good("'>f4'", "False", "(1,)"), "big-endian"},
		{good("'<c8'", "False", "(1,)"), "descr is '<c8'"},
		{good("'|O'", "False", "(1,)"), "descr is '|O'"},
		{good("[('a', '<f4')]", "False", "(1,)"), "list of fields"},
		{good("'<f4'", "0", "(1,)"), "expected True or False"},
		{good("'<f4'", "False", "(1)"), "expected a tuple, such as (1,)"},
		{good("'<f4'", "False", "(-1,)"), "shape: expected"},
		{good("'<f4'", "False", "(99999999999999999999,)"), "shape: expected"},
		{good("'<f4'", "False", "(4294967296, 4294967296, 4294967296)"), "needs another number of bytes"},
		{good("'<f4'", "False", "(2,)"), "needs another number of bytes than the 4"},
		{good("'<f4'", "False", "(1,)") + "x", "text follows"},
		{"{'descr': '<f4', 'descr': '<f4'}", "appears twice"},
		{"{'descr': '<f4', 'more': 1}", "unknown key 'more'"},
		{"{'descr': '<f4'}", "all required"},
		{"{'descr': '<f4", "expected a string"},
		{"{'descr' '<f4'", "expected :"},
		{"[]", "expected {"},
		{"", "expected {"},
	} {
		_, err := Parse(file(c.header, "1234"))
		require.ErrorContains(t, err, c.want, c.header)
	}
	for raw, want := range map[string]string{
		"":                             "not a .npy file",
		"PK\x03\x04":                   "not a .npy file",
		magic + "\x09\x00\x01\x00":     "version 9",
		magic + "\x01\x00\x05\x00{":    "truncated: its header has 5 bytes, 1 follow",
		magic + "\x02\x00\x05\x00":     "truncated within",
		magic + "\x03\x00\xff\xff\xff": "truncated within",
	} {
		_, err := Parse([]byte(raw))
		require.ErrorContains(t, err, want)
	}
	_, err := ReadFile(t.TempDir())
	require.ErrorContains(t, err, "not a regular file")
}

// FuzzParse: any file is refused or has the contents that Write gives it again.
func FuzzParse(f *testing.F) {
	f.Add(write(f, Array{Float16, []int{1, 2}, []byte("abcd")}))
	f.Add(file(`{"shape":(),"fortran_order":False,"descr":"|i1"}`, "a"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		a, err := Parse(raw)
		if err != nil {
			require.Less(t, len(err.Error()), 1000)
			return
		}
		again, err := Parse(write(t, a))
		require.NoError(t, err)
		require.Equal(t, a.DType, again.DType)
		require.Equal(t, a.Shape, again.Shape)
		require.True(t, bytes.Equal(a.Data, again.Data))
	})
}
