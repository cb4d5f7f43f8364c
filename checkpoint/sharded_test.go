package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/fp8"
	"octet/internal/disk"
	"octet/safetensors"
)

// rowContents returns contents with tensors of many shapes and formats.
func rowContents(t testing.TB) Contents {
	e3m4, err := fp8.ParseDType("e3m4")
	require.NoError(t, err)
	rng := rand.New(rand.NewPCG(5, 6))
	tensor := func(name string, dtype fp8.DType, shape ...int) Tensor {
		x := Tensor{Name: name, DType: dtype, Shape: append([]int{}, shape...)}
		data := make([]byte, x.Elems()*int64(dtype.Size()))
		for i := range data {
			data[i] = byte(rng.Uint32())
		}
		x.Data = Bytes(data)
		return x
	}
	return Contents{
		Config: tiny,
		Model:  []Tensor{tensor("both", fp8.F32, 7, 3), tensor("norm", fp8.F32, 5), tensor("bf16", fp8.BF16, 2, 2, 2)},
		Optimizer: []Tensor{
			tensor("both", fp8.E4M3IEEE, 16, 4), tensor("e3m4", e3m4, 6, 5), tensor("i32", fp8.I32, 1, 2), tensor("scalar", fp8.F32),
			tensor("one", fp8.F32, 1), tensor("no rows", fp8.F32, 0, 3), tensor("no columns", fp8.F32, 4, 0), tensor("e5m2", fp8.E5M2, 300, 2),
		},
		State: state{7, 8},
	}
}

// shardOf returns a rank's part of contents: of matrices its share of the rows, of
// everything else all on rank 0.
func shardOf(c Contents, rank, ranks int) (Shard, error) {
	split := func(list []Tensor) (part []Rows, err error) {
		for _, x := range list {
			n := rowsOf(x.Shape)
			r := Rows{Tensor: x, To: n}
			if len(x.Shape) > 1 && n > 0 {
				var all bytes.Buffer
				if err := x.Data(&all); err != nil {
					return nil, err
				}
				r.From, r.To = rank*n/ranks, (rank+1)*n/ranks
				row := all.Len() / n
				r.Data = Bytes(all.Bytes()[r.From*row : r.To*row])
			} else if rank > 0 {
				continue
			}
			part = append(part, r)
		}
		return part, nil
	}
	model, err := split(c.Model)
	if err != nil {
		return Shard{}, err
	}
	optimizer, err := split(c.Optimizer)
	return Shard{model, optimizer}, err
}

// saveAsRanks saves contents as several ranks, one after the other. The parts travel as
// JSON.
func saveAsRanks(dir string, step, ranks int, c Contents) (path string, err error) {
	s, err := BeginSharded(dir, step, ranks)
	if err != nil {
		return "", err
	}
	parts := make([]Part, ranks)
	for rank := range ranks {
		shard, err := shardOf(c, rank, ranks)
		var part Part
		if err == nil {
			part, err = WriteShard(s.Partial(), rank, ranks, shard)
		}
		var text []byte
		if err == nil {
			text, err = json.Marshal(part)
		}
		if err == nil {
			err = json.Unmarshal(text, &parts[ranks-1-rank])
		}
		if err != nil {
			return "", errors.Join(err, s.Discard())
		}
	}
	return s.Finish(parts, c.Config, c.State)
}

func trySaveShards(dir string, step, ranks int) (string, error) {
	return saveAsRanks(dir, step, ranks, contents(step))
}

func saveShards(t testing.TB, dir string, step, ranks int) string {
	path, err := trySaveShards(dir, step, ranks)
	require.NoError(t, err)
	return path
}

