package data

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/tokenizer"
)

// writtenDocs are the documents of a folder of tokens that writeFolder wrote.
type writtenDocs struct {
	dir  string
	docs map[string][][]int32 // by part
	mask map[string][][]bool
}

// writeFolder writes a folder of tokens with documents of random lengths in several shards. Each
// document ends with the zero byte.
func writeFolder(t *testing.T, kind string, seed uint64, perShard ...int) *writtenDocs {
	t.Helper()
	w := &writtenDocs{t.TempDir(), map[string][][]int32{}, map[string][][]bool{}}
	tok := tokenizer.OfBytes()
	for _, f := range tok.Files {
		require.NoError(t, os.WriteFile(filepath.Join(w.dir, f.Name), f.Data, 0o644))
	}
	p := Prepared{Kind: kind, Tokenizer: PreparedTokenizer{SHA256: tok.SHA256(), Vocab: 256}, Val: 0.1}
	rng := rand.New(rand.NewPCG(seed, 0))
	for i, n := range append(perShard, 4) {
		part := TrainPart
		if i == len(perShard) {
			part, i = ValPart, 0
		}
		s := PreparedShard{Name: ShardName(part, i), SHA256: "00", Documents: int64(n)}
		var ids []uint16
		var index, mask []byte
		for range n {
			doc := []int32{}
			var counts []bool
			for range 1 + rng.IntN(40) {
				doc = append(doc, int32(1+rng.IntN(255)))
			}
			doc = append(doc, 0)
			for range doc {
				counts = append(counts, rng.IntN(2) == 0)
			}
			for k, id := range doc {
				if at := len(ids); at%8 == 0 {
					mask = append(mask, 0)
				}
				if counts[k] {
					mask[len(ids)/8] |= 1 << (len(ids) % 8)
				}
				ids = append(ids, uint16(id))
			}
			index = binary.LittleEndian.AppendUint64(index, uint64(len(ids)))
			w.docs[part] = append(w.docs[part], doc)
			w.mask[part] = append(w.mask[part], counts)
		}
		s.Tokens, s.Bytes = int64(len(ids)), int64(len(ids)-n)
		p.Shards = append(p.Shards, s)
		var file bytes.Buffer
		require.NoError(t, WriteShard(&file, ids))
		files := map[string][]byte{".bin": file.Bytes(), ".idx": index}
		if kind != KindDocuments {
			files[".mask"] = mask
		}
		for suffix, raw := range files {
			require.NoError(t, os.WriteFile(filepath.Join(w.dir, s.Name+suffix), raw, 0o644))
		}
	}
	require.NoError(t, WritePrepared(w.dir, p))
	return w
}

func openFolders(t *testing.T, dirs ...string) *Corpus { return openAnswers(t, false, dirs...) }

