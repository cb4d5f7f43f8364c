package task

import (
	"bufio"
	"bytes"
	"encoding/json"
	"hash/crc32"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	_ "octet/backend/emu"
	"octet/infer"
	"octet/nn"
	"octet/recipe"
	"octet/tokenizer"
)

// hashed is a model whose weights are hashes of their names and indexes: uniform in [−1/2, 1/2), and
// those of norms in [1/2, 3/2).
type hashed struct{ config nn.Config }

func (h hashed) Scale(string) ([]float32, error) { return nil, nn.ErrNoTensor }

func (h hashed) Param(name string) ([]float32, error) {
	c := h.config
	heads, kv := c.Dim, c.KVHeads*c.HeadDim()
	sizes := []struct {
		part string
		n    int
	}{
		{"norm", c.Dim},
		{"embed_tokens", c.Vocab * c.Dim},
		{"lm_head", c.Vocab * c.Dim},
		{"q_proj", heads * c.Dim},
		{"o_proj", heads * c.Dim},
		{"k_proj", kv * c.Dim},
		{"v_proj", kv * c.Dim},
		{"gate_proj", c.FFN * c.Dim},
		{"up_proj", c.FFN * c.Dim},
		{"down_proj", c.FFN * c.Dim},
	}
	for _, s := range sizes {
		if !strings.Contains(name, s.part) {
			continue
		}
		offset := -0.5
		if s.part == "norm" {
			offset = 0.5
		}
		w, seed := make([]float32, s.n), crc32.ChecksumIEEE([]byte(name))
		for i := range w {
			x := uint32(i)*0x9E3779B9 + seed
			x = (x ^ x>>16) * 0x85EBCA6B
			x = (x ^ x>>13) * 0xC2B2AE35
			x ^= x >> 16
			w[i] = float32(float64(x)/(1<<32) + offset)
		}
		return w, nil
	}
	return nil, nn.ErrNoTensor
}

// golden is a line of testdata/lm_eval.jsonl: a task file with what lm-evaluation-harness 0.4.13,
// transformers 5.24.0 and torch 2.15.0 computed for it (.ci/lm-eval --golden).
type golden struct {
	Lines   []string `json:"lines"`
	Answers []struct {
		LogLikelihoods []float64 `json:"ll"`
		Greedy         []bool    `json:"greedy"`
	} `json:"answers"`
	Metrics map[string]float64 `json:"metrics"`
}

func goldens(t *testing.T) (list []golden) {
	t.Helper()
	raw, err := os.ReadFile("testdata/lm_eval.jsonl")
	require.NoError(t, err)
	lines := bufio.NewScanner(bytes.NewReader(raw))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var g golden
		require.NoError(t, json.Unmarshal(lines.Bytes(), &g))
		list = append(list, g)
	}
	require.Len(t, list, 4)
	return list
}

func parsed(t *testing.T, lines []string) (h Header, documents []*Document) {
	t.Helper()
	var p Parser
	for _, line := range lines {
		d, err := p.Parse([]byte(line))
		require.NoError(t, err)
		if d != nil {
			documents = append(documents, d)
		}
	}
	return p.Header, documents
}

// Log-likelihoods, greedy tokens and metrics are those of the harness, for tasks of each kind: with
// empty contexts, contexts that exceed the window, white space at their ends, special tokens in the
// text, equal choices, and characters of several bytes.
func TestScoresOfTheHarness(t *testing.T) {
	tok, err := tokenizer.OpenBundle("testdata")
	require.NoError(t, err)
	prefix, err := PrefixToken(tok)
	require.NoError(t, err)
	const window = 64
	e, err := NewEncoder(tok.Tokenizer, prefix, window)
	require.NoError(t, err)
	config := nn.Config{Layers: 2, Dim: 16, Heads: 2, KVHeads: 1, FFN: 48, Vocab: tok.Vocab(), Activation: nn.SwiGLU, RopeTheta: 10000, NormEps: 1e-6}
	exact, err := recipe.Lookup("fp32")
	require.NoError(t, err)
	for _, g := range goldens(t) {
		h, documents := parsed(t, g.Lines)
		require.Equal(t, len(g.Answers), len(documents))
		var rows []infer.Row
		var counts []int
		for _, d := range documents {
			part, err := e.Rows(h, d)
			require.NoError(t, err)
			rows, counts = append(rows, part...), append(counts, len(part))
		}
		dev, err := backend.Open("emu", backend.Options{Threads: 2})
		require.NoError(t, err)
		scorer, err := infer.NewScorer(t.Context(), config, exact, hashed{config}, dev, infer.Windows{Batch: 8, Seq: window}, rows, nil)
		require.NoError(t, err)
		scores, err := scorer.Score(t.Context(), rows, nil)
		require.NoError(t, err)
		require.NoError(t, dev.Close())
		var results []Result
		for i, d := range documents {
			r := NewResult(h, d, scores[:counts[i]])
			scores = scores[counts[i]:]
			results = append(results, r)
			want := g.Answers[i]
			require.Len(t, r.LogLikelihoods, len(want.LogLikelihoods), "%s %d", h.Kind, i)
			for j, ll := range want.LogLikelihoods {
				require.InEpsilon(t, ll, r.LogLikelihoods[j], 1e-6, "%s %d", h.Kind, i)
			}
			require.ElementsMatch(t, want.Greedy, r.Greedy, "%s %d", h.Kind, i)
		}
		for _, m := range Metrics(h.Kind, results) {
			require.InEpsilon(t, 1+g.Metrics[m.Name], 1+m.Value, 1e-5, "%s %s", h.Kind, m.Name)
			if stdErr, ok := g.Metrics[m.Name+"_stderr"]; ok {
				require.InDelta(t, stdErr, m.StdErr, 1e-12, "%s %s", h.Kind, m.Name)
			}
			delete(g.Metrics, m.Name)
			delete(g.Metrics, m.Name+"_stderr")
		}
		require.Empty(t, g.Metrics, h.Kind)
	}
}

