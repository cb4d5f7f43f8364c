package tokenizer

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Decoding gives the text back, invalid UTF-8 included. Metaspace reads a ▁ of the text as a space, so
// it comes back as one.
func TestDecodeInvertsEncode(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, metaspace := range []bool{false, true} {
		tok, err := ParseJSON(small(t, metaspace, nil))
		require.NoError(t, err)
		for range 1000 {
			text := []byte(nastyText(r, r.IntN(20)))
			for range r.IntN(4) {
				text = append(text, byte(r.IntN(256)))
			}
			ids := tok.Encode(nil, text, Options{})
			got, err := tok.Decode([]byte("before"), ids, false)
			require.NoError(t, err)
			want := "before" + string(text)
			if metaspace {
				want = strings.ReplaceAll(want, "▁", " ")
			}
			require.Equal(t, want, string(got), "%q", text)
		}
	}
	tok, err := ParseJSON(small(t, false, nil))
	require.NoError(t, err)
	_, err = tok.Decode(nil, []int32{5, 271, 3}, false)
	require.EqualError(t, err, "id 271 is not in the vocabulary of 271 tokens")
	_, err = tok.Decode(nil, []int32{-1}, false)
	require.Error(t, err)
}

// Special tokens of a text are plain text unless asked for; other added tokens are always found, the
// first one and of those that begin there the longest.
func TestAddedTokens(t *testing.T) {
	raw := small(t, false, func(f map[string]any) {
		f["added_tokens"] = json.RawMessage(`[
			{"id":269,"content":"<|end|>","special":true}, {"id":270,"content":"<tool>"}, {"id":271,"content":"<tool>x"},
			{"id":272,"content":"<l>","lstrip":true}, {"id":273,"content":"<r>","rstrip":true}, {"id":274,"content":"é","normalized":true}]`)
		f["normalizer"] = json.RawMessage(`{"type":"NFC"}`)
	})
	tok, err := ParseJSON(raw)
	require.NoError(t, err)
	require.Equal(t, 275, tok.Vocab())
	for text, want := range map[string][]int32{
		"a<|end|>":       {97, 269},
		"<|end|><|end|>": {269, 269},
		"<tool>x<tool>":  {271, 270},
		"a \u3000<l> b":  {97, 272, 32, 98},
		"a <r> \n b":     {97, 32, 273, 98},
		"e\u0301":        {274},
		"<tool":          {60, 116, 111, 111, 108},
		"":               {},
	} {
		require.Equal(t, want, tok.Encode([]int32{}, []byte(text), Options{Special: true}), "%q", text)
	}
	plain := tok.Encode(nil, []byte("<|end|><tool>"), Options{})
	require.NotContains(t, plain, int32(269))
	require.Equal(t, int32(270), plain[len(plain)-1])
	for _, text := range []string{"<|end|>", "a<|end|>b"} {
		got, err := tok.Decode(nil, tok.Encode(nil, []byte(text), Options{Special: true}), false)
		require.NoError(t, err)
		require.Equal(t, text, string(got))
		got, err = tok.Decode(nil, tok.Encode(nil, []byte(text), Options{Special: true}), true)
		require.NoError(t, err)
		require.Equal(t, strings.ReplaceAll(text, "<|end|>", ""), string(got))
	}
	for token, want := range map[string]int32{"<|end|>": 269, "Ġhello": 262, "Ċ": 10, "<r>": 273} {
		id, ok := tok.ID(token)
		require.True(t, ok, token)
		require.Equal(t, want, id, token)
	}
	_, ok := tok.ID("nothing")
	require.False(t, ok)
}

// The post-processor's ids surround the text if asked for.
func TestTemplate(t *testing.T) {
	tok, err := ParseJSON(small(t, true, nil))
	require.NoError(t, err)
	plain := tok.Encode(nil, []byte("hello"), Options{})
	require.Equal(t, append([]int32{1}, plain...), tok.Encode(nil, []byte("hello"), Options{Template: true}))
	require.Len(t, plain, 1, "▁hello is a token")
	back, err := tok.Decode(nil, plain, false)
	require.NoError(t, err)
	require.Equal(t, "hello", string(back))
}

