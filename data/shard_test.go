package data

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type shardFile struct {
	name string
	ids  []uint16
}

// ramp returns n consecutive ids that start at first.
func ramp(first, n int) []uint16 {
	ids := make([]uint16, n)
	for i := range ids {
		ids[i] = uint16(first + i)
	}
	return ids
}

func encodeShard(t testing.TB, ids []uint16) []byte {
	var buf bytes.Buffer
	require.NoError(t, WriteShard(&buf, ids))
	return buf.Bytes()
}

// openTestShards writes shards to a new folder and opens it.
func openTestShards(t *testing.T, o Options, files ...shardFile) (*Corpus, error) {
	t.Helper()
	root := t.TempDir()
	for _, f := range files {
		require.NoError(t, os.WriteFile(filepath.Join(root, f.name), encodeShard(t, f.ids), 0o644))
	}
	c, err := OpenFiles([]string{root}, o)
	if err == nil {
		t.Cleanup(func() { require.NoError(t, c.Close()) })
	}
	return c, err
}

// readAll reads a stream, step tokens at a time.
func readAll(t testing.TB, tokens Tokens, step int) []int32 {
	all := make([]int32, tokens.Len())
	for at := 0; at < len(all); at += step {
		require.NoError(t, tokens.ReadTokens(all[at:min(at+step, len(all))], int64(at)))
	}
	return all
}

func TestShardLayout(t *testing.T) {
	got := encodeShard(t, []uint16{1, 50256, 0x1234})
	require.Len(t, got, 1024+6)
	require.Equal(t, []byte{0x88, 0xd8, 0x34, 0x01, 1, 0, 0, 0, 3, 0, 0, 0}, got[:12])
	require.Equal(t, make([]byte, 1024-12), got[12:1024])
	require.Equal(t, []byte{1, 0, 0x50, 0xc4, 0x34, 0x12}, got[1024:])
	require.Error(t, WriteShard(&bytes.Buffer{}, []uint16(nil)))
}

func TestShardsAreOneStream(t *testing.T) {
	c, err := openTestShards(t, Options{}, shardFile{"b.bin", ramp(700, 300)}, shardFile{"a.bin", ramp(0, 700)}, shardFile{"c.bin", ramp(1000, 1)})
	require.NoError(t, err)
	require.Equal(t, KindShards, c.Info.Kind)
	require.Equal(t, 1001, c.Info.Vocab)
	require.EqualValues(t, 1001, c.Info.TrainTokens)
	require.Equal(t, []File{{Path: "a.bin", Bytes: 2424}, {Path: "b.bin", Bytes: 1624}, {Path: "c.bin", Bytes: 1026}}, c.Info.Files)
	for _, step := range []int{1, 7, 256, 5000} {
		for i, id := range readAll(t, c.Train, step) {
			require.EqualValues(t, i, id)
		}
	}
	_, _, ok := c.Text()
	require.False(t, ok)
}

// TestLongShard writes and scans a shard that is longer than a chunk.
func TestLongShard(t *testing.T) {
	ids := make([]uint16, scanChunk/idBytes*2+3)
	for i := range ids {
		ids[i] = uint16(i * 7 % 50257)
	}
	ids[len(ids)-1] = 60000
	c, err := openTestShards(t, Options{}, shardFile{"a.bin", ids})
	require.NoError(t, err)
	require.Equal(t, 60001, c.Info.Vocab)
	got := readAll(t, c.Train, len(ids))
	for i, id := range ids {
		if int32(id) != got[i] {
			require.Equal(t, int32(id), got[i], "token %d", i)
		}
	}
	_, err = openTestShards(t, Options{Vocab: 60000}, shardFile{"a.bin", ids})
	requireSentence(t, err, "a.bin", "id 60000 at token 1048578", "but the vocabulary has 60000", "model.vocab")
}

func TestShardHash(t *testing.T) {
	c, err := openTestShards(t, Options{}, shardFile{"a.bin", ramp(0, 50)}, shardFile{"b.bin", ramp(0, 60)})
	require.NoError(t, err)
	h := newCorpusHash()
	for _, f := range []shardFile{{"a.bin", ramp(0, 50)}, {"b.bin", ramp(0, 60)}} {
		file := encodeShard(t, f.ids)
		h.begin(f.name, int64(len(file)))
		h.Write(file)
	}
	require.Equal(t, h.String(), c.Info.SHA256)
}

