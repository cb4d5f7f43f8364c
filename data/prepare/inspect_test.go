package prepare

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/data"
)

// completions writes a folder of tokens with masks.
func completions(t testing.TB) string {
	t.Helper()
	lines := ""
	for i := range 90 {
		lines += jsonLine(t, map[string]string{"prompt": "the cat" + strings.Repeat(" sat", i%9), "completion": " on the mat"})
	}
	o := options(t, trained(t), write(t, t.TempDir()+"/a.jsonl", lines))
	o.Kind, o.ShardTokens, o.Val = data.KindCompletion, 300, 0.2
	_, err := Run(t.Context(), o)
	require.NoError(t, err)
	return o.Out
}

func TestInspect(t *testing.T) {
	dir := completions(t)
	want := contentOf(t, dir)
	in, err := Inspect(dir, InspectOptions{Verify: true})
	require.NoError(t, err)
	lengths := map[int64]int64{}
	longest, largest := 0, int32(0)
	for _, list := range want.ids {
		for _, ids := range list {
			lengths[int64(len(ids))]++
			longest = max(longest, len(ids))
			for _, id := range ids {
				largest = max(largest, id)
			}
		}
	}
	require.EqualValues(t, longest, in.Longest)
	below := int64(0)
	for length, n := range lengths {
		if length < in.Median {
			below += n
		}
	}
	require.Less(t, below, int64(45))
	require.GreaterOrEqual(t, below+lengths[in.Median], int64(45))
	got := int32(-1)
	for _, s := range in.Shards {
		require.Equal(t, 2, s.Width)
		got = max(got, s.Largest)
	}
	require.Equal(t, largest, got)
	require.Equal(t, "<|endoftext|>", in.EndToken)

	documents := func(n int64) (docs []Document) {
		require.NoError(t, Documents(dir, n, func(d *Document) error {
			docs = append(docs, *d)
			return nil
		}))
		return docs
	}
	docs := documents(5)
	require.Len(t, docs, 5)
	for i, d := range docs {
		require.EqualValues(t, len(want.ids[data.TrainPart][i]), d.Tokens)
		require.Len(t, d.Spans, 2)
		require.False(t, d.Spans[0].Counts)
		require.True(t, d.Spans[1].Counts)
		require.Equal(t, " on the mat<|endoftext|>", d.Spans[1].Text)
		require.Equal(t, want.texts[data.TrainPart][i]+"<|endoftext|>", d.Spans[0].Text+d.Spans[1].Text)
	}
	require.Len(t, documents(1000), 90)
	require.Empty(t, documents(0))
	stop, visits := errors.New("stop"), 0 // they are not collected first
	require.Equal(t, stop, Documents(dir, 1000, func(*Document) error {
		visits++
		return stop
	}))
	require.Equal(t, 1, visits)

	// Without its description it is a folder of shards.
	require.NoError(t, os.Remove(filepath.Join(dir, data.PreparedFile)))
	plain, err := Inspect(dir, InspectOptions{})
	require.NoError(t, err)
	require.Nil(t, plain.Prepared)
	require.Len(t, plain.Shards, len(in.Shards))
	one, err := Inspect(filepath.Join(dir, "train-000000.bin"), InspectOptions{})
	require.NoError(t, err)
	require.Equal(t, in.Shards[0].Tokens, one.Shards[0].Tokens)
	require.Equal(t, in.Shards[0].Largest, one.Shards[0].Largest)

	var wide bytes.Buffer
	require.NoError(t, data.WriteShard(&wide, []uint32{1, 70_000, 3}))
	path := write(t, t.TempDir()+"/wide.bin", wide.String())
	one, err = Inspect(path, InspectOptions{})
	require.NoError(t, err)
	require.Equal(t, []Shard{{Path: path, Width: 4, Tokens: 3, Largest: 70_000}}, one.Shards)
}