// Files that octet does not implement, or that contradict themselves, are refused by name.
func TestRefusals(t *testing.T) {
	set := func(at string, value string) func(map[string]any) {
		return func(f map[string]any) {
			keys := strings.Split(at, ".")
			for _, k := range keys[:len(keys)-1] {
				f = f[k].(map[string]any)
			}
			f[keys[len(keys)-1]] = json.RawMessage(value)
		}
	}
	for _, c := range []struct{ at, value, want string }{
		{"model.type", `"WordPiece"`, `model.type "WordPiece": octet reads BPE`},
		{"model.dropout", `0.1`, "model.dropout 0.1: octet reads models without dropout"},
		{"model.end_of_word_suffix", `"</w>"`, `model.end_of_word_suffix "</w>": octet reads models without one`},
		{"model.continuing_subword_prefix", `"##"`, `model.continuing_subword_prefix "##": octet reads models without one`},
		{"model.vocab", `{}`, "model.vocab is empty"},
		{"model.vocab", `{"a":-1}`, `model.vocab: token "a" has id -1: expected 0 to 16777215`},
		{"model.vocab", `{"a":0}`, "model.vocab: there is no token for the byte 0x00"},
		{"model.merges", `["a"]`, `model.merges: "a": expected two tokens and one space between them`},
		{"model.merges", `["a b c"]`, `model.merges: "a b c": expected two tokens and one space between them`},
		{"model.merges", `[["a","b","c"]]`, "model.merges: a merge has 3 tokens, expected 2"},
		{"model.merges", `["a b"]`, `model.merges[0], "a" "b": "ab" is not in model.vocab`},
		{"added_tokens", `[{"id":3,"content":""}]`, "added_tokens[0] has no content"},
		{"added_tokens", `[{"id":-3,"content":"x"}]`, `added_tokens[0], "x", has id -3: expected 0 to 16777215`},
		{"added_tokens", `[{"id":3,"content":"x","single_word":true}]`, `added_tokens[0], "x", has single_word: octet reads tokens without it`},
		{"normalizer", `{"type":"Lowercase"}`, `normalizer.type "Lowercase": octet reads NFC, Prepend, and Replace of a string`},
		{"pre_tokenizer", `{"type":"Whitespace"}`, `pre_tokenizer.type "Whitespace": octet reads ByteLevel, Split into isolated pieces, and Metaspace`},
		{"pre_tokenizer", `{"type":"Sequence","pretokenizers":[{"type":"Split","behavior":"Isolated","pattern":{"Regex":"a+"}},{"type":"ByteLevel","use_regex":false}]}`, `pre_tokenizer: unknown pattern "a+": octet reads those of GPT-2, Llama 3 and Qwen`},
		{"pre_tokenizer", `{"type":"ByteLevel","use_regex":false}`, "pre_tokenizer: ByteLevel without a pattern: octet reads those of GPT-2, Llama 3 and Qwen"},
		{"post_processor", `{"type":"BertProcessing"}`, `post_processor.type "BertProcessing": octet reads ByteLevel and TemplateProcessing`},
		{"post_processor", `{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x"}}]}`, `post_processor.single has "x", which post_processor.special_tokens lacks`},
		{"post_processor", `{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x"}}],"special_tokens":{"x":{"ids":[999]}}}`, `post_processor.special_tokens: "x" has id 999, which is not in the vocabulary`},
		{"decoder", `{"type":"WordPiece"}`, `decoder.type "WordPiece": octet reads ByteLevel, and for other models Replace of ▁, Metaspace, ByteFallback, Fuse and Strip of spaces at the start`},
	} {
		raw := small(t, false, nil)
		var f map[string]any
		require.NoError(t, json.Unmarshal(raw, &f))
		set(c.at, c.value)(f)
		raw, err := json.Marshal(f)
		require.NoError(t, err)
		_, err = ParseJSON(raw)
		require.EqualError(t, err, c.want, "%s = %s", c.at, c.value)
	}
	path := filepath.Join(t.TempDir(), "tokenizer.json")
	require.NoError(t, os.WriteFile(path, []byte("{"), 0o666))
	_, err := Open(path)
	require.ErrorContains(t, err, path+": unexpected end of JSON input")
}