// Checkpoints of any number of ranks have the tensors of a whole one. Saving them again
// gives the files of the whole one.
func TestShardedIsTheWhole(t *testing.T) {
	want := rowContents(t)
	dir := filepath.Join(t.TempDir(), "checkpoints")
	whole, err := Save(dir, 0, want)
	require.NoError(t, err)
	defer func(n int) { maxOpen = n }(maxOpen)
	for ranks := range 12 {
		maxOpen = ranks % 5
		path := whole
		if ranks > 0 {
			path, err = saveAsRanks(dir, ranks, ranks, want)
			require.NoError(t, err)
			require.Equal(t, "MANIFEST.json config.json "+shardName(0, ranks), strings.Join(names(t, path)[:3], " "))
			require.Len(t, names(t, path), ranks+3)
		}
		c, err := Open(path)
		require.NoError(t, err)
		require.Equal(t, tiny, c.Config)
		require.JSONEq(t, `{"step":7,"seed":8}`, string(c.State))
		requireTensors(t, want.Model, c.Model)
		requireTensors(t, want.Optimizer, c.Optimizer)
		requireRows(t, want.Optimizer, c.Optimizer)
		again, err := Save(t.TempDir(), 0, Contents{c.Config, c.Model.List(), c.Optimizer.List(), c.State})
		require.NoError(t, err)
		for _, name := range names(t, whole) {
			requireSameFile(t, filepath.Join(whole, name), filepath.Join(again, name))
		}
		require.NoError(t, c.Close())

		config, model, err := OpenModel(path)
		require.NoError(t, err)
		require.Equal(t, tiny, config)
		requireTensors(t, want.Model, model)
		require.NoError(t, model.Close())
	}
	newest, skipped, err := Newest(dir)
	require.NoError(t, err)
	require.Empty(t, skipped)
	require.Equal(t, stepName(11), filepath.Base(newest.Path))
	require.NoError(t, newest.Close())
}

func requireSameFile(t *testing.T, want, got string) {
	t.Helper()
	a, err := os.ReadFile(want)
	require.NoError(t, err)
	b, err := os.ReadFile(got)
	require.NoError(t, err)
	require.True(t, bytes.Equal(a, b), "%s differs from %s", got, want)
}

// requireRows compares ReadRows and readers at random places with the data of tensors.
func requireRows(t *testing.T, want []Tensor, got *Tensors) {
	rng := rand.New(rand.NewPCG(7, 8))
	for _, w := range want {
		var data bytes.Buffer
		require.NoError(t, w.Data(&data))
		n := rowsOf(w.Shape)
		row := data.Len() / max(1, n)
		for range 20 {
			from := rng.IntN(n + 1)
			to := from + rng.IntN(n+1-from)
			dst := make([]byte, (to-from)*row)
			require.NoError(t, got.ReadRows(w.Name, from, to, dst))
			require.Equal(t, string(data.Bytes()[from*row:to*row]), string(dst), "rows %d to %d of %s", from, to, w.Name)
			require.ErrorContains(t, got.ReadRows(w.Name, from, to, make([]byte, len(dst)+1)), fmt.Sprintf("have %d bytes, but the destination has %d", len(dst), len(dst)+1))

			r, err := got.Reader(w.Name)
			require.NoError(t, err)
			at := rng.IntN(data.Len() + 1)
			_, err = r.(io.Seeker).Seek(int64(at), io.SeekStart)
			require.NoError(t, err)
			rest, err := io.ReadAll(r)
			require.NoError(t, err)
			require.Equal(t, string(data.Bytes()[at:]), string(rest))
		}
		for _, bad := range [][2]int{{-1, n}, {0, n + 1}, {n + 1, n + 1}, {n, n - 1}} {
			require.ErrorContains(t, got.ReadRows(w.Name, bad[0], bad[1], nil), fmt.Sprintf("has %d rows: there are no rows %d to %d", n, bad[0], bad[1]))
		}
	}
	require.ErrorContains(t, got.ReadRows("absent", 0, 0, nil), `no tensor "absent"`)
}