func openAnswers(t *testing.T, answers bool, dirs ...string) *Corpus {
	t.Helper()
	c, err := OpenFiles(dirs, Options{ValBytes: 1 << 40, Vocab: 256, Answers: answers})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// A folder of tokens is a stream of all documents, and knows where each is.
func TestPreparedFolder(t *testing.T) {
	a, b := writeFolder(t, KindDocuments, 1, 7, 1, 12), writeFolder(t, KindDocuments, 2, 5)
	c := openFolders(t, a.dir, b.dir)
	docs := slices.Concat(a.docs[TrainPart], b.docs[TrainPart])
	require.Equal(t, slices.Concat(docs...), readAll(t, c.Train, 11))
	require.Equal(t, slices.Concat(slices.Concat(a.docs[ValPart], b.docs[ValPart])...), readAll(t, c.Val, 13))
	train := c.Train.(*part)
	require.EqualValues(t, len(docs), train.documents())
	for i, want := range docs {
		from, to, err := train.document(int64(i))
		require.NoError(t, err)
		got := make([]int32, to-from)
		require.NoError(t, train.ReadTokens(got, from))
		require.Equal(t, want, got)
	}
	require.Equal(t, KindPrepared, c.Info.Kind)
	require.Zero(t, c.EndOfText)
	require.Equal(t, 256, c.Tokenizer.Vocab())
	require.NotEqual(t, c.Info.SHA256, openFolders(t, a.dir).Info.SHA256)
}

func TestWrongFolders(t *testing.T) {
	text := writeTree(t, map[string]string{"a.txt": "some text"})
	good := writeFolder(t, KindCompletion, 7, 4)
	for name, x := range map[string]struct {
		change func(t *testing.T, dir string)
		want   []string
	}{
		"truncated ids": {func(t *testing.T, dir string) {
			require.NoError(t, os.Truncate(filepath.Join(dir, "train-000000.bin"), 1030))
		}, []string{"train-000000.bin", "1030 bytes"}},
		"no index":     {func(t *testing.T, dir string) { require.NoError(t, os.Remove(filepath.Join(dir, "train-000000.idx"))) }, []string{"train-000000.idx"}},
		"no mask":      {func(t *testing.T, dir string) { require.NoError(t, os.Remove(filepath.Join(dir, "val-000000.mask"))) }, []string{"val-000000.mask"}},
		"no tokenizer": {func(t *testing.T, dir string) { require.NoError(t, os.Remove(filepath.Join(dir, "tokenizer.json"))) }, []string{"tokenizer.json"}},
		"another tokenizer": {func(t *testing.T, dir string) {
			rewrite(t, filepath.Join(dir, "tokenizer.json"), `"type": "BPE"`, `"type" : "BPE"`)
		}, []string{"is not the one of its tokens"}},
		"another format": {func(t *testing.T, dir string) {
			rewrite(t, filepath.Join(dir, PreparedFile), `"format": 1`, `"format": 2`)
		}, []string{"format 2"}},
		"unknown kind": {func(t *testing.T, dir string) { rewrite(t, filepath.Join(dir, PreparedFile), `"completion"`, `"poem"`) }, []string{`"poem"`}},
		"path in a name": {func(t *testing.T, dir string) {
			rewrite(t, filepath.Join(dir, PreparedFile), `"train-000000"`, `"../train-000000"`)
		}, []string{"train-000000"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "x")
			require.NoError(t, os.CopyFS(dir, os.DirFS(good.dir)))
			x.change(t, dir)
			_, err := OpenFiles([]string{dir}, Options{})
			requireSentence(t, err, x.want...)
		})
	}
	_, err := OpenFiles([]string{good.dir, text}, Options{})
	requireSentence(t, err, filepath.Base(text), "is no folder of octet data prepare")
	_, err = OpenFiles([]string{good.dir, writeFolder(t, KindDocuments, 7, 4).dir}, Options{})
	requireSentence(t, err, "completion", "text", "train on one kind")
	_, err = OpenFiles([]string{good.dir}, Options{Vocab: 100})
	requireSentence(t, err, "model.vocab is 100", "model.vocab=256")
	_, err = OpenFiles([]string{good.dir}, Options{Tokenizer: good.dir})
	requireSentence(t, err, "data.tokenizer")
	_, err = OpenFiles([]string{text}, Options{Tokenizer: good.dir})
	requireSentence(t, err, "octet data prepare")
}

// A document without ids, which would never fill a row, is an error.
func TestWrongIndex(t *testing.T) {
	w := writeFolder(t, KindDocuments, 8, 4)
	name := filepath.Join(w.dir, "train-000000.idx")
	raw, err := os.ReadFile(name)
	require.NoError(t, err)
	copy(raw[8:16], raw[:8])
	require.NoError(t, os.WriteFile(name, raw, 0o644))
	l, err := openFolders(t, w.dir).Loader(LoaderOptions{Seq: 16, Packing: true})
	require.NoError(t, err)
	before := l.Position()
	for err == nil {
		before = l.Position()
		err = l.Next(make([]int32, 16), make([]int32, 16))
	}
	requireSentence(t, err, "train-000000.idx", "document 1")
	require.Equal(t, before, l.Position())
}

// Shards of 32-bit ids, as llm.c writes for Llama 3.
func TestWideShards(t *testing.T) {
	raw := make([]byte, shardHeader)
	binary.LittleEndian.PutUint32(raw[0:], wideMagic)
	binary.LittleEndian.PutUint32(raw[4:], wideVersion)
	binary.LittleEndian.PutUint32(raw[8:], 20)
	for i := range uint32(20) {
		raw = binary.LittleEndian.AppendUint32(raw, i*6000)
	}
	name := filepath.Join(t.TempDir(), "a.bin")
	require.NoError(t, os.WriteFile(name, raw, 0o644))
	c, err := OpenFiles([]string{name}, Options{ValBytes: 4})
	require.NoError(t, err)
	require.Equal(t, 19*6000+1, c.Info.Vocab)
	ids := readAll(t, c.Train, 7)
	require.Len(t, ids, 18)
	require.EqualValues(t, 17*6000, ids[17])
	require.EqualValues(t, []int32{108000, 114000}, readAll(t, c.Val, 3))
	_, err = OpenFiles([]string{name}, Options{Vocab: 100_000})
	requireSentence(t, err, "the id 102000 at token 17", "model.vocab")
	require.NoError(t, os.WriteFile(name, raw[:len(raw)-2], 0o644))
	_, err = OpenFiles([]string{name}, Options{})
	requireSentence(t, err, "20 ids", "need 1104")
}

