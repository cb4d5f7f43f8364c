package data

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// openStreamed opens text files as OpenFiles does, but keeps no text in memory.
func openStreamed(t *testing.T, o Options, paths ...string) (*Corpus, error) {
	t.Helper()
	files, err := findAll(paths)
	require.NoError(t, err)
	holdOutBytes(files, o.ValBytes)
	c, err := readText(files, Info{Kind: KindText}, o, 0)
	if err == nil {
		t.Cleanup(func() { require.NoError(t, c.Close()) })
	}
	return c, err
}

// randomTree writes n files of 1 to 70 random bytes without zeros.
func randomTree(t *testing.T, n int, r *rand.Rand) string {
	files := map[string]string{}
	for i := range n {
		text := make([]byte, 1+r.IntN(70))
		for j := range text {
			text[j] = byte(1 + r.IntN(255))
		}
		files[fmt.Sprintf("%03d.txt", i)] = string(text)
	}
	return writeTree(t, files)
}

// TestStreamedTextMatchesMemory compares text read from files with text in memory:
// tokens, split, hash and baselines, for many lengths of the validation stream.
func TestStreamedTextMatchesMemory(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 2, 30} {
		root := randomTree(t, n, r)
		for _, valBytes := range []int64{0, 1, 2, 19, 20, 21, 22, 40, 60, 80, 1 << 40} {
			held, err := OpenFiles([]string{root}, Options{ValBytes: valBytes})
			require.NoError(t, err)
			streamed, err := openStreamed(t, Options{ValBytes: valBytes}, root)
			require.NoError(t, err)
			require.Equal(t, held.Info, streamed.Info)
			require.Equal(t, held.baselines, streamed.baselines)
			require.Equal(t, held.Info.TrainTokens+held.Info.ValTokens, held.InMemory())
			require.Zero(t, streamed.InMemory())
			_, _, ok := streamed.Text()
			require.False(t, ok)
			for _, step := range []int{1, 7, 5000} {
				require.Equal(t, readAll(t, held.Train, step), readAll(t, streamed.Train, step))
				require.Equal(t, readAll(t, held.Val, step), readAll(t, streamed.Val, step))
			}
		}
	}
}

// TestBaselines compares the baselines, counted in one pass over the files, with
// NGramLoss of the streams.
func TestBaselines(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, valBytes := range []int64{1, 2, 25, 26, 27, 80, 1 << 40} {
		c, err := OpenFiles([]string{randomTree(t, 40, r)}, Options{ValBytes: valBytes})
		require.NoError(t, err)
		train, val, ok := c.Text()
		require.True(t, ok)
		one, err := NGramLoss(train, val, 1)
		require.NoError(t, err)
		two, err := NGramLoss(train, val, 2)
		require.NoError(t, err)
		bytes, pairs, ok := c.Baselines()
		require.Equal(t, len(val) > 1, ok)
		if ok {
			require.InDelta(t, one, bytes, 1e-9)
			require.InDelta(t, two, pairs, 1e-9)
		}
	}
	c, err := OpenFiles([]string{randomTree(t, 2, r)}, Options{})
	require.NoError(t, err)
	_, _, ok := c.Baselines()
	require.False(t, ok, "there is no validation stream")
}

// TestLongText reads a file of several chunks, with pairs that span chunks.
func TestLongText(t *testing.T) {
	text := make([]byte, 2*scanChunk+17)
	r := rand.New(rand.NewPCG(5, 6))
	for i := range text {
		text[i] = byte(1 + r.IntN(100)*r.IntN(2))
	}
	name := filepath.Join(writeTree(t, map[string]string{"a.txt": string(text)}), "a.txt")
	c, err := openStreamed(t, Options{ValBytes: 150_000}, name)
	require.NoError(t, err)
	two, err := NGramLoss(text[:len(text)-150_000], text[len(text)-150_000:], 2)
	require.NoError(t, err)
	_, pairs, _ := c.Baselines()
	require.InDelta(t, two, pairs, 1e-9)
	got := readAll(t, c.Train, 1000)
	for i := range got {
		if got[i] != int32(text[i]) {
			require.Equal(t, text[i], got[i], "byte %d", i)
		}
	}

	text[scanChunk+5], text[2*scanChunk] = 0, 0
	require.NoError(t, os.WriteFile(name, text, 0o600))
	_, err = openStreamed(t, Options{}, name)
	requireSentence(t, err, "a.txt", fmt.Sprintf("zero byte at offset %d", scanChunk+5))
}

// TestHugeFile opens a terabyte of zeros, which must fail at the first byte without a
// large allocation.
func TestHugeFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "sparse.txt")
	f, err := os.Create(name)
	require.NoError(t, err)
	if err := f.Truncate(1 << 40); err != nil {
		t.Skipf("cannot create a file of this size: %v", err)
	}
	require.NoError(t, f.Close())
	_, err = OpenFiles([]string{name}, Options{ValBytes: 1 << 45})
	requireSentence(t, err, "sparse.txt", "zero byte at offset 0")
}