// Finish refuses parts that are missing or wrong, names the rank, and leaves nothing.
func TestFinishRefuses(t *testing.T) {
	dir := t.TempDir()
	old := save(t, dir, 1)
	shard := func(s *Sharded, rank int) string { return filepath.Join(s.Partial(), shardName(rank, 3)) }
	for _, c := range []struct {
		want string
		edit func(s *Sharded, parts []Part) []Part
	}{
		{"rank 2: its part is missing", func(_ *Sharded, p []Part) []Part { return p[:2] }},
		{"rank 0: its part is missing", func(_ *Sharded, p []Part) []Part { return nil }},
		{"rank 1: there are two parts of this rank", func(_ *Sharded, p []Part) []Part { return append(p, p[1]) }},
		{"rank 3 of 3 wrote a part: the checkpoint has 3 ranks", func(_ *Sharded, p []Part) []Part { p[1].Rank = 3; return p }},
		{"rank -1 of 3 wrote a part", func(_ *Sharded, p []Part) []Part { p[1].Rank = -1; return p }},
		{"rank 1 of 4 wrote a part", func(_ *Sharded, p []Part) []Part { p[1].Ranks = 4; return p }},
		{`rank 1 wrote to ".step-00000002.partial-0": expected ".step-00000002.partial-`, func(_ *Sharded, p []Part) []Part { p[1].Folder = ".step-00000002.partial-0"; return p }},
		{`rank 1: its part has the SHA-256 ""`, func(_ *Sharded, p []Part) []Part { p[1].SHA256 = ""; return p }},
		{"rank 1: its part has the SHA-256", func(_ *Sharded, p []Part) []Part { p[1].SHA256 = strings.Repeat("A", 64); return p }},
		{"bytes, its part says 1", func(_ *Sharded, p []Part) []Part { p[1].Size = 1; return p }},
		{"rank 1: ", func(s *Sharded, p []Part) []Part {
			require.NoError(t, os.Truncate(shard(s, 1), 5))
			return p
		}},
		{"rank 2: ", func(s *Sharded, p []Part) []Part { require.NoError(t, os.Remove(shard(s, 2))); return p }},
		{"shard-00002-of-00003.safetensors: a symbolic link", func(s *Sharded, p []Part) []Part {
			require.NoError(t, os.Rename(shard(s, 2), filepath.Join(s.Partial(), "x")))
			require.NoError(t, os.Symlink("x", shard(s, 2)))
			return p
		}},
		{"shard-00002-of-00003.safetensors: safetensors: header", func(s *Sharded, p []Part) []Part { flipFirst(t, shard(s, 2)); return p }},
	} {
		s, err := BeginSharded(dir, 2, 3)
		require.NoError(t, err)
		var parts []Part
		for rank := range 3 {
			shard, err := shardOf(contents(2), rank, 3)
			require.NoError(t, err)
			part, err := WriteShard(s.Partial(), rank, 3, shard)
			require.NoError(t, err)
			parts = append(parts, part)
		}
		_, err = s.Finish(c.edit(s, parts), tiny, state{})
		require.ErrorContains(t, err, c.want)
		require.ErrorContains(t, err, "writing "+filepath.Join(dir, stepName(2))+": ")
		require.Equal(t, []string{stepName(1)}, names(t, dir))
	}
	require.NoError(t, Verify(old))

	for want, edit := range map[string]func(c *Contents){
		"config.json: hidden_size = 0":       func(c *Contents) { c.Config.HiddenSize = 0 },
		"state.json: json: unsupported type": func(c *Contents) { c.State = func() {} },
	} {
		bad := contents(2)
		edit(&bad)
		_, err := saveAsRanks(dir, 2, 2, bad)
		require.ErrorContains(t, err, want)
		require.Equal(t, []string{stepName(1)}, names(t, dir))
	}
}

// flipFirst changes the first byte of a shard's header.
func flipFirst(t *testing.T, name string) {
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	text[8] ^= 1
	require.NoError(t, os.WriteFile(name, text, 0o600))
}