// The merges are those of Hugging Face's BpeTrainer (tokenizers 0.23.3), for a text with ties and runs
// of one symbol, and ids of a second text are those that its tokenizer gives.
func TestTrainer(t *testing.T) {
	train := Trainer{Vocab: 300, Special: []string{"<|endoftext|>"}}
	train.Add([]byte(strings.Repeat("the cat sat on the mat, aaaa aaaaaaa; thethe 1234 12 été\n\n", 3) + "zq zq qz"))
	raw, err := train.Train()
	require.NoError(t, err)
	tok, err := ParseJSON(raw)
	require.NoError(t, err)
	var f struct{ Model struct{ Merges [][]string } }
	require.NoError(t, json.Unmarshal(raw, &f))
	got := ""
	for _, m := range f.Model.Merges {
		got += strings.Join(m, " ") + ", "
	}
	require.Equal(t, "a a, h e, t he, a t, aa aa, 1 2, Ã ©, Ġ the, Ġ aaaa, c at, m at, o n, s at, t Ã©, Ċ Ċ, Ġ Ã©, Ġ cat, Ġ mat, Ġ on, Ġ sat, aa a, 12 3, Ġthe the, Ġaaaa aaa, ĠÃ© tÃ©, z q, q z, Ġ zq, Ġ qz, ", got)
	text := []byte("the mat: aaaaa thethe été 12345\n\nzqz")
	ids := tok.Encode(nil, text, Options{})
	require.Equal(t, []int32{259, 274, 26, 265, 65, 279, 281, 221, 278, 20, 21, 271, 282, 90}, ids)
	back, err := tok.Decode(nil, ids, false)
	require.NoError(t, err)
	require.Equal(t, text, back)

	_, err = (&Trainer{Vocab: 256, Special: []string{"<a>"}}).Train()
	require.EqualError(t, err, "a vocabulary of 256 tokens is too small: 257 bytes and special tokens come first")
	_, err = (&Trainer{Vocab: 300}).Train()
	require.EqualError(t, err, "the files have no text")
	for _, token := range []string{"", "a", "<x>"} {
		err = (&Trainer{Vocab: 300, Special: []string{"<x>", token}}).Check()
		require.EqualError(t, err, fmt.Sprintf("special token %q is empty, given twice, or the token of a byte", token))
	}
}

func FuzzParseJSON(f *testing.F) {
	f.Add([]byte(`{"model":{"type":"BPE","vocab":{"a":0},"merges":["a a"]}}`), []byte("aé\n"))
	f.Fuzz(func(t *testing.T, raw, text []byte) {
		tok, err := ParseJSON(raw)
		if err != nil {
			return
		}
		ids := tok.Encode(nil, text, Options{Special: true, Template: true})
		_, err = tok.Decode(nil, ids, true)
		require.NoError(t, err)
	})
}

func FuzzEncode(f *testing.F) {
	f.Add([]byte("hello  world\r\n12345 <|end|>\xff"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, metaspace := range []bool{false, true} {
			tok, err := ParseJSON(small(t, metaspace, nil))
			require.NoError(t, err)
			got, err := tok.Decode(nil, tok.Encode(nil, text, Options{}), false)
			require.NoError(t, err)
			want := string(text)
			if metaspace {
				want = strings.ReplaceAll(want, "▁", " ")
			}
			require.Equal(t, want, string(got))
		}
	})
}