// TestStreamedTextAllocatesLittle checks that opening text that stays in its files
// allocates a few chunks only.
func TestStreamedTextAllocatesLittle(t *testing.T) {
	root := writeTree(t, map[string]string{"a.txt": strings.Repeat("to be or not to be\n", 1<<20)}) // 19 MB
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	c, err := openStreamed(t, Options{ValBytes: 1 << 40}, root)
	runtime.ReadMemStats(&after)
	require.NoError(t, err)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(4<<20))
	require.Positive(t, c.Info.ValTokens)
}

// TestTextChangedWhileInUse checks that a change by another program is an error that
// names the file.
func TestTextChangedWhileInUse(t *testing.T) {
	for what, change := range map[string]func(name string) error{
		"it has 5 bytes, not 1000":             func(name string) error { return os.Truncate(name, 5) },
		"it has 1001 bytes":                    func(name string) error { return os.WriteFile(name, make([]byte, 1001), 0o600) },
		"its modification time differs":        func(name string) error { return os.Chtimes(name, time.Time{}, time.Unix(1, 0)) },
		"cannot be read (no such file or dire": nil,
	} {
		name := filepath.Join(writeTree(t, map[string]string{"a.txt": strings.Repeat("a", 1000)}), "a.txt")
		c, err := openStreamed(t, Options{}, name)
		require.NoError(t, err)
		ids := make([]int32, 100)
		require.NoError(t, c.Train.ReadTokens(ids, 0))
		if change == nil { // removed: readable while open, an error when opened again
			require.NoError(t, os.Remove(name))
			require.NoError(t, c.Train.ReadTokens(ids, 0))
			c.pool.mu.Lock()
			c.pool.shrink(0)
			c.pool.mu.Unlock()
		} else {
			require.NoError(t, change(name))
		}
		requireSentence(t, c.Train.ReadTokens(ids, 0), "a.txt", what)
	}

	// A file that the pool closed is compared when it is opened again.
	root := writeTree(t, map[string]string{"a.txt": "aaaa", "b.txt": "bbbb"})
	c, err := openStreamed(t, Options{}, root)
	require.NoError(t, err)
	c.pool.limit = 1
	require.NoError(t, c.Train.ReadTokens(make([]int32, 9), 0))
	require.NoError(t, os.WriteFile(filepath.Join(root, "a.txt"), []byte("changed"), 0o600))
	requireSentence(t, c.Train.ReadTokens(make([]int32, 9), 0), "a.txt", "it has 7 bytes, not 4")
}

// TestPoolLimitsOpenFiles checks that few files of a large corpus are open, and that
// concurrent readers get the right tokens while the pool closes and opens files.
func TestPoolLimitsOpenFiles(t *testing.T) {
	root := randomTree(t, 200, rand.New(rand.NewPCG(7, 8)))
	c, err := openStreamed(t, Options{}, root)
	require.NoError(t, err)
	require.LessOrEqual(t, len(c.pool.open), maxOpenFiles)
	c.pool.limit = 3
	c.pool.shrink(3)
	held, err := OpenFiles([]string{root}, Options{})
	require.NoError(t, err)
	want := readAll(t, held.Train, 1000)
	var ranks sync.WaitGroup
	for rank := range 4 {
		ranks.Go(func() {
			r := rand.New(rand.NewPCG(9, uint64(rank)))
			dst := make([]int32, 150)
			for range 500 {
				at := r.IntN(len(want) - len(dst))
				if err := c.Train.ReadTokens(dst, int64(at)); err != nil || fmt.Sprint(dst) != fmt.Sprint(want[at:at+len(dst)]) {
					t.Errorf("rank %d at %d: %v", rank, at, err)
					return
				}
			}
		})
	}
	ranks.Wait()
	require.LessOrEqual(t, len(c.pool.open), 3+4)

	require.NoError(t, c.Close())
	require.ErrorContains(t, c.Train.ReadTokens(make([]int32, 10), 0), "closed")
}

func TestStreamedBatchesDoNotAllocate(t *testing.T) {
	c, err := openStreamed(t, Options{}, randomTree(t, 50, rand.New(rand.NewPCG(1, 1))))
	require.NoError(t, err)
	l, err := NewLoader(c.Train, LoaderOptions{Seq: 64})
	require.NoError(t, err)
	inputs, targets := make([]int32, 4*64), make([]int32, 4*64)
	require.Zero(t, testing.AllocsPerRun(200, func() {
		if err := l.Next(inputs, targets); err != nil {
			panic(err)
		}
	}))
}

// TestManyShards opens more shards than maxOpenFiles: descriptors do not limit their
// number.
func TestManyShards(t *testing.T) {
	var files []shardFile
	for i := range maxOpenFiles + 10 {
		files = append(files, shardFile{fmt.Sprintf("%03d.bin", i), ramp(10*i, 10)})
	}
	c, err := openTestShards(t, Options{}, files...)
	require.NoError(t, err)
	require.LessOrEqual(t, len(c.pool.open), maxOpenFiles)
	for i, id := range readAll(t, c.Train, 25) {
		require.EqualValues(t, i, id)
	}
}
