package tokenizer

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// families are tokenizers of all kinds, with added tokens of all kinds.
func families(t *testing.T) map[string]*Tokenizer {
	t.Helper()
	list := map[string]*Tokenizer{}
	add := func(name string, metaspace bool, change func(map[string]any)) {
		tok, err := ParseJSON(small(t, metaspace, change))
		require.NoError(t, err, name)
		list[name] = tok
	}
	split := func(pattern, normalizer string, prefix bool) func(map[string]any) {
		return func(f map[string]any) {
			raw, err := json.Marshal(pattern)
			require.NoError(t, err)
			f["pre_tokenizer"] = json.RawMessage(fmt.Sprintf(`{"type":"Sequence","pretokenizers":[{"type":"Split","behavior":"Isolated","pattern":{"Regex":%s}},{"type":"ByteLevel","use_regex":false,"add_prefix_space":%v}]}`, raw, prefix))
			f["normalizer"] = json.RawMessage(normalizer)
		}
	}
	tokens := func(f map[string]any) {
		f["added_tokens"] = json.RawMessage(`[
			{"id":300,"content":"<|end|>","special":true}, {"id":301,"content":"hello\nW"}, {"id":302,"content":"o 1"}, {"id":303,"content":"x"},
			{"id":304,"content":"'","lstrip":true}, {"id":305,"content":"!!","rstrip":true}, {"id":306,"content":"éa","normalized":true}, {"id":307,"content":"World"}]`)
	}
	both := func(list ...func(map[string]any)) func(map[string]any) {
		return func(f map[string]any) {
			for _, change := range list {
				change(f)
			}
		}
	}
	for name, pattern := range map[string]string{"gpt2": patternGPT2, "llama": patternLlama, "qwen": patternQwen} {
		for _, prefix := range []bool{false, true} {
			for norm, normalizer := range map[string]string{"": "null", " NFC": `{"type":"NFC"}`} {
				name := fmt.Sprintf("%s%s %v", name, norm, prefix)
				add(name, false, split(pattern, normalizer, prefix))
				add(name+" added", false, both(split(pattern, normalizer, prefix), tokens))
			}
		}
	}
	add("llama2", true, nil)
	add("llama2 added", true, tokens)
	for _, scheme := range []string{"always", "first", "never"} {
		for _, split := range []bool{false, true} {
			change := func(f map[string]any) {
				f["normalizer"] = nil
				f["pre_tokenizer"] = json.RawMessage(fmt.Sprintf(`{"type":"Metaspace","replacement":"▁","prepend_scheme":%q,"split":%v}`, scheme, split))
			}
			name := fmt.Sprintf("metaspace %s %v", scheme, split)
			add(name, true, change)
			add(name+" added", true, both(change, tokens))
		}
	}
	pieces, err := ParseSentencePiece(model(trainerSpec, normalizerSpec))
	require.NoError(t, err)
	list["sentencepiece"] = pieces
	list["bytes"] = OfBytes().Tokenizer
	return list
}

// The parts of a text that Cut finds have the ids of the whole, whatever follows them.
func TestCut(t *testing.T) {
	marks := []string{"\u0958", "\u0301", "\u3099", "か", "\u1100", "\u1161", "\u11a8", "\u212a", "\u037e", "\u1fef", "x's", " 's1", "hello\nWorld", "d hello", "<|en", "d|>", "!! a", " ' a", "éa", "e\u0301a"}
	for name, tok := range families(t) {
		r := rand.New(rand.NewPCG(8, 9))
		cuts := 0
		for range 2000 {
			text := ""
			for range r.IntN(6) {
				text += nastyText(r, r.IntN(8)) + marks[r.IntN(len(marks))]
			}
			o := Options{Special: r.IntN(2) == 0}
			end := len(text)
			if r.IntN(2) == 0 {
				end = r.IntN(end + 1)
			}
			n := tok.Cut([]byte(text[:end]))
			if n == 0 {
				continue
			}
			cuts++
			want := tok.Encode(nil, []byte(text), o)
			got := tok.Encode(nil, []byte(text[:n]), o)
			o.After = AfterText
			got = tok.Encode(got, []byte(text[n:]), o)
			require.Equal(t, want, got, "%s: %q and %q", name, text[:n], text[n:])
		}
		require.Greater(t, cuts, 500, name)
	}
	// A text without a place.
	tok, err := ParseJSON(small(t, false, nil))
	require.NoError(t, err)
	require.Zero(t, tok.Cut([]byte("aaaaaaaa")))
	require.Zero(t, tok.Cut(nil))
	require.Equal(t, 8, OfBytes().Cut([]byte("aaaaaaaa")))
}

// Prefixes depend on what the text follows.
func TestAfter(t *testing.T) {
	id := func(tok *Tokenizer, token string) int32 {
		id, ok := tok.ID(token)
		require.True(t, ok)
		return id
	}
	all := families(t)
	for name, want := range map[string][3]bool{ // with a prefix
		"llama2": {true, true, false}, "sentencepiece": {true, true, false}, "metaspace always true": {true, true, false},
		"metaspace first false": {true, false, false}, "metaspace never true": {},
	} {
		tok := all[name]
		for after, prefixed := range want {
			ids := tok.Encode(nil, []byte("hello"), Options{After: After(after)})
			require.Equal(t, prefixed, len(ids) == 1 && ids[0] == id(tok, "▁hello"), "%s, %d", name, after)
		}
	}
	tok := all["gpt2 true"]
	require.Equal(t, []int32{id(tok, "Ġhello")}, tok.Encode(nil, []byte("hello"), Options{After: AfterToken}))
	require.NotEqual(t, []int32{id(tok, "Ġhello")}, tok.Encode(nil, []byte("hello"), Options{After: AfterText}))
	before, after := all["llama2"].Template()
	require.Equal(t, []int32{1}, before)
	require.Empty(t, after)
}

// A newline that a merge joins to another token is no place to cut.
func TestCutAtJoinedNewline(t *testing.T) {
	for joined, want := range map[bool]int{false: 3, true: 0} {
		tok, err := ParseJSON(small(t, true, func(f map[string]any) {
			f["added_tokens"] = []any{} // no token is near
			if m := f["model"].(map[string]any); joined {
				vocab := m["vocab"].(map[string]int32)
				vocab["<0x0A>a"] = int32(len(vocab))
				m["merges"] = append(m["merges"].([]string), "<0x0A> a")
			}
		}))
		require.NoError(t, err)
		require.Equal(t, want, tok.Cut([]byte("aa\naa")))
	}
}
