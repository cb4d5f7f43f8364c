package checkpoint

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/fp8"
	"octet/internal/disk"
	"octet/safetensors"
)

// shardFiles are the tensors and the metadata of shards, valid or not.
type shardFiles []shardText

type shardText struct {
	tensors  string // "model/a F32 2x3"
	metadata string // "rows.model/a=0:2/4"
}

// bytes returns the file.
func (s shardText) bytes(t testing.TB) []byte {
	var list []safetensors.Source
	for text := range strings.SplitSeq(s.tensors, ";") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		field := strings.Fields(text)
		x := safetensors.Source{Name: field[0], DType: field[1], Shape: []int64{}}
		size := map[string]int64{"F32": 4, "BF16": 2, "F8_E4M3": 1, "U8": 1, "I64": 8}[x.DType]
		for d := range strings.SplitSeq(field[2], "x") {
			var n int64
			if _, err := fmt.Sscan(d, &n); err == nil { // "scalar" has no dimensions
				x.Shape = append(x.Shape, n)
				size *= n
			}
		}
		x.Data = safetensors.Bytes(make([]byte, size))
		list = append(list, x)
	}
	metadata := map[string]string{}
	for text := range strings.FieldsSeq(s.metadata) {
		key, value, _ := strings.Cut(text, "=")
		metadata[key] = value
	}
	var b bytes.Buffer
	require.NoError(t, safetensors.Write(&b, list, metadata))
	return b.Bytes()
}

// publish writes a checkpoint with these shards and a valid manifest.
func publish(t testing.TB, dir string, shards ...[]byte) (path string) {
	u, err := begin(dir, 1)
	require.NoError(t, err)
	files := []content{{ConfigFile, jsonOf(tiny)}, {StateFile, jsonOf(state{})}}
	for rank, text := range shards {
		files = append(files, content{shardName(rank, len(shards)), Bytes(text)})
	}
	m := manifest{Format: manifestFormat, Version: shardedVersion}
	m.Files, err = u.write(files)
	require.NoError(t, err)
	path, err = u.publish(m)
	require.NoError(t, err)
	return path
}