// The windows of a text score each token once, and see one token before them, but the last one,
// which is filled up.
func TestRollingWindows(t *testing.T) {
	tok := tokenizer.OfBytes()
	e, err := NewEncoder(tok.Tokenizer, 0, 4)
	require.NoError(t, err)
	text := "abcdefghij"
	rows, err := e.Rows(Header{Kind: Rolling}, &Document{Text: &text})
	require.NoError(t, err)
	ids := func(s string) (list []int32) {
		for _, b := range []byte(s) {
			list = append(list, int32(b))
		}
		return list
	}
	require.Equal(t, []infer.Row{{IDs: ids("\x00abcd"), Scored: 4}, {IDs: ids("defgh"), Scored: 4}, {IDs: ids("fghij"), Scored: 2}}, rows)
}

func TestPairs(t *testing.T) {
	e, err := NewEncoder(tokenizer.OfBytes().Tokenizer, 0, 8)
	require.NoError(t, err)
	for _, test := range []struct {
		context, continuation, ids string
		scored                     int
	}{
		{"ab", " c", "ab c", 2},
		{"ab \n", " c", "ab \n c", 4}, // white space of the context is scored
		{"ab\x1c", "c", "ab\x1cc", 2},
		{"", " c", "\x00 c", 2},
		{"", "\x00c", "\x00c", 1},               // the prefix token is not repeated
		{"abcdefgh", " ij", "cdefgh ij", 3},     // the last 9 ids
		{"a", "12345678", "a12345678", 8},       // as many as the window
		{"a\u00a0", "\u00e9", "a\u00a0é", 4},    // two characters of two bytes
		{"\x00a", " b", "\x00a b", 2},           // begins with the prefix
		{"ab\u200b", " c", "ab\u200b c", 2},     // no white space
		{"a\u2028\x1f", "c", "a\u2028\x1fc", 5}, // white space
	} {
		row, err := e.pair(test.context, test.continuation)
		require.NoError(t, err)
		var ids []byte
		for _, id := range row.IDs {
			ids = append(ids, byte(id))
		}
		require.Equal(t, test.ids, string(ids))
		require.Equal(t, test.scored, row.Scored, "%q", test.ids)
	}
	_, err = e.pair("a", "123456789")
	require.EqualError(t, err, "9 tokens are scored, but the window has 8: use a larger --seq")
	_, err = e.pair(" \n", "x")
	require.EqualError(t, err, "the context is only white space: leave it empty")
}

