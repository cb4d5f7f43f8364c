package tokenizer

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
)

// message is a message of SentencePiece's protocol buffers.
type message []byte

func (m message) text(field protowire.Number, s string) message {
	return protowire.AppendString(protowire.AppendTag(m, field, protowire.BytesType), s)
}

func (m message) number(field protowire.Number, v uint64) message {
	return protowire.AppendVarint(protowire.AppendTag(m, field, protowire.VarintType), v)
}

func (m message) float(field protowire.Number, v float32) message {
	return protowire.AppendFixed32(protowire.AppendTag(m, field, protowire.Fixed32Type), math.Float32bits(v))
}

// model returns a model of BPE pieces, of which spec changes the trainer's and the normalizer's fields.
func model(trainer, normalizer message) []byte {
	var m message
	add := func(text string, score float32, kind uint64) {
		m = m.text(1, string(message{}.text(1, text).float(2, score).number(3, kind)))
	}
	add("<unk>", 0, pieceUnknown)
	add("<s>", 0, pieceControl)
	add("<tool>", 0, pieceUser)
	for b := range 256 {
		add(fmt.Sprintf("<0x%02X>", b), 0, pieceByte)
	}
	for i, text := range []string{"he", "ll", "▁hello", "hello", "▁", "h", "e", "l", "o", "hell", "▁▁", "▁▁▁▁"} {
		add(text, -float32(i), pieceNormal)
	}
	add("unused", 0, pieceUnused)
	return m.text(2, string(trainer)).text(3, string(normalizer))
}

var (
	trainerSpec    = message{}.number(3, modelBPE).number(35, 1)
	normalizerSpec = message{}.text(1, "identity").number(3, 1).number(4, 0)
)

// A SentencePiece model merges any two pieces that make up a piece, the one with the highest score
// first.
func TestSentencePiece(t *testing.T) {
	tok, _, err := parse(model(trainerSpec, normalizerSpec))
	require.NoError(t, err)
	id := func(token string) int32 {
		id, ok := tok.ID(token)
		require.True(t, ok, token)
		return id
	}
	require.Equal(t, int32(1), id("<s>"))
	for text, want := range map[string][]int32{
		"hello":      {id("▁hello")},
		"hello hell": {id("▁hello"), id("▁"), id("hell")},
		"    he":     {id("▁▁▁▁"), id("▁"), id("he")},
		"<tool>é":    {2, id("▁"), id("<0xC3>"), id("<0xA9>")},
	} {
		require.Equal(t, want, tok.Encode(nil, []byte(text), Options{}), text)
		back, err := tok.Decode(nil, want, false)
		require.NoError(t, err)
		if !strings.Contains(text, "<tool>") { // what follows it begins with a space of its own
			require.Equal(t, text, string(back))
		}
	}
	// An empty unknown piece is a token, too (found by fuzzing).
	empty := message(nil).text(1, string(message{}.number(3, pieceUnknown)))
	tok, _, err = parse(empty.text(2, string(message{}.number(3, modelBPE))).text(3, string(normalizerSpec)))
	require.NoError(t, err)
	back, err := tok.Decode(nil, tok.Encode(nil, []byte("x"), Options{}), false)
	require.NoError(t, err)
	require.Empty(t, back)
	for want, raw := range map[string][]byte{
		"trainer_spec.model_type 1: octet reads BPE, 2":                                         model(message{}.number(3, 1), normalizerSpec),
		`normalizer_spec.name "nmt_nfkc": octet reads models that do not normalize (identity)`:  model(trainerSpec, message{}.text(1, "nmt_nfkc").text(2, "map").number(4, 0)),
		"normalizer_spec.remove_extra_whitespaces is true: octet reads models that keep spaces": model(trainerSpec, message{}),
		"normalizer_spec.escape_whitespaces is false: octet reads models with ▁ for a space":    model(trainerSpec, message{}.number(4, 0).number(5, 0)),
		"the model has no pieces":                 {},
		"pieces[272]: type 9: octet knows 1 to 6": message(model(trainerSpec, normalizerSpec)).text(1, string(message{}.text(1, "x").number(3, 9))),
		`pieces[272]: "he" is there twice`:        message(model(trainerSpec, normalizerSpec)).text(1, string(message{}.text(1, "he").number(3, 1))),
		"neither a tokenizer.json, a rank file of tiktoken nor a SentencePiece model: unexpected EOF": model(trainerSpec, normalizerSpec)[:500],
	} {
		_, _, err := parse(raw)
		require.EqualError(t, err, want)
	}
}

// rankFile returns a rank file with all bytes, some tokens and fillers, so many as GPT-2 has.
func rankFile() []byte {
	var b strings.Builder
	n := 0
	add := func(token string) {
		fmt.Fprintf(&b, "%s %d\n", base64.StdEncoding.EncodeToString([]byte(token)), n)
		n++
	}
	for i := range 256 {
		add(string([]byte{byte(i)}))
	}
	for _, token := range []string{"he", "ll", " he", " hell", "hello", " hello"} {
		add(token)
	}
	for n < 50256 {
		add(fmt.Sprintf("\xfe%d", n))
	}
	return []byte(b.String())
}