// Open and Finish refuse shards that do not hold every row once; the error names the file
// and the tensor. OpenModel does, too.
func TestShardsRefused(t *testing.T) {
	for _, c := range []struct {
		want   string
		shards shardFiles
	}{
		{
			`shard-00001-of-00002.safetensors: tensor "a": its rows 1 to 4 overlap those of shard-00000-of-00002.safetensors, which end at 2`,
			shardFiles{{"model/a F32 2x3", "rows.model/a=0:2/4"}, {"model/a F32 3x3", "rows.model/a=1:4/4"}},
		},
		{
			`shard-00001-of-00002.safetensors: tensor "a": its rows 0 to 4 overlap`,
			shardFiles{{"model/a F32 4x3", ""}, {"model/a F32 4x3", ""}},
		},
		{
			`tensor "a": its rows 0 to 4 overlap`,
			shardFiles{{"model/a F32 2x3", "rows.model/a=0:2/4"}, {"model/a F32 4x3", ""}},
		},
		{
			`tensor "a": its rows 0 to 1 overlap those of shard-00000-of-00002.safetensors, which end at 1`,
			shardFiles{{"optimizer/a F32 scalar", ""}, {"optimizer/a F32 scalar", ""}},
		},
		{
			`shard-00000-of-00002.safetensors: tensor "a": no shard holds row 1 of 4`,
			shardFiles{{"model/a F32 1x3", "rows.model/a=0:1/4"}, {"model/a F32 2x3", "rows.model/a=2:4/4"}},
		},
		{
			`shard-00000-of-00001.safetensors: tensor "a": no shard holds row 0 of 4`,
			shardFiles{{"model/a F32 3x3", "rows.model/a=1:4/4"}},
		},
		{
			`shard-00000-of-00001.safetensors: tensor "a": no shard holds row 3 of 4`,
			shardFiles{{"optimizer/a F32 3x3", "rows.optimizer/a=0:3/4"}},
		},
		{
			`shard-00000-of-00001.safetensors: tensor "a": no shard holds row 0 of 4`,
			shardFiles{{"model/a F32 0x3", "rows.model/a=2:2/4"}},
		},
		{`tensor "model/a": its rows are 3 to 5 of 4`, shardFiles{{"model/a F32 2x3", "rows.model/a=3:5/4"}}},
		{`tensor "model/a": its rows are -1 to 1 of 4`, shardFiles{{"model/a F32 2x3", "rows.model/a=-1:1/4"}}},
		{`tensor "model/a": its rows are 3 to 1 of 4`, shardFiles{{"model/a F32 2x3", "rows.model/a=3:1/4"}}},
		{`tensor "model/a": its rows are 0 to 3, but its shape is [2 3]`, shardFiles{{"model/a F32 2x3", "rows.model/a=0:3/4"}}},
		{`tensor "model/a": its rows are 0 to 1, but its shape is []`, shardFiles{{"model/a F32 scalar", "rows.model/a=0:1/4"}}},
		{`tensor "model/a": its rows are "0:2": expected FROM:TO/ALL`, shardFiles{{"model/a F32 2x3", "rows.model/a=0:2"}}},
		{`its rows are "+0:2/4"`, shardFiles{{"model/a F32 2x3", "rows.model/a=+0:2/4"}}},
		{`its rows are "0:2/4x"`, shardFiles{{"model/a F32 2x3", "rows.model/a=0:2/4x"}}},
		{`its rows are "0:2/99999999999999999999"`, shardFiles{{"model/a F32 2x3", "rows.model/a=0:2/99999999999999999999"}}},
		{`tensor "a": no shard holds row 2 of 9223372036854775807`, shardFiles{{"model/a F32 2x3", "rows.model/a=0:2/9223372036854775807"}}},
		{
			`shard-00001-of-00002.safetensors: tensor "model/a": it is bf16 [4 3], but fp32 [4 3] in shard-00000-of-00002.safetensors`,
			shardFiles{{"model/a F32 2x3", "rows.model/a=0:2/4"}, {"model/a BF16 2x3", "rows.model/a=2:4/4"}},
		},
		{
			`tensor "model/a": it is e4m3ieee [4 3], but e4m3 [4 3] in`,
			shardFiles{{"model/a F8_E4M3 2x3", "rows.model/a=0:2/4"}, {"model/a F8_E4M3 2x3", "e4m3_max=240 rows.model/a=2:4/4"}},
		},
		{
			`tensor "model/a": it is fp32 [5 3], but fp32 [4 3] in`,
			shardFiles{{"model/a F32 2x3", "rows.model/a=0:2/4"}, {"model/a F32 2x3", "rows.model/a=2:4/5"}},
		},
		{
			`tensor "model/a": it is fp32 [4 4], but fp32 [4 3] in`,
			shardFiles{{"model/a F32 2x3", "rows.model/a=0:2/4"}, {"model/a F32 2x4", "rows.model/a=2:4/4"}},
		},
		{
			`tensor "model/a": it is fp32 [4], but fp32 [4 3] in`,
			shardFiles{{"model/a F32 2x3", "rows.model/a=0:2/4"}, {"model/a F32 2", "rows.model/a=2:4/4"}},
		},
		{`tensor "a": expected a name that begins with model/ or optimizer/`, shardFiles{{"a F32 2x3", ""}}},
		{`tensor "model/a": octet does not support dtype I64`, shardFiles{{"model/a I64 2x3", ""}}},
		{`metadata format.model/a: unknown number format "e9m9"`, shardFiles{{"model/a U8 2x3", "format.model/a=e9m9"}}},
		{"the metadata has 1 ranges of tensors that are not in the file", shardFiles{{"model/a F32 2x3", "rows.model/b=0:2/4"}}},
		{"the metadata has 1 ranges of tensors that are not in the file", shardFiles{{"model/a F32 2x3", "columns.model/b=0:2/4"}}},
		{`tensor "model/a": its columns are 0 to 3, but its shape is [2]`, shardFiles{{"model/a F32 2", "columns.model/a=0:3/4"}}},
		{`tensor "model/a": its columns are 2 to 5 of 4`, shardFiles{{"model/a F32 2x3", "columns.model/a=2:5/4"}}},
		{`tensor "model/a": its columns are 1 to 1 of 4`, shardFiles{{"model/a F32 2x0", "columns.model/a=1:1/4"}}},
		{"no shard holds column 3 of 4 of its rows 0 to 2", shardFiles{{"model/a F32 2x3", "columns.model/a=0:3/4"}}},
		{"its columns 1 to 4 follow those that end at 0", shardFiles{{"model/a F32 2x3", "columns.model/a=1:4/4"}}},
		{"its columns 2 to 4 follow those that end at 3", shardFiles{{"model/a F32 2x3", "columns.model/a=0:3/4"}, {"model/a F32 2x2", "columns.model/a=2:4/4"}}},
		{"no shard holds column 3 of 4 of its rows 0 to 2", shardFiles{{"model/a F32 2x3", "columns.model/a=0:3/4"}, {"model/a F32 2x4", ""}}},
	} {
		var files [][]byte
		for _, s := range c.shards {
			files = append(files, s.bytes(t))
		}
		path := publish(t, t.TempDir(), files...)
		require.NoError(t, Verify(path))
		_, err := Open(path)
		require.ErrorContains(t, err, c.want)
		require.ErrorContains(t, err, filepath.Join(path, "shard-0000"))
		require.NotContains(t, err.Error(), "\n")
		_, _, err = OpenModel(path)
		require.ErrorContains(t, err, c.want)

		dir := t.TempDir()
		s, err := BeginSharded(dir, 1, len(files))
		require.NoError(t, err)
		var parts []Part
		for rank, text := range files {
			entry, err := writeFile(s.Partial(), shardName(rank, len(files)), Bytes(text))
			require.NoError(t, err)
			parts = append(parts, Part{filepath.Base(s.Partial()), rank, len(files), entry.Size, entry.SHA256})
		}
		_, err = s.Finish(parts, tiny, state{})
		require.ErrorContains(t, err, c.want)
		require.Empty(t, names(t, dir))
	}
}