// The first of equal choices is taken; acc_norm divides by characters, acc_bytes by bytes.
func TestMetricsByHand(t *testing.T) {
	gold, choices := 1, []string{"éé", "abc", "x"}
	h, d := Header{Kind: Choice}, &Document{Choices: choices, Gold: &gold}
	right := func(lls ...float64) [3]float64 {
		var scores []infer.Score
		for _, ll := range lls {
			scores = append(scores, infer.Score{LogLikelihood: ll})
		}
		r := NewResult(h, d, scores)
		return [3]float64{*r.Acc, *r.AccNorm, *r.AccBytes}
	}
	require.Equal(t, [3]float64{1, 1, 1}, right(-8, -4, -6))
	require.Equal(t, [3]float64{1, 1, 0}, right(-5, -4, -6))   // per byte 1.25, 1.33, 6
	require.Equal(t, [3]float64{0, 1, 0}, right(-4, -4, -6))   // the first of equals
	require.Equal(t, [3]float64{0, 1, 0}, right(-3, -4, -4))   // per character 1.5, 1.33, 4
	require.Equal(t, [3]float64{0, 0, 0}, right(-9, -6, -1.5)) // the shortest

	documents := []Result{{LogLikelihoods: []float64{-1}, Acc: value(true), Words: 2, Bytes: 5}, {LogLikelihoods: []float64{-4}, Acc: value(false), Words: 1, Bytes: 5}}
	metrics := Metrics(Cloze, documents)
	require.Equal(t, "acc", metrics[0].Name)
	require.InDelta(t, 0.5, metrics[0].Value, 1e-15)
	require.InDelta(t, math.Sqrt(0.5)/math.Sqrt2, metrics[0].StdErr, 1e-15)
	require.InDelta(t, math.Exp(2.5), metrics[1].Value, 1e-12)
	require.InDelta(t, math.Exp(2.5)*1.5, metrics[1].StdErr, 1e-12) // e^2.5 · sd/√n
	metrics = Metrics(Rolling, documents)
	require.InDelta(t, math.Exp(5./3), metrics[0].Value, 1e-12)
	require.InDelta(t, math.Exp(0.5), metrics[1].Value, 1e-12)
	require.InDelta(t, 0.5/math.Ln2, metrics[2].Value, 1e-12)
	require.InDelta(t, metrics[2].StdErr*math.Ln2*math.Exp(0.5), metrics[1].StdErr, 1e-12)

	// A difference that is the same for all documents is certain.
	base := mean("acc", []float64{0, 1, 1, 0})
	above, stdErr := mean("acc", []float64{0.5, 1.5, 1.5, 0.5}).Difference(base)
	require.InDelta(t, 0.5, above, 1e-15)
	require.Zero(t, stdErr)
	above, stdErr = mean("acc", []float64{1, 1, 1, 0}).Difference(base)
	require.InDelta(t, 0.25, above, 1e-15)
	require.InDelta(t, 0.25, stdErr, 1e-15) // sd of 1, 0, 0, 0 is 1/2
	require.True(t, math.IsNaN(mean("acc", []float64{1}).StdErr))
}

func TestPrefixToken(t *testing.T) {
	tok := tokenizer.OfBytes()
	id, err := PrefixToken(tok)
	require.NoError(t, err)
	require.Zero(t, id)
	config := func(text string) *tokenizer.Bundle {
		b := tokenizer.OfBytes()
		b.Files = []tokenizer.File{b.Files[0], {Name: "tokenizer_config.json", Data: []byte(text)}}
		return b
	}
	for text, want := range map[string]int32{`{"bos_token": "a"}`: 'a', `{"bos_token": {"content": "b", "lstrip": false}}`: 'b', `{"bos_token": null}`: 0} {
		id, err := PrefixToken(config(text))
		require.NoError(t, err)
		require.Equal(t, want, id)
	}
	_, err = PrefixToken(config(`{"bos_token": "<s>"}`))
	require.EqualError(t, err, `tokenizer_config.json: bos_token "<s>" is not a token of the vocabulary: give --prefix-token`)
	none := config(`{}`)
	none.EndOfText = -1
	_, err = PrefixToken(none)
	require.ErrorContains(t, err, "give --prefix-token ID")
	_, err = NewEncoder(tok.Tokenizer, 300, 8)
	require.ErrorContains(t, err, "id 300 is not in the vocabulary of 256 tokens")
}

// The context of a pair has its own tokens, although a token of the whole text crosses its end.
func TestTokensAcrossTheContext(t *testing.T) {
	train := tokenizer.Trainer{Vocab: 258, MinCount: 1}
	train.Add([]byte(strings.Repeat("x.\ny", 50)))
	raw, err := train.Train()
	require.NoError(t, err)
	tok, err := tokenizer.ParseJSON(raw)
	require.NoError(t, err)
	require.Len(t, tok.Encode(nil, []byte(".\n"), tokenizer.Options{}), 1)
	e, err := NewEncoder(tok, 0, 8)
	require.NoError(t, err)
	ids := func(s string) []int32 { return tok.Encode(nil, []byte(s), tokenizer.Options{}) }
	row, err := e.pair("x.\n", "yy")
	require.NoError(t, err)
	require.Equal(t, infer.Row{IDs: append(ids("x."), ids("yy")...), Scored: 2}, row) // without the line feed
	_, err = e.pair("x.", "\n")
	require.EqualError(t, err, "the continuation has no tokens of its own: the tokenizer joins it with the context")
}
