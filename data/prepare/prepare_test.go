package prepare

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	pq "github.com/parquet-go/parquet-go"
	"github.com/stretchr/testify/require"

	"octet/data"
	"octet/tokenizer"
)

// words is a text for a tokenizer that tests train.
const words = "the cat sat on the mat, and the dog sat by the door\nprompt completion user assistant hello world 1234 été\n\n"

// trained returns a small byte-level tokenizer with special tokens.
func trained(t testing.TB, special ...string) *tokenizer.Bundle {
	t.Helper()
	train := tokenizer.Trainer{Vocab: 320 + len(special), Special: append([]string{"<|endoftext|>"}, special...)}
	train.Add([]byte(strings.Repeat(words, 5)))
	raw, err := train.Train()
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "tokenizer.json")
	require.NoError(t, os.WriteFile(path, raw, 0o600))
	b, err := tokenizer.OpenBundle(path)
	require.NoError(t, err)
	return b
}

// write writes a file, compressed if its name says so, and returns its path.
func write(t testing.TB, path, text string) string {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	var out bytes.Buffer
	switch filepath.Ext(path) {
	case ".gz":
		z := gzip.NewWriter(&out)
		_, err := z.Write([]byte(text))
		require.NoError(t, err)
		require.NoError(t, z.Close())
	case ".zst":
		z, err := zstd.NewWriter(&out)
		require.NoError(t, err)
		_, err = z.Write([]byte(text))
		require.NoError(t, err)
		require.NoError(t, z.Close())
	default:
		out.WriteString(text)
	}
	require.NoError(t, os.WriteFile(path, out.Bytes(), 0o600))
	return path
}

// table writes a Parquet table of rows.
func table[T any](t testing.TB, path string, rows []T, options ...pq.WriterOption) string {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	f, err := os.Create(path)
	require.NoError(t, err)
	w := pq.NewGenericWriter[T](f, options...)
	_, err = w.Write(rows)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	require.NoError(t, f.Close())
	return path
}

// jsonLine returns a line with the fields of a map.
func jsonLine(t testing.TB, fields any) string {
	t.Helper()
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	require.NoError(t, e.Encode(fields))
	return out.String()
}

// options returns options for sources in a new folder.
func options(t testing.TB, tok *tokenizer.Bundle, sources ...string) Options {
	t.Helper()
	return Options{Sources: sources, Tokenizer: tok, Out: filepath.Join(t.TempDir(), "out"), Kind: data.KindDocuments}
}

// content is what a folder of tokens holds.
type content struct {
	texts  map[string][]string // of the parts: decoded documents without the end of text
	answer map[string][]string // of the parts: the decoded tokens that count in the loss
	ids    map[string][][]int32
}

// contentOf reads a folder without the code under test.
func contentOf(t testing.TB, dir string) content {
	t.Helper()
	p, tok, err := data.ReadPrepared(dir)
	require.NoError(t, err)
	c := content{map[string][]string{}, map[string][]string{}, map[string][][]int32{}}
	for _, s := range p.Shards {
		bin, err := os.ReadFile(filepath.Join(dir, s.Name+".bin"))
		require.NoError(t, err)
		idx, err := os.ReadFile(filepath.Join(dir, s.Name+".idx"))
		require.NoError(t, err)
		magic, version, width := uint32(20240520), uint32(1), 2
		if tok.Vocab() > 65536 {
			magic, version, width = 20240801, 7, 4
		}
		require.Equal(t, magic, binary.LittleEndian.Uint32(bin))
		require.Equal(t, version, binary.LittleEndian.Uint32(bin[4:]))
		require.EqualValues(t, s.Tokens, binary.LittleEndian.Uint32(bin[8:]))
		require.Equal(t, make([]byte, 1012), bin[12:1024])
		bin = bin[1024:]
		require.Len(t, bin, int(s.Tokens)*width)
		require.Len(t, idx, int(s.Documents)*8)
		var mask []byte
		if p.Kind != data.KindDocuments {
			mask, err = os.ReadFile(filepath.Join(dir, s.Name+".mask"))
			require.NoError(t, err)
			require.Len(t, mask, (int(s.Tokens)+7)/8)
		}
		at := 0
		for len(idx) > 0 {
			end := int(binary.LittleEndian.Uint64(idx))
			idx = idx[8:]
			var ids, answer []int32
			for ; at < end; at++ {
				id := int32(binary.LittleEndian.Uint16(bin[at*width:]))
				if width == 4 {
					id = int32(binary.LittleEndian.Uint32(bin[at*width:]))
				}
				ids = append(ids, id)
				if mask != nil && mask[at/8]>>(at%8)&1 == 1 {
					answer = append(answer, id)
				}
			}
			require.Equal(t, tok.EndOfText, ids[len(ids)-1])
			text, err := tok.Decode(nil, ids[:len(ids)-1], false)
			require.NoError(t, err)
			counted, err := tok.Decode(nil, answer, false)
			require.NoError(t, err)
			part := s.Part()
			c.texts[part] = append(c.texts[part], string(text))
			c.answer[part] = append(c.answer[part], string(counted))
			c.ids[part] = append(c.ids[part], ids)
		}
		require.EqualValues(t, s.Tokens, at)
	}
	return c
}