// rewrite replaces a text in a file.
func rewrite(t *testing.T, name, from, to string) {
	t.Helper()
	raw, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Contains(t, string(raw), from)
	require.NoError(t, os.WriteFile(name, bytes.Replace(raw, []byte(from), []byte(to), 1), 0o644))
}

// The hash of a corpus covers the ends and masks of documents and the ids themselves, the tokenizer and the
// weights; a resumed run is told which differs.
func TestChangedFolders(t *testing.T) {
	w := writeFolder(t, KindCompletion, 11, 5, 4)
	saved := openFolders(t, w.dir).Info
	require.NoError(t, CheckSame(saved, openFolders(t, w.dir).Info))
	for _, name := range []string{"train-000001.bin", "train-000000.idx", "val-000000.mask"} {
		dir := filepath.Join(t.TempDir(), filepath.Base(w.dir))
		require.NoError(t, os.CopyFS(dir, os.DirFS(w.dir)))
		require.NoError(t, CheckSame(saved, openFolders(t, dir).Info), "a copy")
		raw, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		raw[len(raw)-2] ^= 1
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), raw, 0o600))
		requireSentence(t, CheckSame(saved, openFolders(t, dir).Info), "the corpus has changed")
	}
	other := saved
	other.EndOfText = 7
	require.ErrorContains(t, CheckSame(saved, other), "end of text 0, but")
	other = saved
	other.Tokenizer = "ab"
	requireSentence(t, CheckSame(saved, other), "the tokenizer has changed", "ab")

	b := writeFolder(t, KindCompletion, 12, 5)
	sources := func(weight float64) Info {
		c, err := OpenSources([]Source{{Path: w.dir, Weight: 1}, {Path: b.dir, Weight: weight}}, Options{})
		require.NoError(t, err)
		defer func() { require.NoError(t, c.Close()) }()
		return c.Info
	}
	require.NoError(t, CheckSame(sources(2), sources(2)))
	requireSentence(t, CheckSame(sources(2), sources(3)), "weights of data.sources", "[1 2] to [1 3]")
}

// The same text in two places could be in training and validation.
func TestFoldersApart(t *testing.T) {
	w := writeFolder(t, KindDocuments, 13, 5)
	_, err := OpenFiles([]string{w.dir, w.dir + "/."}, Options{})
	requireSentence(t, err, "named twice")
	text := writeTree(t, map[string]string{"a.txt": "some text", "b.txt": "more text"})
	_, err = OpenSources([]Source{{Path: text, Weight: 1}, {Path: filepath.Join(text, "a.txt"), Weight: 1}}, Options{})
	requireSentence(t, err, "a.txt", "named twice")
	_, err = OpenSources([]Source{{Path: w.dir, Weight: 1}, {Path: writeOther(t), Weight: 1}}, Options{})
	requireSentence(t, err, "different tokenizers")
}

// writeOther writes a folder of tokens of another tokenizer.
func writeOther(t *testing.T) string {
	w := writeFolder(t, KindDocuments, 14, 5)
	p, err := ReadDescription(w.dir)
	require.NoError(t, err)
	var train tokenizer.Trainer
	train.Vocab = 256
	train.Add([]byte("text"))
	raw, err := train.Train()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(w.dir, "tokenizer.json"), raw, 0o600))
	require.NoError(t, os.Remove(filepath.Join(w.dir, "generation_config.json")))
	b, err := tokenizer.OpenBundle(filepath.Join(w.dir, "tokenizer.json"))
	require.NoError(t, err)
	p.Tokenizer.SHA256, p.Tokenizer.Vocab = b.SHA256(), b.Vocab()
	require.NoError(t, WritePrepared(w.dir, p))
	return w.dir
}

// val_bytes beyond the held-out part keeps all of it, also where tokens have less than a byte.
func TestAllOfTheHeldOutPart(t *testing.T) {
	w := writeFolder(t, KindDocuments, 15, 5)
	c, err := OpenFiles([]string{w.dir}, Options{ValBytes: math.MaxInt64})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	require.Equal(t, slices.Concat(w.docs[ValPart]...), readAll(t, c.Val, 5))
}

func TestUnfinishedFolder(t *testing.T) {
	dir := writeTree(t, map[string]string{UnfinishedFile: "{}", "train-000000.bin": "x"})
	_, err := OpenFiles([]string{dir}, Options{})
	requireSentence(t, err, "is not complete", "octet data prepare again")
}
