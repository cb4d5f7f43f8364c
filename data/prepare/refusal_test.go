package prepare

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	pq "github.com/parquet-go/parquet-go"
	"github.com/stretchr/testify/require"

	"octet/data"
	"octet/tokenizer"
)

// Bad input is an InputError that names the file, the line and the remedy, and nothing is left behind.
func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	n := 0
	file := func(name, text string) string {
		n++
		return write(t, filepath.Join(dir, string(rune('a'+n/26))+string(rune('a'+n%26)), name), text)
	}
	good := `{"text":"the cat"}` + "\n"
	cut := func(path string, keep int) string {
		raw, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, raw[:len(raw)-keep], 0o600))
		return path
	}
	type text struct {
		Text string `parquet:"text"`
	}
	type number struct {
		Text int64  `parquet:"text"`
		Body string `parquet:"body"`
	}
	type null struct {
		Text *string `parquet:"text"`
	}
	tablePath := func(name string) string {
		n++
		return filepath.Join(dir, string(rune('a'+n/26))+string(rune('a'+n%26)), name)
	}
	s := "x"
	var many []text
	for range 2000 {
		many = append(many, text{"the cat sat on the mat"})
	}
	broken := table(t, tablePath("a.parquet"), many, pq.Compression(&pq.Snappy))
	raw, err := os.ReadFile(broken)
	require.NoError(t, err)
	for i := range 100 {
		raw[10+i] ^= 0x55
	}
	require.NoError(t, os.WriteFile(broken, raw, 0o600))
	chat := func(messages string) string { return file("a.jsonl", `{"messages":`+messages+`}`) }
	plain := func(o *Options) { o.Kind, o.Chat = data.KindMessages, ChatPlain }
	with := func(kind string) func(o *Options) { return func(o *Options) { o.Kind = kind } }
	replacing := func(o *Options) {
		var f map[string]any
		require.NoError(t, json.Unmarshal(o.Tokenizer.Files[0].Data, &f))
		f["normalizer"] = map[string]any{"type": "Replace", "pattern": map[string]string{"String": "``"}, "content": `"`}
		raw, err := json.Marshal(f)
		require.NoError(t, err)
		o.Tokenizer, err = tokenizer.OpenBundle(write(t, t.TempDir()+"/tokenizer.json", string(raw)))
		require.NoError(t, err)
	}
	full := filepath.Join(dir, "full")
	write(t, full+"/notes.txt", "mine")
	for _, c := range []struct {
		path   string
		change func(o *Options)
		want   string
	}{
		{file("a.jsonl", good+`{"body":"x","id":1}`), nil, `a.jsonl: line 2: there is no field "text", but "body", "id"; name another with --field`},
		{file("a.jsonl", "{}"), nil, `a.jsonl: line 1: there is no field "text", and no other`},
		{file("a.jsonl.gz", good+good+`{"text":5}`), nil, `a.jsonl.gz: line 3: the field "text" is a number, not a string`},
		{file("a.jsonl", `{"text":null}`), nil, `line 1: the field "text" is null, not a string`},
		{file("a.jsonl", `{"text":["x"]}`), nil, `line 1: the field "text" is an array, not a string`},
		{file("a.jsonl", good+"\n"+`["text"]`), nil, `a.jsonl: line 3: not a JSON object`},
		{file("a.jsonl", `{"text":"x"`), nil, `line 1: invalid JSON: the line ends within a value`},
		{file("a.jsonl", `{"text":"x"} 1`), nil, `line 1: invalid JSON: unexpected '1' at byte 14`},
		{file("a.jsonl", `{'text':"x"}`), nil, `line 1: invalid JSON: unexpected '\'' at byte 2`},
		{file("a.jsonl", strings.Repeat("[", 5000)), nil, `line 1: invalid JSON: more than 1000 values within each other`},
		{cut(file("a.jsonl.gz", strings.Repeat(good, 5000)), 20), nil, `a.jsonl.gz is truncated: copy it again`},
		{cut(file("a.jsonl.zst", strings.Repeat(good, 5000)), 20), nil, `a.jsonl.zst is truncated: copy it again`},
		{cut(file("a.txt.gz", good), 5), nil, `a.txt.gz is truncated: copy it again`},
		{write(t, filepath.Join(dir, "x.jsonl.gz"), good) + "x", nil, `x.jsonl.gzx" does not exist`},
		{broken, nil, `a.parquet is damaged`},
		{file("a.parquet", "PAR1 and then something else entirely"), nil, `a.parquet is not a Parquet table, or damaged`},
		{cut(table(t, tablePath("b.parquet"), many), 100), nil, `b.parquet is not a Parquet table, or damaged`},
		{table(t, tablePath("a.parquet"), []number{{1, "x"}}), nil, `a.parquet: the column "text" is not of strings`},
		{table(t, tablePath("a.parquet"), []number{{1, "x"}}), func(o *Options) { o.Field = "content" }, `a.parquet: there is no field "content", but "text", "body"; name another with --field`},
		{table(t, tablePath("a.parquet"), []null{{&s}, {nil}}), nil, `a.parquet: row 2: the column "text" is null, not a string`},
		{table(t, tablePath("a.parquet"), []text{{"x"}}), with(data.KindCompletion), `a.parquet: there is no field "prompt", but "text"`},
		{file("a.txt", "the\x00cat"), nil, `a.txt is not text: it has a zero byte at offset 3`},
		{file("a.txt", strings.Repeat("the cat\n", 400)+"\x00"), nil, `a.txt is not text: it has a zero byte at offset 3200`},
		{file("a.txt", strings.Repeat("a", 20_000)), nil, `a.txt: 5600 bytes of text have no place at which this tokenizer lets them be cut, such as the start of a word: break the text into lines`},
		{file("a.txt", strings.Repeat("the cat\n", 4000)), replacing, `a.txt: the text has more than 5600 bytes, and this tokenizer's normalizer changes several characters at once`},
		{file("a.jsonl", good+`{"text":"`+strings.Repeat("a", 20_000)+`"}`), nil, `a.jsonl: line 2: 5600 bytes of text have no place`},
		{file("a.jsonl", good+`{"text":"`+strings.Repeat("a ", 2<<20)), nil, `a.jsonl: line 2 has more than 1 MiB: octet reads a document from each line`},
		{table(t, tablePath("a.parquet"), []text{{strings.Repeat("a ", 1<<20)}}), nil, `a.parquet: row 1 has more than 1 MiB`},
		{file("a.jsonl", good+`{"text":"the\u0000cat"}`), func(o *Options) { o.Tokenizer = tokenizer.OfBytes() }, `a.jsonl: line 2: the text contains the end-of-text token "\x00": remove it, or choose another with --eos`},
		{file("a.jsonl", good+strings.Repeat("\x00", 2<<20)), nil, `a.jsonl: line 2 is not JSON: it has a zero byte`},
		{file("empty.jsonl", ""), nil, `empty.jsonl" is empty`},
		{file("blank.jsonl", "\n\n"), nil, `blank.jsonl: no document has text`},
		{file("a.tar.gz", "x"), nil, `a.tar.gz: octet reads text files, .jsonl and .ndjson`},
		{file("a.txt", "x"), with(data.KindCompletion), `a.txt: kind completion reads JSON lines (.jsonl, .ndjson) and .parquet, not text files`},
		{file("a.jsonl", `{"prompt":"x"}`), with(data.KindCompletion), `line 1: there is no field "completion", but "prompt"`},
		{chat(`"x"`), plain, `line 1: the field "messages" is a string, not an array of messages`},
		{chat(`[]`), plain, `line 1: the conversation has no messages`},
		{chat(`["x"]`), plain, `line 1: message 1 of "messages" is a string, not an object`},
		{chat(`[{"role":"user"}]`), plain, `message 1 of "messages" has no "content"`},
		{chat(`[{"role":"user","content":"x"},{"role":"assistant","content":null}]`), plain, `message 2 of "messages" has a "content" that is null, not a string`},
		{chat(`[{"role":"bot","content":"x"}]`), plain, `message 1 has the role "bot": expected system, user, assistant, tool`},
		{chat(`[{"role":"user","content":"x"}]`), plain, `no assistant message, so no token counts in the loss: remove the conversation`},
		{chat(`[]`), with(data.KindMessages), `--chat chatml writes the token <|im_start|>, which the tokenizer lacks: use another tokenizer or --chat plain`},
		{chat(`[]`), func(o *Options) { o.Kind, o.Chat = data.KindMessages, "alpaca" }, `--chat "alpaca": expected chatml, llama3, plain`},
		{file("a.jsonl", good), func(o *Options) { o.Chat = ChatPlain }, `--chat plain: kind text has no conversations`},
		{file("a.jsonl", good), with("songs"), `--kind "songs": expected text, completion, messages, preference`},
		{file("a.jsonl", good), func(o *Options) { o.Kind, o.Field = data.KindCompletion, "x" }, `--field "x": kind completion reads the fields prompt, completion`},
		{file("a.jsonl", good), func(o *Options) { o.Val = 1 }, `--val 1: expected the share of documents to hold out, 0 to below 1`},
		{file("a.jsonl", good), func(o *Options) { o.Val = 0.999999 }, `--val 0.999999 holds out all 1 documents: hold out fewer, or give more`},
		{file("a.jsonl", good), func(o *Options) { o.ShardTokens = -1 }, `--shard-tokens -1: expected 1 to 2147483647`},
		{file("a.jsonl", good), func(o *Options) { o.Threads = -1 }, `--threads -1: expected 1 to 65536`},
		{file("a.jsonl", good), func(o *Options) { o.Tokenizer.EndOfText = -1 }, `the token that ends a text is not known for this tokenizer: name it, for example --eos '</s>'`},
		{file("a.jsonl", good), func(o *Options) { o.Sources = append(o.Sources, o.Sources[0]) }, `is named twice, by itself or by a folder: name it once`},
		{"s3://bucket/a.jsonl", nil, `is a URL`},
		{file("a.jsonl", good), func(o *Options) { o.Out = "s3://bucket/out" }, `is a URL`},
		{file("a.jsonl", good), func(o *Options) { o.Out = full }, `--out: ` + full + ` is not empty: name a new folder`},
		{file("a.jsonl", good), func(o *Options) { o.Out = o.Sources[0] }, `--out: `},
	} {
		o := options(t, trained(t), c.path)
		o.limits = tiny
		if c.change != nil {
			c.change(&o)
		}
		_, err := Run(t.Context(), o)
		require.ErrorContains(t, err, c.want)
		var bad *InputError
		require.ErrorAs(t, err, &bad, c.want)
		require.NotContains(t, err.Error(), "\n")
		if !strings.HasPrefix(c.want, "--out") {
			require.NoDirExists(t, o.Out, c.want)
		}
	}
	require.Equal(t, map[string]string{"notes.txt": "mine"}, folder(t, full))
	// A folder that was there stays, and other files in folders are left out.
	o := options(t, trained(t), file("a.jsonl", good+"x"))
	require.NoError(t, os.Mkdir(o.Out, 0o700))
	_, err = Run(t.Context(), o)
	require.Error(t, err)
	require.Empty(t, folder(t, o.Out))
	write(t, dir+"/mixed/a.txt", "text")
	write(t, dir+"/mixed/b.jsonl", `{"prompt":"a","completion":"b"}`)
	o = options(t, trained(t), dir+"/mixed")
	o.Kind = data.KindCompletion
	r, err := Run(t.Context(), o)
	require.NoError(t, err)
	require.EqualValues(t, 1, r.LeftOut)
}