func TestShardSplit(t *testing.T) {
	held := func(c *Corpus) (list []int64) {
		for _, f := range c.Info.Files {
			list = append(list, f.HeldOut)
		}
		return list
	}
	t.Run("tail across files", func(t *testing.T) {
		c, err := openTestShards(t, Options{ValBytes: 61}, shardFile{"a.bin", ramp(0, 980)}, shardFile{"b.bin", ramp(980, 20)})
		require.NoError(t, err)
		require.Equal(t, []int64{20, 40}, held(c))
		require.EqualValues(t, 970, c.Train.Len())
		require.Equal(t, int32(970), readAll(t, c.Val, 7)[0])
		require.Equal(t, int32(999), readAll(t, c.Val, 7)[29])
	})
	t.Run("tail is at most a tenth", func(t *testing.T) {
		c, err := openTestShards(t, Options{ValBytes: 1 << 40}, shardFile{"a.bin", ramp(0, 109)})
		require.NoError(t, err)
		require.EqualValues(t, 10, c.Info.ValTokens)
		require.EqualValues(t, 99, c.Info.TrainTokens)
	})
	t.Run("named", func(t *testing.T) {
		c, err := openTestShards(t, Options{ValBytes: 100}, shardFile{"x_train_0.bin", ramp(0, 100)}, shardFile{"x_val_0.bin", ramp(100, 40)}, shardFile{"x_val_1.bin", ramp(140, 40)})
		require.NoError(t, err)
		require.Equal(t, []int64{0, 80, 80}, held(c))
		require.EqualValues(t, 100, c.Train.Len())
		val := readAll(t, c.Val, 50)
		require.Len(t, val, 50)
		require.Equal(t, int32(149), val[49])
	})
	t.Run("nothing to train on", func(t *testing.T) {
		_, err := openTestShards(t, Options{ValBytes: 100}, shardFile{"val.bin", ramp(0, 10)})
		requireSentence(t, err, "val.bin", "for validation by its name")
	})
	t.Run("nothing to validate", func(t *testing.T) {
		c, err := openTestShards(t, Options{}, shardFile{"train.bin", ramp(0, 10)}, shardFile{"val.bin", ramp(10, 10)})
		require.NoError(t, err)
		require.Equal(t, []int64{0, 20}, held(c), "val.bin is not for training")
		c, err = openTestShards(t, Options{}, shardFile{"val_0.bin", ramp(0, 10)}, shardFile{"val_1.bin", ramp(10, 10)})
		require.NoError(t, err)
		require.Len(t, readAll(t, c.Train, 7), 20)
		require.Zero(t, c.Val.Len())
	})
}

func TestNamesValidation(t *testing.T) {
	for name, want := range map[string]bool{
		"fineweb_val_000000.bin": true, "TinyStories_val.bin": true, "val.bin": true, "a-VALID.bin": true, "validation2.bin": true, "x/val7.bin": true,
		"fineweb_train_000001.bin": false, "medieval.bin": false, "interval_0.bin": false, "val/train_0.bin": false,
	} {
		require.Equal(t, want, namesValidation(name), name)
	}
}

// patchedShard returns a shard of ten ids with one header field changed.
func patchedShard(t testing.TB, field int, value int32) []byte {
	file := encodeShard(t, ramp(0, 10))
	binary.LittleEndian.PutUint32(file[4*field:], uint32(value))
	return file
}

func TestHostileShards(t *testing.T) {
	good := encodeShard(t, ramp(0, 10))
	for _, c := range []struct {
		name string
		file []byte
		want []string
	}{
		{"no header", good[:100], []string{"100 bytes", "1024"}},
		{"text", bytes.Repeat([]byte("text"), 300), []string{"begins with 1954047348 instead of 20240520", "rename it if it is text"}},
		{"magic of 32-bit ids", patchedShard(t, 0, 20240801), []string{"version 1", "version 7"}},
		{"32-bit ids, header of 16-bit ids", append(patchedShard(t, 2, 10), good[1024:]...), []string{"10 32-bit ids", "header for 16-bit ids", "write it again"}},
		{"big-endian", patchedShard(t, 0, -0x27cbffff), []string{"instead of 20240520"}},
		{"version", patchedShard(t, 1, 2), []string{"version 2", "octet reads version 1"}},
		{"no ids", patchedShard(t, 2, 0)[:1024], []string{"has 0 ids"}},
		{"negative count", patchedShard(t, 2, -10), []string{"has -10 ids"}},
		{"count too high", patchedShard(t, 2, 11), []string{"1044 bytes", "11 ids", "need 1046"}},
		{"count too low", patchedShard(t, 2, 9), []string{"need 1042"}},
		{"huge count", patchedShard(t, 2, 1<<31-1), []string{"2147483647 ids", "need 4294968318"}},
		{"truncated within an id", good[:len(good)-1], []string{"1043 bytes"}},
		{"trailing byte", append(bytes.Clone(good), 0), []string{"1045 bytes"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			name := filepath.Join(t.TempDir(), "a.bin")
			require.NoError(t, os.WriteFile(name, c.file, 0o644))
			_, err := OpenFiles([]string{name}, Options{})
			requireSentence(t, err, append(c.want, "a.bin")...)
			requireClosed(t, name)
		})
	}
}

