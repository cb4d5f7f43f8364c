package tokenizer

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// white is \s of the patterns: Unicode's White_Space, where Go's \s is ASCII.
const white = `\t-\r \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}`

// referenceScanner returns the pieces of a pattern by Go's regular expressions, which lack (?!\S):
// white space that ends before other text gives back its last code point.
func referenceScanner(pattern string) func(text string) []string {
	lines := strings.Contains(pattern, `|\s*[\r\n]+`) // another alternative takes white space that ends with a line
	pattern = strings.Replace(pattern, `|\s+(?!\S)`, "", 1)
	pattern = strings.ReplaceAll(pattern, `\s`, white)
	pattern = strings.ReplaceAll(strings.ReplaceAll(pattern, "|"+white+"+", "|["+white+"]+"), white+"*[", "["+white+"]*[")
	re := regexp.MustCompile(`\A(?:` + pattern + `)`)
	return func(text string) (pieces []string) {
		for len(text) > 0 {
			piece := re.FindString(text)
			if rest := text[len(piece):]; rest != "" && strings.TrimFunc(piece, isSpace) == "" && !(lines && strings.ContainsAny(piece[len(piece)-1:], "\r\n")) {
				if _, n := utf8.DecodeLastRuneInString(piece); n < len(piece) {
					piece = piece[:len(piece)-n]
				}
			}
			pieces, text = append(pieces, piece), text[len(piece):]
		}
		return pieces
	}
}

// nastyText draws a text of words, white space of all kinds, digits, symbols and other code points.
func nastyText(r *rand.Rand, n int) string {
	parts := []string{
		"hello", "World", "naïve", "don't", "I'LL", "we'Ve", "'ſ", "'s", "'", " ", "  ", "\t", "\n", "\r\n", "\n\n", " \n ", "123", "12345678", "½", "٣٤٥",
		"日本語", "한국어", "русский", "e\u0301", "👍", "\u00a0", "\u3000", "\u2028", "▁", "<s>", "</s>", "<|end|>", "aaaaaaaaa", "!!!???", "====", "\x00", "\x7f", "ǅ", "x", "X",
	}
	var b strings.Builder
	for range n {
		if r.IntN(8) == 0 {
			b.WriteRune(rune(r.IntN(0x3000)))
		} else {
			b.WriteString(parts[r.IntN(len(parts))])
		}
	}
	return b.String()
}

// Scanners give the pieces of their patterns.
func TestScanners(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for pattern, scan := range scanners {
		want := referenceScanner(pattern)
		for range 3000 {
			text := nastyText(r, r.IntN(30))
			var got []string
			for rest := []byte(text); len(rest) > 0; {
				n := scan(rest)
				got, rest = append(got, string(rest[:n])), rest[n:]
			}
			require.Equal(t, want(text), got, "%q", text)
		}
	}
}

// small is a tokenizer.json of a small model, whose fields tests change.
func small(t *testing.T, metaspace bool, change func(map[string]any)) []byte {
	t.Helper()
	f := map[string]any{"added_tokens": []any{}}
	vocab, merges := map[string]int32{}, []string{}
	add := func(token string) {
		if _, ok := vocab[token]; !ok {
			vocab[token] = int32(len(vocab))
		}
	}
	model := map[string]any{"type": "BPE", "vocab": vocab}
	join := func(list ...string) {
		for _, m := range list {
			left, right, _ := strings.Cut(m, " ")
			add(left + right)
			merges = append(merges, m)
		}
	}
	if metaspace {
		for _, token := range []string{"<unk>", "<s>", "</s>"} {
			add(token)
		}
		for b := range 256 {
			add(fmt.Sprintf("<0x%02X>", b))
		}
		for _, c := range "▁abcdehlorwWé" {
			add(string(c))
		}
		join("▁ ▁", "l l", "h e", "▁ h", "he ll", "hell o", "▁ hello", "a a", "aa aa", "▁▁ ▁▁", "o r", "▁ w", "▁w or", "d ▁")
		model["byte_fallback"], model["fuse_unk"], model["unk_token"] = true, true, "<unk>"
		f["normalizer"] = json.RawMessage(`{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},{"type":"Replace","pattern":{"String":" "},"content":"▁"}]}`)
		f["decoder"] = json.RawMessage(`{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]}`)
		f["post_processor"] = json.RawMessage(`{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"special_tokens":{"<s>":{"id":"<s>","ids":[1],"tokens":["<s>"]}}}`)
		f["added_tokens"] = json.RawMessage(`[{"id":1,"content":"<s>","special":true},{"id":2,"content":"</s>","special":true}]`)
	} else {
		for b := range 256 {
			add(string(byteChars[b]))
		}
		join("a a", "aa aa", "Ġ h", "e l", "Ġh el", "l o", "Ġhel lo", "1 2", "12 3", "Ċ Ċ", "Ġ Ġ", "= =", "== ==")
		f["pre_tokenizer"] = json.RawMessage(`{"type":"ByteLevel","add_prefix_space":false,"use_regex":true}`)
		f["decoder"] = json.RawMessage(`{"type":"ByteLevel"}`)
		f["added_tokens"] = []any{map[string]any{"id": len(vocab), "content": "<|end|>", "special": true}, map[string]any{"id": len(vocab) + 1, "content": "<tool>"}}
	}
	model["merges"] = merges
	f["model"] = model
	if change != nil {
		change(f)
	}
	raw, err := json.Marshal(f)
	require.NoError(t, err)
	return raw
}

// naive merges the symbols of a piece by the definition: as long as two neighbours have a merge, it
// joins the pair with the lowest rank, of equal ones the first.
func naive(t *Tokenizer, ids []int32) []int32 {
	for {
		best, lowest, id := -1, int32(noMerge), int32(0)
		for i := 1; i < len(ids); i++ {
			if rank, into := t.merges.find(ids[i-1], ids[i]); rank < lowest {
				best, lowest, id = i-1, rank, into
			}
		}
		if best < 0 {
			return ids
		}
		ids = append(append(append([]int32{}, ids[:best]...), id), ids[best+2:]...)
	}
}

// Encoding is the definition: merges of whole pieces, without what the encoder knows, cuts and heaps.
func TestEncodeIsItsDefinition(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, metaspace := range []bool{false, true} {
		tok, err := ParseJSON(small(t, metaspace, nil))
		require.NoError(t, err)
		e := tok.NewEncoder()
		for range 1500 {
			text := nastyText(r, r.IntN(40))
			if r.IntN(4) == 0 {
				text = strings.Repeat([]string{"a", " ", "hello ", "aw", "d  a"}[r.IntN(5)], 1+r.IntN(100))
			}
			pieces := []string{}
			switch {
			case text == "":
			case metaspace:
				pieces = []string{"▁" + strings.ReplaceAll(text, " ", "▁")}
			default:
				pieces = referenceScanner(patternGPT2)(text)
			}
			want := []int32{}
			for _, piece := range pieces {
				e.work = e.work[:0]
				if metaspace {
					e.codePoints([]byte(piece))
				} else {
					for i := range len(piece) {
						e.work = append(e.work, tok.byteIDs[piece[i]])
					}
				}
				want = append(want, naive(tok, e.work)...)
			}
			require.Equal(t, want, e.Encode([]int32{}, []byte(text), Options{}), "%q", text)
			require.Equal(t, want, tok.Encode([]int32{}, []byte(text), Options{}), "%q", text)
		}
	}
}