// A source that changes while it is read is refused.
func TestChangedSource(t *testing.T) {
	path := write(t, t.TempDir()+"/a.jsonl", strings.Repeat(`{"text":"the cat"}`+"\n", 1000))
	o := options(t, trained(t), path)
	o.limits = tiny
	changed := false
	o.Progress = func(_, _ int64) {
		if !changed {
			changed = true
			require.NoError(t, os.Truncate(path, 18_000))
		}
	}
	_, err := Run(t.Context(), o)
	require.ErrorContains(t, err, path)
	require.ErrorContains(t, err, "changed while it was read: start again when no program writes to it")
}

// The scanner accepts the lines that encoding/json accepts, and finds the same values.
func FuzzLine(f *testing.F) {
	for _, line := range []string{
		`{"text":"a","x":[1,-2.5e+3,{"text":null}],"text":"b"}`, `{"te\u0078t":"\ud83d\ude00\ud800\u0041\n\/"}`, `{}`, `[1]`, `"x"`, `{"a":01}`, `{"a":1.}`,
		"{\"a\":\"\x01\"}", `{"a":tru}`, `{"a":"\x"}`, `{"a":1,}`, " {\t}\r\n", `{"a":"\ud800"}`, `{"a":-}`, "\xff", `{"messages":[{"role":"user","content":"x"}]}`,
	} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		got := map[string]string{}
		err := object(line, func(key []byte, value jsonValue) error {
			got[string(key)] = string(value)
			return nil
		})
		var want map[string]json.RawMessage
		valid := json.Valid(line)
		if !valid {
			require.Error(t, err, "%q", line)
			return
		}
		if wantErr := json.Unmarshal(line, &want); wantErr != nil || want == nil {
			require.Error(t, err)
			return
		}
		if err != nil { // other limits
			require.ErrorContains(t, err, "values within each other")
			return
		}
		if !strings.Contains(string(line), "\ufffd") && string(line) == strings.ToValidUTF8(string(line), "") {
			require.Len(t, got, len(want))
			for key, raw := range want {
				require.Equal(t, strings.TrimSpace(string(raw)), got[key])
				var text string
				if raw[0] == '"' {
					require.NoError(t, json.Unmarshal(raw, &text))
					require.Equal(t, text, string(unquote(nil, []byte(got[key]))))
				}
			}
		}
		var r record
		for _, kind := range Kinds {
			_ = r.parseLine(line, &Options{Kind: kind})
		}
	})
}

