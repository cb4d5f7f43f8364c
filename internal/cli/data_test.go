package cli

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/data"
)

func TestData(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string) string {
		require.NoError(t, os.MkdirAll(filepath.Dir(at(name)), 0o700))
		require.NoError(t, os.WriteFile(at(name), []byte(text), 0o600))
		return at(name)
	}
	text := write("src/text.txt", goText(100_000))
	write("src/picture.png", "\x89PNG\x00")
	succeed(t, "tokenizer", "train", text, "--vocab", "600", "--special", "<|endoftext|>", "--special", "<|im_start|>", "--special", "<|im_end|>", "-o", at("tokenizer.json"))
	out, _ := succeed(t, "data", "prepare", at("src"), "--tokenizer", dir, "--val", "0", "--shard-tokens", "1k", "-o", at("tokens"))
	require.Contains(t, out, "sources     1 file; left out: 1 file of another kind\n")
	require.Contains(t, out, "documents   1, of which 0 held out\n")
	require.Contains(t, out, "text        100 kB, ")
	require.True(t, strings.HasSuffix(out, "\noctet train --data "+at("tokens")+"\n"))

	out, _ = succeed(t, "data", "inspect", at("tokens"), "--verify")
	require.Contains(t, out, "tokenizer   vocabulary 600, SHA-256 ")
	require.Contains(t, out, "end of text \"<|endoftext|>\", id 0\n")
	require.Contains(t, out, "validation  none\n")
	require.Contains(t, out, "verified    hashes, ids, masks and ends of documents\n")
	out, _ = succeed(t, "data", "inspect", at("tokens/train-000000.bin"))
	require.Contains(t, out, "train-000000.bin without prepared.json: shards whose documents and tokenizer are not known\n")
	require.Contains(t, out, " tokens of 16 bits, largest id ")

	talk := write("talk.jsonl", strings.Repeat(`{"messages":[{"role":"user","content":"if x"},{"role":"assistant","content":"return <|im_end|>"}]}`+"\n", 3))
	succeed(t, "data", "prepare", talk, "--kind", "messages", "--tokenizer", at("tokenizer.json"), "--eos", "<|im_end|>", "--val", "0", "-o", at("talk"))
	out, _ = succeed(t, "data", "inspect", at("talk"), "--documents", "2", "--verify")
	require.Contains(t, out, "end of text \"<|im_end|>\", id 2, also inside documents\n")
	require.Equal(t, 2, strings.Count(out, "tokens]\n<|im_start|>user\nif x<|im_end|>\n<|im_start|>assistant\n\n[counts in the loss: "))
	require.Equal(t, 2, strings.Count(out, "tokens]\nreturn <|im_end|><|im_end|>\n"))
	out, _ = succeed(t, "data", "inspect", at("talk"), "--documents", "1", "--json")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, 2)
	var found inspectedData
	require.NoError(t, json.Unmarshal([]byte(lines[0]), &found))
	require.EqualValues(t, 3, found.Train.Documents)
	require.Equal(t, data.KindMessages, found.Kind)
	require.True(t, found.Tokenizer.EndInside)
	require.Contains(t, lines[1], `"counts":true`)

	// Bytes without --tokenizer; training reads the folder.
	succeed(t, "data", "prepare", text, "--val", "0", "-o", at("bytes"))
	succeed(t, append([]string{"train", "--out", at("run"), "--steps", "2", "--data", at("bytes")}, small...)...)

	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"prepare", text, "-o", at("bytes")}, "is a folder of tokens already: name another folder, or remove this one"},
		{[]string{"prepare", text, "--tokenizer", at("none"), "-o", at("x")}, "--tokenizer: stat " + at("none")},
		{[]string{"prepare", text, "--tokenizer", dir, "--eos", "</s>", "-o", at("x")}, `--eos: "</s>" is not a token of the vocabulary`},
		{[]string{"prepare", text, "--shard-tokens", "3G", "-o", at("x")}, `--shard-tokens: "3G": expected 1 to 2147483647, such as 500k or 100M`},
		{[]string{"prepare", "s3://bucket/x", "-o", at("x")}, "is a URL"},
		{[]string{"prepare", talk, "-o", at("x")}, `talk.jsonl: line 1: there is no field "text", but "messages"; name another with --field`},
		{[]string{"inspect", dir}, "has no prepared.json and no .bin shards"},
		{[]string{"inspect", text}, "text.txt: it begins with "},
		{[]string{"inspect", at("none")}, "no such file or directory"},
		{[]string{"inspect", at("tokens/train-000000.bin"), "--verify"}, "--verify and --documents need a folder that octet data prepare wrote"},
		{[]string{"inspect", at("tokens"), "--documents", "-1"}, "--documents -1: expected how many to print"},
	} {
		status, _, stderr := octet(append([]string{"data"}, c.args...)...)
		require.Equal(t, exitInput, status, c.args)
		require.Contains(t, strings.Join(strings.Fields(stderr), " "), c.want)
		require.NoDirExists(t, at("x"))
	}
}

// Ctrl-C stops data prepare, and the same command line continues.
func TestDataInterrupted(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text.jsonl")
	line, err := json.Marshal(map[string]string{"text": goText(2_000)})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(text, []byte(strings.Repeat(string(line)+"\n", 10_000)), 0o600))
	out := filepath.Join(t.TempDir(), "out")
	args := []string{"data", "prepare", text, "--shard-tokens", "20k", "-o", out}
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), asCommand+"=1")
	var stderr syncBuffer
	cmd.Stderr = &stderr
	require.NoError(t, cmd.Start())
	waitFor(t, func() bool {
		_, err := os.Stat(filepath.Join(out, "train-000003.bin"))
		return err == nil
	})
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.Error(t, cmd.Wait())
	require.Equal(t, 130, cmd.ProcessState.ExitCode(), &stderr)
	require.Contains(t, stderr.String(), "octet: stopped; the same command line continues after the last complete shard\n")
	status, _, message := octet("data", "inspect", out)
	require.Equal(t, exitInput, status)
	require.Contains(t, message, "is not complete: start octet data prepare again with the same arguments")
	args[4] = "20000"
	summary, _ := succeed(t, args...)
	require.Contains(t, summary, "documents   10,000, of which ")
	require.Contains(t, summary, ", since the interruption\n")
	succeed(t, "data", "inspect", out, "--verify")
}