// requireClosed checks that this process has no open descriptor of a file, on
// systems that list descriptors.
func requireClosed(t *testing.T, name string) {
	t.Helper()
	const list = "/proc/self/fd"
	open, _ := os.ReadDir(list)
	for _, fd := range open {
		target, _ := os.Readlink(filepath.Join(list, fd.Name()))
		require.NotEqual(t, name, target, "still open")
	}
}

func TestShardTruncatedWhileInUse(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a.bin")
	require.NoError(t, os.WriteFile(name, encodeShard(t, ramp(0, 100)), 0o644))
	c, err := OpenFiles([]string{name}, Options{})
	require.NoError(t, err)
	require.NoError(t, os.Truncate(name, 1100))
	requireSentence(t, c.Train.ReadTokens(make([]int32, 10), 0), "a.bin", "has changed since it was opened: it has 1100 bytes, not 1224")
	require.NoError(t, c.Close())
	requireSentence(t, c.Train.ReadTokens(make([]int32, 10), 0), "a.bin", "closed")
	require.NoError(t, c.Close(), "a second Close must do nothing")
}

// TestShardChangedWhileInUse checks that a changed file is an error, and that an id above
// the former maximum is one even if the stamp is unchanged.
func TestShardChangedWhileInUse(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a.bin")
	var b bytes.Buffer
	require.NoError(t, WriteShard(&b, []uint16{5, 1, 2, 3, 4, 5, 0, 1, 2, 3}))
	require.NoError(t, os.WriteFile(name, b.Bytes(), 0o600))
	c, err := OpenFiles([]string{name}, Options{Vocab: 8})
	require.NoError(t, err)
	defer c.Close()
	ids := make([]int32, 4)
	before, err := os.Stat(name)
	require.NoError(t, err)
	require.NoError(t, c.Train.ReadTokens(ids, 3))
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte{6}, shardHeader+4*idBytes)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.NoError(t, os.Chtimes(name, time.Time{}, time.Unix(1, 0)))
	requireSentence(t, c.Train.ReadTokens(ids, 3), "a.bin", "has changed since it was opened: its modification time differs")
	// A program may restore the modification time.
	require.NoError(t, os.Chtimes(name, time.Time{}, before.ModTime()))
	requireSentence(t, c.Train.ReadTokens(ids, 3), "a.bin", "has changed since it was opened: token 4 now has the id 6, above the former maximum 5")
}

func TestShardsAreReadConcurrently(t *testing.T) {
	c, err := openTestShards(t, Options{}, shardFile{"a.bin", ramp(0, 5000)}, shardFile{"b.bin", ramp(5000, 5000)})
	require.NoError(t, err)
	var ranks sync.WaitGroup
	for rank := range 4 {
		ranks.Go(func() {
			dst := make([]int32, 100+rank)
			for at := int64(rank); at+200 < c.Train.Len(); at += 61 {
				if err := c.Train.ReadTokens(dst, at); err != nil || dst[0] != int32(at) || dst[len(dst)-1] != int32(at)+int32(len(dst))-1 {
					t.Errorf("rank %d at %d: %v, %v", rank, at, dst, err)
					return
				}
			}
		})
	}
	ranks.Wait()
}

// FuzzShard reads any file as a shard. An accepted file must be what WriteShard writes,
// except for the header's unused words.
func FuzzShard(f *testing.F) {
	f.Add(encodeShard(f, ramp(0, 10)), 0)
	f.Add(encodeShard(f, []uint16{65535}), 65535)
	f.Add(patchedShard(f, 2, -1), 0)
	f.Add(patchedShard(f, 2, 1<<30), 0)
	f.Add([]byte("text"), 0)
	f.Fuzz(func(t *testing.T, file []byte, vocab int) {
		h := sha256.New()
		s, err := newShard(bytes.NewReader(file), "fuzz.bin", int64(len(file)), h)
		if err != nil {
			requireSentence(t, err, "fuzz.bin")
			return
		}
		if err := s.scan(h, vocab); err != nil {
			requireSentence(t, err, "fuzz.bin", "vocabulary")
			return
		}
		require.True(t, vocab <= 0 || s.largest < vocab)
		sum := sha256.Sum256(file)
		require.Equal(t, sum[:], h.Sum(nil))
		var ofShard stream
		ofShard.add(s, 0, s.ids)
		var ids []uint16
		seen := int32(0)
		for _, id := range readAll(t, &ofShard, 1000) {
			ids = append(ids, uint16(id))
			seen = max(seen, id)
		}
		require.EqualValues(t, s.largest, seen)
		require.Equal(t, file[shardHeader:], encodeShard(t, ids)[shardHeader:])
		require.Equal(t, file[:12], encodeShard(t, ids)[:12])
	})
}