// A rank file merges any two tokens that make up a token, the lowest rank first; a piece that is a
// token is this token.
func TestRanks(t *testing.T) {
	raw := rankFile()
	tok, _, err := parse(raw)
	require.NoError(t, err)
	require.Equal(t, 50257, tok.Vocab())
	require.Equal(t, []int32{260, 261, 'x', 50256}, tok.Encode(nil, []byte("hello hellox<|endoftext|>"), Options{Special: true}))
	lines := strings.SplitAfter(string(raw), "\n")
	for want, changed := range map[string]string{
		`line 3: "AQ": expected the bytes of a token in base64, and its rank`:                                                    lines[0] + lines[1] + "AQ",
		`line 2: rank "5": expected 1, the ranks in order`:                                                                       lines[0] + "AQ== 5\n",
		`line 2: token "\x00" is there twice`:                                                                                    lines[0] + "AA== 1\n",
		"2 ranks: octet knows the pattern of files with 50256 (GPT-2), 128000 (Llama 3) and 151643 (Qwen); use a tokenizer.json": lines[0] + lines[1],
		"there is no token for the byte 0x00":                                                                                    strings.Replace(string(raw), "AA== 0", "/zE= 0", 1),
	} {
		_, err := ParseRanks([]byte(changed))
		require.EqualError(t, err, want)
	}
}

// Open tells files apart by their bytes, and finds them in a folder.
func TestOpen(t *testing.T) {
	for name, raw := range map[string][]byte{"tokenizer.json": small(t, false, nil), "tokenizer.model": model(trainerSpec, normalizerSpec)} {
		dir := t.TempDir()
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, raw, 0o600))
		for _, at := range []string{path, dir} {
			_, err := Open(at)
			require.NoError(t, err)
		}
		require.NoError(t, os.WriteFile(path, []byte("{}"), 0o600))
		_, err := Open(dir)
		require.EqualError(t, err, path+`: model.type "": octet reads BPE`)
	}
	_, err := Open(filepath.Join(t.TempDir(), "missing"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// The pre-tokenizer Metaspace puts a ▁ before the text, or before every part between added tokens, and
// may begin a piece at every ▁.
func TestMetaspace(t *testing.T) {
	for _, c := range []struct {
		scheme string
		split  bool
		want   string
	}{
		{"always", true, "▁hello ▁ ▁hello <s> ▁hello"},
		{"first", true, "▁hello ▁ ▁hello <s> hello"},
		{"never", false, "hello ▁▁ hello <s> hello"},
		{"always", false, "▁hello ▁▁ hello <s> ▁hello"},
	} {
		tok, err := ParseJSON(small(t, true, func(f map[string]any) {
			f["normalizer"] = nil
			f["pre_tokenizer"] = json.RawMessage(fmt.Sprintf(`{"type":"Metaspace","replacement":"▁","prepend_scheme":%q,"split":%v}`, c.scheme, c.split))
		}))
		require.NoError(t, err)
		var want []int32
		for _, token := range strings.Fields(c.want) {
			id, ok := tok.ID(token)
			require.True(t, ok, token)
			want = append(want, id)
		}
		require.Equal(t, want, tok.Encode(nil, []byte("hello  hello<s>hello"), Options{Special: true}), "%+v", c)
	}
}

// A text in parts is counted as the whole text is, whatever the parts.
func TestAddPart(t *testing.T) {
	text := []byte(strings.Repeat("a line of text,\n\n  an indented one\nénd of it\r\n\n", 6_000))
	var whole, parts Trainer
	whole.Add(text)
	rng := rand.New(rand.NewPCG(1, 0))
	for rest := text; len(rest) > 0; {
		n := min(1+rng.IntN(3_000), len(rest))
		parts.AddPart(rest[:n], n == len(rest))
		rest = rest[n:]
	}
	require.Equal(t, whole.counts, parts.counts)
	var long Trainer // no line ends: it is cut all the same
	for range 24 {
		long.AddPart([]byte(strings.Repeat("ab ", 1<<20/3)), false)
	}
	require.Less(t, len(long.held), 20<<20)
	long.AddPart(nil, true)
	require.Less(t, len(long.counts), 10)
}

func FuzzParse(f *testing.F) {
	f.Add(model(trainerSpec, normalizerSpec), []byte("hello"))
	f.Add([]byte("AA== 0\n"), []byte("x"))
	f.Fuzz(func(t *testing.T, raw, text []byte) {
		tok, _, err := parse(raw)
		if err != nil {
			return
		}
		_, err = tok.Decode(nil, tok.Encode(nil, text, Options{Special: true, Template: true}), true)
		require.NoError(t, err)
	})
}