// folder returns the files of a folder.
func folder(t testing.TB, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	require.NoError(t, fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			text, readErr := os.ReadFile(filepath.Join(dir, path))
			files[path], err = string(text), readErr
		}
		return err
	}))
	return files
}

// Every format gives the documents back, in order.
func TestFormats(t *testing.T) {
	dir := t.TempDir()
	texts := []string{"the cat", "été \"quoted\"\n\tline \u2028 \\ / 😀", "dog", strings.Repeat("a longer text with words ", 300), " spaces  "}
	var jsonl strings.Builder
	type row struct {
		Other int64  `parquet:"other"`
		Text  string `parquet:"text,optional"`
	}
	var rows []row
	for i, text := range texts {
		jsonl.WriteString(jsonLine(t, map[string]any{"a": []any{1, nil, "x"}, "text": text, "z": map[string]any{"text": "not this"}}))
		if i == 2 {
			jsonl.WriteString("\r\n  \n") // lines without anything
		}
		rows = append(rows, row{int64(i), text})
	}
	tok := trained(t)
	for _, path := range []string{
		write(t, dir+"/a.jsonl", "\ufeff"+jsonl.String()), write(t, dir+"/b.ndjson", strings.TrimSuffix(jsonl.String(), "\n")),
		write(t, dir+"/c.jsonl.gz", jsonl.String()), write(t, dir+"/d.JSONL.zst", jsonl.String()),
		table(t, dir+"/e.parquet", rows),
		table(t, dir+"/f.parquet", rows, pq.MaxRowsPerRowGroup(2), pq.Compression(&pq.Zstd), pq.PageBufferSize(50)),
		table(t, dir+"/g.parquet", rows, pq.Compression(&pq.Snappy), pq.DataPageVersion(1)),
	} {
		for _, tok := range []*tokenizer.Bundle{tok, tokenizer.OfBytes()} {
			o := options(t, tok, path)
			r, err := Run(t.Context(), o)
			require.NoError(t, err, path)
			require.Equal(t, texts, contentOf(t, o.Out).texts[data.TrainPart], path)
			require.EqualValues(t, len(texts), r.Total(data.TrainPart).Documents)
			require.EqualValues(t, len(strings.Join(texts, "")), r.Total(data.TrainPart).Bytes)
			info, err := os.Stat(path)
			require.NoError(t, err)
			require.Equal(t, []data.PreparedSource{{Path: path, Bytes: info.Size(), Documents: int64(len(texts))}}, r.Sources)
		}
	}
	// Files.
	sub := dir + "/src"
	for i, name := range []string{"a.txt", "b/c.go", "d.md.gz", "e.txt.zst", "f"} {
		write(t, sub+"/"+name, texts[i])
	}
	write(t, sub+"/picture.png", "\x89PNG\x00")
	write(t, sub+"/g.tar.gz", "archive")
	write(t, sub+"/empty", "")
	write(t, sub+"/.hidden", "hidden")
	write(t, sub+"/h.jsonl", `{"text":""}`+"\n"+`{"text":"a line"}`)
	write(t, sub+"/run/.lock", "")
	write(t, sub+"/run/config.toml", "")
	o := options(t, tok, sub)
	o.Out = sub + "/out" // is not read
	for range 2 {
		r, err := Run(t.Context(), o)
		require.NoError(t, err)
		require.Equal(t, append(slices.Clone(texts), "a line"), contentOf(t, o.Out).texts[data.TrainPart])
		require.EqualValues(t, 2, r.LeftOut)
		require.EqualValues(t, 1, r.Empty)
		o.Out = sub + "/again" // a folder of tokens is not read
	}
}

