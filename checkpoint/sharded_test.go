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
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/fp8"
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
		again, err := Save(t.TempDir(), 0, Contents{c.Config, c.Model.List(), c.Optimizer.List(), c.State, nil})
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
		{"tensor w has 2 rows: there are no rows -1 to 1", []Rows{{Tensor: matrix, From: -1, To: 1}}},
		{"there are no rows 1 to 0", []Rows{{Tensor: matrix, From: 1, To: 0}}},
		{"there are no rows 1 to 3", []Rows{{Tensor: matrix, From: 1, To: 3}}},
		{`tensor "optimizer/w": data ended 4 bytes short of 8`, []Rows{{Tensor: matrix, From: 0, To: 2}}},
		{"data exceeds the tensor's shape", []Rows{{Tensor: matrix, From: 1, To: 1}}},
		{"the name appears twice", []Rows{{Tensor: matrix, From: 0, To: 1}, {Tensor: matrix, From: 1, To: 2}}},
		{"there are no rows 0 to 2", []Rows{{Tensor: Tensor{"s", fp8.F32, nil, nil}, To: 2}}},
	} {
		_, err = WriteShard(s.Partial(), 0, 2, Shard{Optimizer: c.rows})
		require.ErrorContains(t, err, "writing "+filepath.Join(s.Partial(), shardName(0, 2)))
		require.ErrorContains(t, err, c.want)
		require.NoError(t, os.Remove(filepath.Join(s.Partial(), shardName(0, 2))))
	}
	_, err = WriteShard(s.Partial(), 0, 2, Shard{Model: []Rows{{Tensor: matrix, From: 1, To: 2}}})
	require.NoError(t, err)
	_, err = WriteShard(s.Partial(), 0, 2, Shard{})
	require.ErrorIs(t, err, os.ErrExist, "a rank writes its shard once")
	require.NoError(t, s.Discard())
	require.Equal(t, []string{stepName(1)}, names(t, dir))
	_, err = WriteShard(s.Partial(), 1, 2, Shard{})
	require.ErrorIs(t, err, os.ErrNotExist, "a rank that is late")
	require.Equal(t, []string{stepName(1)}, names(t, dir))
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

// TestOrderOfShardedChanges checks the order that makes the rename safe: ranks sync their
// files and their names before rank 0 writes and syncs the rest; see TestOrderOfChanges.
func TestOrderOfShardedChanges(t *testing.T) {
	dir := t.TempDir()
	log, restore := logChanges()
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
	require.Equal(t, want, *log)
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
