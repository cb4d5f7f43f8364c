package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTokenizer(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string) string {
		require.NoError(t, os.WriteFile(at(name), []byte(text), 0o600))
		return at(name)
	}
	text := write("text.txt", goText(100_000)+"\n\xff<|endoftext|>")
	_, stderr := succeed(t, "tokenizer", "train", text, "--vocab", "600", "-o", at("tokenizer.json"))
	require.Contains(t, stderr, "tokenizer.json: 600 tokens from 0.1 MB of text")

	ids, _ := succeed(t, "tokenizer", "encode", dir, text)
	require.Less(t, strings.Count(ids, ","), 60_000)
	back, _ := succeed(t, "tokenizer", "decode", dir, write("ids", ids))
	require.Equal(t, read(t, text), back)
	ids, _ = succeed(t, "tokenizer", "encode", dir, text, "--special")
	require.True(t, strings.HasSuffix(ids, ",0]\n"), "the special token is id 0")
	back, _ = succeed(t, "tokenizer", "decode", dir, write("ids", ids), "--skip-special")
	require.Equal(t, strings.TrimSuffix(read(t, text), "<|endoftext|>"), back)

	lines := write("lines", "\"if err != nil {\"\n\n\"\"\n\"\\u00e9\\n\"")
	ids, _ = succeed(t, "tokenizer", "encode", dir, lines, "--json-lines")
	require.Equal(t, 3, strings.Count(ids, "\n"))
	require.Contains(t, ids, "\n[]\n")
	back, _ = succeed(t, "tokenizer", "decode", dir, write("ids", ids), "--json-lines")
	require.Equal(t, "\"if err != nil {\"\n\"\"\n\"é\\n\"\n", back)

	empty := write("empty", "")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"train", text, "--vocab", "600", "-o", text}, "--out: " + text + " is there: remove it, or choose another name"},
		{[]string{"train", text, "--vocab", "200", "-o", at("x")}, "a vocabulary of 200 tokens is too small: 257 bytes and special tokens come first"},
		{[]string{"train", text, "--vocab", "600", "--special", "a", "-o", at("x")}, `special token "a" is empty, given twice, or the token of a byte`},
		{[]string{"train", empty, "--vocab", "600", "-o", at("x")}, "is empty: name a file with text in it"},
		{[]string{"train", at("missing"), "--vocab", "600", "-o", at("x")}, "missing\" does not exist"},
		{[]string{"encode", dir, text, "--json-lines"}, "text.txt: line 1: expected a JSON string"},
		{[]string{"encode", text, text}, "neither a tokenizer.json, a rank file of tiktoken nor a SentencePiece model"},
		{[]string{"encode", t.TempDir(), text}, "has no tokenizer.json and no tokenizer.model"},
		{[]string{"decode", dir, text}, "expected an array of ids, such as [72, 105]"},
		{[]string{"decode", dir, write("ids", "[1, 600]")}, "id 600 is not in the vocabulary of 600 tokens"},
	} {
		status, _, stderr := octet(append([]string{"tokenizer"}, c.args...)...)
		require.Equal(t, exitInput, status, c.args)
		require.Contains(t, strings.Join(strings.Fields(stderr), " "), c.want)
		require.NoFileExists(t, at("x"))
	}
}