// corpusOf writes sources of all formats with several hundred documents, some of them long or equal,
// and returns their paths and texts.
func corpusOf(t testing.TB, dir string) (paths, texts []string) {
	r := rand.New(rand.NewPCG(1, 2))
	list := strings.Fields(words)
	text := func(n int) string {
		var b strings.Builder
		for range n {
			b.WriteString(list[r.IntN(len(list))] + []string{" ", "\n", "  ", ", "}[r.IntN(4)])
		}
		texts = append(texts, b.String())
		return b.String()
	}
	type row struct {
		Text string `parquet:"text"`
	}
	for i := range 3 {
		var jsonl, more strings.Builder
		var rows []row
		for range 60 {
			jsonl.WriteString(jsonLine(t, map[string]string{"text": text(1 + r.IntN(60))}))
		}
		for _, n := range []int{100, 3000, 1} {
			paths = append(paths, write(t, fmt.Sprintf("%s/%d-%d.txt", dir, i, n), text(n)))
		}
		for range 60 {
			more.WriteString(jsonLine(t, map[string]string{"text": text(1 + r.IntN(9))}))
		}
		for range 60 {
			rows = append(rows, row{text(1 + r.IntN(60))})
		}
		paths = append(paths, write(t, fmt.Sprintf("%s/%d.jsonl", dir, i), jsonl.String()), write(t, fmt.Sprintf("%s/%d.jsonl.gz", dir, i), more.String()),
			table(t, fmt.Sprintf("%s/%d.parquet", dir, i), rows, pq.MaxRowsPerRowGroup(25)))
	}
	return paths, texts
}

// tiny limits cut texts into many parts and batches.
var tiny = limits{batch: 500, document: 1 << 20, part: 700, uncut: 5000, inFlight: 4000, shard: data.MaxShardTokens}

// The folder does not depend on the number of threads, nor on the sizes of batches and parts.
func TestOutputIsAFunctionOfTheInput(t *testing.T) {
	paths, _ := corpusOf(t, t.TempDir())
	tok := trained(t)
	var first map[string]string
	for _, threads := range []int{1, 2, 7} {
		for _, l := range []limits{defaultLimits, tiny} {
			o := options(t, tok, paths...)
			o.Threads, o.limits, o.Val, o.ShardTokens = threads, l, 0.1, 3000
			r, err := Run(t.Context(), o)
			require.NoError(t, err)
			require.LessOrEqual(t, r.peak, l.inFlight)
			require.Positive(t, r.peak)
			got := folder(t, o.Out)
			if first == nil {
				first = got
				require.Greater(t, len(got), 15)
			}
			require.Equal(t, slices.Sorted(maps.Keys(first)), slices.Sorted(maps.Keys(got)))
			for name := range first {
				require.Equal(t, first[name], got[name], "%s with %d threads", name, threads)
			}
		}
	}
}

// The ids of a document are those of the encoder and the end of text, also if it is encoded in parts;
// equal documents are on one side, and the shares of the sides are near those asked for.
func TestIDsAndSides(t *testing.T) {
	paths, _ := corpusOf(t, t.TempDir())
	tok := trained(t)
	o := options(t, tok, paths...)
	o.limits, o.Val, o.ShardTokens = tiny, 0.2, 4000
	r, err := Run(t.Context(), o)
	require.NoError(t, err)
	c := contentOf(t, o.Out)
	sides := map[string]string{}
	for part, texts := range c.texts {
		for i, text := range texts {
			require.Equal(t, append(tok.Encode(nil, []byte(text), tokenizer.Options{}), 0), c.ids[part][i])
			if side, ok := sides[text]; ok {
				require.Equal(t, side, part)
			}
			sides[text] = part
		}
	}
	require.Less(t, len(sides), 549, "some documents are equal")
	val := len(c.texts[data.ValPart])
	require.InDelta(t, 0.2*549, val, 60)
	require.Len(t, c.texts[data.TrainPart], 549-val)
	for i, s := range r.Shards {
		if i+1 < len(r.Shards) && r.Shards[i+1].Part() == s.Part() { // not the last one
			require.GreaterOrEqual(t, s.Tokens, int64(4000))
			require.Less(t, s.Tokens, int64(4000+6000))
		}
	}
}

// A vocabulary above 65536 gets 32-bit ids.
func TestWideIDs(t *testing.T) {
	raw := tokenizer.OfBytes().Files[0].Data
	var f map[string]any
	require.NoError(t, json.Unmarshal(raw, &f))
	f["added_tokens"] = []any{map[string]any{"id": 70000, "content": "</s>", "special": true}, map[string]any{"id": 69999, "content": "cat"}}
	raw, err := json.Marshal(f)
	require.NoError(t, err)
	tok, err := tokenizer.OpenBundle(write(t, t.TempDir()+"/tokenizer.json", string(raw)))
	require.NoError(t, err)
	o := options(t, tok, write(t, t.TempDir()+"/a.txt", "the cat"))
	_, err = Run(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, []int32{'t', 'h', 'e', ' ', 69999, 70000}, contentOf(t, o.Out).ids[data.TrainPart][0])
	in, err := Inspect(o.Out, InspectOptions{Verify: true})
	require.NoError(t, err)
	require.Equal(t, 4, in.Shards[0].Width)
	require.Equal(t, "</s>", in.EndToken)
}

func run(t testing.TB, o Options) content {
	t.Helper()
	_, err := Run(context.Background(), o)
	require.NoError(t, err)
	_, err = Inspect(o.Out, InspectOptions{Verify: true})
	require.NoError(t, err)
	return contentOf(t, o.Out)
}