func TestShardedRefuses(t *testing.T) {
	dir := t.TempDir()
	for _, ranks := range []int{-1, 0, maxRanks + 1} {
		_, err := BeginSharded(dir, 1, ranks)
		require.ErrorContains(t, err, "expected 1 to 99999")
	}
	_, err := BeginSharded(dir, -1, 1)
	require.ErrorContains(t, err, "expected 0 or more")
	_, err = BeginSharded(filepath.Join(dir, "no", "run"), 1, 1)
	require.ErrorIs(t, err, os.ErrNotExist)
	save(t, dir, 1)
	_, err = BeginSharded(dir, 1, 2)
	require.ErrorContains(t, err, "a valid checkpoint of this step already exists")
	require.Equal(t, []string{stepName(1)}, names(t, dir))

	s, err := BeginSharded(dir, 2, 2)
	require.NoError(t, err)
	for _, bad := range [][2]int{{0, 0}, {-1, 2}, {2, 2}, {0, maxRanks + 1}} {
		_, err = WriteShard(s.Partial(), bad[0], bad[1], Shard{})
		require.ErrorContains(t, err, fmt.Sprintf("rank %d of %d: expected", bad[0], bad[1]))
	}
	matrix := Tensor{"w", fp8.F32, []int{2, 1}, Bytes(make([]byte, 4))}
	for _, c := range []struct {
		want string
		rows []Rows
	}{
		{"tensor w has 2 rows: there are no rows -1 to 1", []Rows{{matrix, -1, 1}}},
		{"there are no rows 1 to 0", []Rows{{matrix, 1, 0}}},
		{"there are no rows 1 to 3", []Rows{{matrix, 1, 3}}},
		{`tensor "optimizer/w": data ended 4 bytes short of 8`, []Rows{{matrix, 0, 2}}},
		{"data exceeds the tensor's shape", []Rows{{matrix, 1, 1}}},
		{"the name appears twice", []Rows{{matrix, 0, 1}, {matrix, 1, 2}}},
		{"there are no rows 0 to 2", []Rows{{Tensor{"s", fp8.F32, nil, nil}, 0, 2}}},
	} {
		_, err = WriteShard(s.Partial(), 0, 2, Shard{Optimizer: c.rows})
		require.ErrorContains(t, err, "writing "+filepath.Join(s.Partial(), shardName(0, 2)))
		require.ErrorContains(t, err, c.want)
		require.NoError(t, os.Remove(filepath.Join(s.Partial(), shardName(0, 2))))
	}
	_, err = WriteShard(s.Partial(), 0, 2, Shard{Model: []Rows{{matrix, 1, 2}}})
	require.NoError(t, err)
	_, err = WriteShard(s.Partial(), 0, 2, Shard{})
	require.ErrorIs(t, err, os.ErrExist, "a rank writes its shard once")
	require.NoError(t, s.Discard())
	require.Equal(t, []string{stepName(1)}, names(t, dir))
	_, err = WriteShard(s.Partial(), 1, 2, Shard{})
	require.ErrorIs(t, err, os.ErrNotExist, "a rank that is late")
	require.Equal(t, []string{stepName(1)}, names(t, dir))
}

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
		{`shard-00001-of-00002.safetensors: tensor "a": its rows 1 to 4 overlap those of shard-00000-of-00002.safetensors, which end at 2`,
			shardFiles{{"model/a F32 2x3", "rows.model/a=0:2/4"}, {"model/a F32 3x3", "rows.model/a=1:4/4"}}},
		{`shard-00001-of-00002.safetensors: tensor "a": its rows 0 to 4 overlap`,
			shardFiles{{"model/a F32 4x3", ""}, {"model/a F32 4x3", ""}}},
		{`tensor "a": its rows 0 to 4 overlap`,
			shardFiles{{"model/a F32 2x3", "rows.model/a=0:2/4"}, {"model/a F32 4x3", ""}}},
		{`tensor "a": its rows 0 to 1 overlap those of shard-00000-of-00002.safetensors, which end at 1`,
			shardFiles{{"optimizer/a F32 scalar", ""}, {"optimizer/a F32 scalar", ""}}},
		{`shard-00000-of-00002.safetensors: tensor "a": no shard holds row 1 of 4`,
			shardFiles{{"model/a F32 1x3", "rows.model/a=0:1/4"}, {"model/a F32 2x3", "rows.model/a=2:4/4"}}},
		{`shard-00000-of-00001.safetensors: tensor "a": no shard holds row 0 of 4`,
			shardFiles{{"model/a F32 3x3", "rows.model/a=1:4/4"}}},
		{`shard-00000-of-00001.safetensors: tensor "a": no shard holds row 3 of 4`,
			shardFiles{{"optimizer/a F32 3x3", "rows.optimizer/a=0:3/4"}}},
		{`shard-00000-of-00001.safetensors: tensor "a": no shard holds row 0 of 4`,
			shardFiles{{"model/a F32 0x3", "rows.model/a=2:2/4"}}},
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
		{`shard-00001-of-00002.safetensors: tensor "model/a": it is bf16 [4 3], but fp32 [4 3] in shard-00000-of-00002.safetensors`,
			shardFiles{{"model/a F32 2x3", "rows.model/a=0:2/4"}, {"model/a BF16 2x3", "rows.model/a=2:4/4"}}},
		{`tensor "model/a": it is e4m3ieee [4 3], but e4m3 [4 3] in`,
			shardFiles{{"model/a F8_E4M3 2x3", "rows.model/a=0:2/4"}, {"model/a F8_E4M3 2x3", "e4m3_max=240 rows.model/a=2:4/4"}}},
		{`tensor "model/a": it is fp32 [5 3], but fp32 [4 3] in`,
			shardFiles{{"model/a F32 2x3", "rows.model/a=0:2/4"}, {"model/a F32 2x3", "rows.model/a=2:4/5"}}},
		{`tensor "model/a": it is fp32 [4 4], but fp32 [4 3] in`,
			shardFiles{{"model/a F32 2x3", "rows.model/a=0:2/4"}, {"model/a F32 2x4", "rows.model/a=2:4/4"}}},
		{`tensor "model/a": it is fp32 [4], but fp32 [4 3] in`,
			shardFiles{{"model/a F32 2x3", "rows.model/a=0:2/4"}, {"model/a F32 2", "rows.model/a=2:4/4"}}},
		{`tensor "a": expected a name that begins with model/ or optimizer/`, shardFiles{{"a F32 2x3", ""}}},
		{`tensor "model/a": octet does not support dtype I64`, shardFiles{{"model/a I64 2x3", ""}}},
		{`metadata format.model/a: unknown number format "e9m9"`, shardFiles{{"model/a U8 2x3", "format.model/a=e9m9"}}},
		{"the metadata has the rows of 1 tensors that are not in the file", shardFiles{{"model/a F32 2x3", "rows.model/b=0:2/4"}}},
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