// Any file with the name of a table is read, or refused; the library's panics are errors.
func FuzzParquet(f *testing.F) {
	type row struct {
		Text     string `parquet:"text"`
		Messages []turn `parquet:"messages,list"`
	}
	rows := []row{{"the cat", []turn{{"user", "a"}, {"assistant", "b"}}}, {"dog", []turn{{"assistant", "c"}}}}
	for i, options := range [][]pq.WriterOption{nil, {pq.Compression(&pq.Snappy), pq.DataPageVersion(1)}, {pq.MaxRowsPerRowGroup(1), pq.Compression(&pq.Zstd)}} {
		raw, err := os.ReadFile(table(f, filepath.Join(f.TempDir(), string(rune('a'+i))), rows, options...))
		require.NoError(f, err)
		f.Add(raw)
	}
	tok := trained(f)
	f.Fuzz(func(t *testing.T, raw []byte) {
		path := filepath.Join(t.TempDir(), "a.parquet")
		require.NoError(t, os.WriteFile(path, raw, 0o600))
		for kind, chat := range map[string]string{data.KindDocuments: "", data.KindMessages: ChatPlain} {
			o := options(t, tok, path)
			o.Kind, o.Chat, o.limits = kind, chat, tiny
			if _, err := Run(t.Context(), o); err != nil {
				var bad *InputError
				require.ErrorAs(t, err, &bad)
			}
		}
	})
}