// Verification finds damage in every file, by name.
func TestVerify(t *testing.T) {
	good := folder(t, completions(t))
	for _, c := range []struct {
		file   string
		change func(raw []byte) []byte
		want   string
		quick  bool // found without reading all ids
	}{
		{"train-000000.bin", func(raw []byte) []byte { raw[1500] ^= 1; return raw }, "train-000000: the SHA-256 of its files is ", false},
		{"train-000000.bin", func(raw []byte) []byte { raw[1024], raw[1025] = 0xff, 0xff; return raw }, ".bin: id 65535 at token 0 is not below the vocabulary of 317", false},
		{"train-000000.bin", func(raw []byte) []byte { return raw[:len(raw)-2] }, ".bin: it has ", true},
		{"train-000000.bin", func(raw []byte) []byte { raw[0] = 1; return raw }, ".bin: it begins with ", true},
		{"train-000000.bin", func(raw []byte) []byte { return raw[:99] }, ".bin: it is truncated or not a shard", true},
		{"train-000001.idx", func(raw []byte) []byte { copy(raw[8:], raw[:8]); return raw }, "train-000001: .idx: document 1 ends at id ", true},
		{"train-000001.idx", func(raw []byte) []byte { raw[7] = 0xff; return raw }, ".idx: document 0 ends at id ", true},
		{"train-000001.idx", func(raw []byte) []byte { return raw[:len(raw)-8] }, ".idx ends at document ", true},
		{"train-000001.idx", func(raw []byte) []byte { return append(raw, 1) }, ".idx has more than ", true},
		{"train-000001.idx", func(raw []byte) []byte { raw[0]--; return raw }, "not with the end of text, 0", false},
		{"val-000000.mask", func(raw []byte) []byte { return append(raw, 0) }, "val-000000: .mask has ", true},
		{"val-000000.mask", func(raw []byte) []byte { raw[0] ^= 1; return raw }, "val-000000: the SHA-256 of its files is ", false},
		{"val-000000.idx", func([]byte) []byte { return nil }, "val-000000: .idx ends at document 0 of ", true},
	} {
		dir := t.TempDir()
		for name, text := range good {
			if name == c.file {
				text = string(c.change([]byte(text)))
			}
			write(t, filepath.Join(dir, name), text)
		}
		_, err := Inspect(dir, InspectOptions{Verify: true})
		require.ErrorContains(t, err, c.want)
		var bad *InputError
		require.ErrorAs(t, err, &bad)
		_, err = Inspect(dir, InspectOptions{})
		require.Equal(t, c.quick, err != nil, c.want)
	}
}

// Any idx and mask is read without a panic; those that pass have documents that make up the shard.
func FuzzIndex(f *testing.F) {
	end := func(list ...uint64) (raw []byte) {
		for _, e := range list {
			raw = binary.LittleEndian.AppendUint64(raw, e)
		}
		return raw
	}
	f.Add(end(3, 5, 9), []byte{1, 2}, int64(9), int64(3))
	f.Add(end(3, 1<<63), []byte{1, 2}, int64(9), int64(2))
	f.Add(end(3)[:5], []byte{}, int64(3), int64(1))
	f.Fuzz(func(t *testing.T, idx, mask []byte, tokens, documents int64) {
		if tokens < 1 || tokens > 1<<20 || documents < 1 || documents > tokens {
			return
		}
		dir := t.TempDir()
		s := data.PreparedShard{Name: "train-000000", Tokens: tokens, Documents: documents}
		require.NoError(t, os.WriteFile(filepath.Join(dir, "train-000000.idx"), idx, 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "train-000000.mask"), mask, 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "train-000000.bin"), append(data.ShardHeader(2, tokens), make([]byte, 2*tokens)...), 0o600))
		sum, err := shardHash(dir, s.Name, data.KindCompletion)
		require.NoError(t, err)
		s.SHA256 = sum
		p := &data.Prepared{Kind: data.KindCompletion, Tokenizer: data.PreparedTokenizer{Vocab: 10}}
		var total, n int64
		_, err = inspectShard(dir, p, s, true, func(length int64) {
			require.Positive(t, length)
			total += length
			n++
		})
		if err == nil {
			require.Equal(t, tokens, total)
			require.Equal(t, documents, n)
			require.Len(t, mask, int(tokens+7)/8)
		}
	})
}