// All ranks write at the same time.
func TestShardsConcurrently(t *testing.T) {
	const ranks = 8
	want := rowContents(t)
	s, err := BeginSharded(t.TempDir(), 1, ranks)
	require.NoError(t, err)
	parts, errs := make([]Part, ranks), make([]error, ranks)
	var wg sync.WaitGroup
	for rank := range ranks {
		wg.Go(func() {
			shard, err := shardOf(want, rank, ranks)
			if err == nil {
				parts[rank], err = WriteShard(s.Partial(), rank, ranks, shard)
			}
			errs[rank] = err
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	path, err := s.Finish(parts, tiny, want.State)
	require.NoError(t, err)
	c, err := Open(path)
	require.NoError(t, err)
	requireTensors(t, want.Optimizer, c.Optimizer)
	require.NoError(t, c.Close())
}

// The manifest of 10,000 ranks is longer than other JSON files may be, and that of
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

	const ranks = 10_000
	restore := disk.Intercept(func(c disk.Change) error {
		if c.Op == disk.Sync { // 20,000 syncs would take minutes
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
		w := Rows{Tensor{"w", fp8.BF16, []int{ranks, 1}, Bytes(data[2*rank : 2*rank+2])}, rank, rank + 1}
		parts[rank], err = WriteShard(s.Partial(), rank, ranks, Shard{Model: []Rows{w}})
		require.NoError(t, err)
	}
	path, err := s.Finish(parts, tiny, state{})
	require.NoError(t, err)
	info, err := os.Stat(filepath.Join(path, ManifestFile))
	require.NoError(t, err)
	require.Greater(t, info.Size(), int64(maxJSON))
	c, err := Open(path)
	require.NoError(t, err)
	require.Len(t, c.Model.closers, maxOpen)
	got := make([]byte, len(data))
	require.NoError(t, c.Model.ReadInto("w", got))
	require.True(t, bytes.Equal(data, got))
	require.NoError(t, c.Model.ReadRows("w", 9_998, 10_000, got[:4]))
	require.Equal(t, data[19_996:], got[:4])
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

// TestOrderOfShardedChanges checks the order that makes the rename safe: ranks sync their
// files and their names before rank 0 writes and syncs the rest; see TestOrderOfChanges.
func TestOrderOfShardedChanges(t *testing.T) {
	dir := t.TempDir()
	var log []string
	restore := disk.Intercept(func(c disk.Change) error {
		name := filepath.Base(c.Path)
		if strings.HasPrefix(name, ".step-00000007.partial-") {
			name = "temp"
		}
		if c.Op != disk.Write {
			log = append(log, string(c.Op)+" "+name)
		}
		return c.Do()
	})
	_, err := trySaveShards(dir, 7, 2)
	restore()
	require.NoError(t, err)
	run := filepath.Base(dir)
	want := []string{"mkdir " + run, "mkdir temp"}
	for rank := range 2 {
		want = append(want, "create "+shardName(rank, 2), "sync "+shardName(rank, 2), "sync temp")
	}
	for _, name := range shardedFiles {
		want = append(want, "create "+name, "sync "+name)
	}
	want = append(want, "sync temp", "create MANIFEST.json", "sync MANIFEST.json", "sync temp", "rename temp", "sync "+run)
	require.Equal(t, want, log)
}

// Shards do not depend on the order of the lists.
func TestShardIsDeterministic(t *testing.T) {
	want := map[string]Part{}
	for range 3 {
		dir := t.TempDir()
		s, err := BeginSharded(dir, 1, 2)
		require.NoError(t, err)
		c := rowContents(t)
		rand.Shuffle(len(c.Optimizer), func(i, j int) { c.Optimizer[i], c.Optimizer[j] = c.Optimizer[j], c.Optimizer[i] })
		got := map[string]Part{}
		for rank := range 2 {
			shard, err := shardOf(c, rank, 2)
			require.NoError(t, err)
			part, err := WriteShard(s.Partial(), rank, 2, shard)
			require.NoError(t, err)
			part.Folder = ""
			got[shardName(rank, 2)] = part
		}
		if len(want) > 0 {
			require.Equal(t, want, got)
		}
		want = maps.Clone(got)
	}
}