// Data that ends early, because a file was truncated after Open, is an error that names
// the file, whether the file stays open or not.
func TestShardTruncatedAfterOpen(t *testing.T) {
	defer func(n int) { maxOpen = n }(maxOpen)
	for _, maxOpen = range []int{0, 9} {
		path, err := saveAsRanks(t.TempDir(), 1, 2, rowContents(t))
		require.NoError(t, err)
		c, err := Open(path)
		require.NoError(t, err)
		name := filepath.Join(path, shardName(1, 2))
		info, err := os.Stat(name)
		require.NoError(t, err)
		require.NoError(t, os.Truncate(name, info.Size()-1))
		failed := 0
		for _, x := range c.Optimizer.List() {
			if err := x.Data(io.Discard); err != nil {
				require.ErrorIs(t, err, io.ErrUnexpectedEOF)
				require.ErrorContains(t, err, name)
				require.ErrorContains(t, c.Optimizer.ReadInto(x.Name, make([]byte, x.Elems()*int64(x.DType.Size()))), "reading tensor \""+x.Name)
				failed++
			}
		}
		require.Equal(t, 1, failed)
		require.NoError(t, c.Close())
		require.NoError(t, os.Remove(name))
		require.Error(t, c.Optimizer.ReadInto("e5m2", make([]byte, 600)))
	}
}

// The manifest of 7,500 ranks is longer than other JSON files may be, and that of
// maxRanks is no longer than maxManifest.
func TestManyRanks(t *testing.T) {
	m := manifest{Format: manifestFormat, Version: shardedVersion}
	for _, name := range shardedFiles {
		m.Files = append(m.Files, fileEntry{name, 1<<63 - 1, strings.Repeat("0", 64)})
	}
	for rank := range maxRanks {
		m.Files = append(m.Files, fileEntry{shardName(rank, maxRanks), 1<<63 - 1, strings.Repeat("0", 64)})
	}
	text, err := encodeJSON(m)
	require.NoError(t, err)
	require.LessOrEqual(t, len(text), maxManifest)
	_, err = parseManifest(text)
	require.NoError(t, err)

	ranks := 600 // more than files that stay open
	if os.Getenv("OCTET_LONG") != "" {
		ranks = 7_500
	}
	restore := disk.Intercept(func(c disk.Change) error {
		if c.Op == disk.Sync { // 15,000 syncs would take minutes
			return nil
		}
		return c.Do()
	})
	defer restore()
	data := make([]byte, 2*ranks)
	for i := range data {
		data[i] = byte(i * i >> 3)
	}
	s, err := BeginSharded(t.TempDir(), 1, ranks)
	require.NoError(t, err)
	parts := make([]Part, ranks)
	for rank := range ranks {
		w := Rows{Tensor: Tensor{"w", fp8.BF16, []int{ranks, 1}, Bytes(data[2*rank : 2*rank+2])}, From: rank, To: rank + 1}
		parts[rank], err = WriteShard(s.Partial(), rank, ranks, Shard{Model: []Rows{w}})
		require.NoError(t, err)
	}
	path, err := s.Finish(parts, tiny, state{})
	require.NoError(t, err)
	if ranks == 7_500 {
		info, err := os.Stat(filepath.Join(path, ManifestFile))
		require.NoError(t, err)
		require.Greater(t, info.Size(), int64(maxJSON))
	}
	c, err := Open(path)
	require.NoError(t, err)
	require.Len(t, c.Model.closers, maxOpen)
	got := make([]byte, len(data))
	require.NoError(t, c.Model.ReadInto("w", got))
	require.True(t, bytes.Equal(data, got))
	require.NoError(t, c.Model.ReadRows("w", ranks-2, ranks, got[:4]))
	require.Equal(t, data[2*(ranks-2):], got[:4])
	require.NoError(t, c.Close())
}

// Reading a tensor allocates its destination and no more, whatever the size of the files.
func TestShardsAreStreamed(t *testing.T) {
	const rows, cols = 1 << 10, 1 << 12 // 16 MiB
	big := Tensor{"big", fp8.F32, []int{rows, cols}, Bytes(make([]byte, 4*rows*cols))}
	path, err := saveAsRanks(t.TempDir(), 1, 3, Contents{Config: tiny, Model: []Tensor{big}})
	require.NoError(t, err)
	c, err := Open(path)
	require.NoError(t, err)
	defer c.Close()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	x, _ := c.Model.Lookup("big")
	require.NoError(t, x.Data(io.Discard))
	require.NoError(t, c.Model.ReadRows("big", 340, 344, make([]byte, 4*4*cols)))
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
}
