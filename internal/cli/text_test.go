package cli

import (
	"bytes"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/data"
	"octet/tokenizer"
)

func TestPrintable(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"func f() {\n\treturn\n}", "func f() {\n\treturn\n}"},
		{"é 世 🙂", "é 世 🙂"},
		{"a\xff\xfeb", "a··b"},
		{"\x1b[31m\r\x07\x7f\u0085\u202e", "·[31m·····"},
		{"\xe4\xb8x", "··x"},
		{"end \xe4\xb8", "end ··"},
		{"\ufffd", "\ufffd"}, // the character, not an error
	} {
		var whole, single bytes.Buffer
		p := &printable{to: &whole}
		_, err := p.Write([]byte(test.text))
		require.NoError(t, err)
		require.NoError(t, p.flush())
		require.Equal(t, test.want, whole.String())
		p = &printable{to: &single}
		for i := range len(test.text) {
			_, err := p.Write([]byte{test.text[i]})
			require.NoError(t, err)
		}
		require.NoError(t, p.flush())
		require.Equal(t, test.want, single.String())
	}
}

// The first error stays, and nothing is written after it.
func TestStdoutKeepsTheFirstError(t *testing.T) {
	space := 1
	var written []string
	out := &stdout{to: writerFunc(func(b []byte) (int, error) {
		if space--; space == -1 {
			return 0, io.ErrClosedPipe
		}
		written = append(written, string(b))
		return len(b), nil
	})}
	for i, want := range []error{nil, io.ErrClosedPipe, io.ErrClosedPipe} {
		_, err := fmt.Fprintf(out, "line %d", i+1)
		require.Equal(t, want, err)
		require.Equal(t, want, out.err)
	}
	require.Equal(t, []string{"line 1"}, written)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// A shell prints a quoted text unchanged.
func TestQuote(t *testing.T) {
	require.Equal(t, "runs/a-b_1.0", shellQuote("runs/a-b_1.0"))
	require.Equal(t, `"my runs"`, shellQuote("my runs"))
	require.Equal(t, `""`, shellQuote(""))
	require.Equal(t, `"func "`, doubleQuote("func "))
	if runtime.GOOS == "windows" {
		return
	}
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("no shell")
	}
	for _, s := range []string{"a b", `say "x"`, "$HOME `id`", `back\slash\n`, "it's $1 \"!\"", "é*?;|&<>()#~", "'"} {
		for _, quoted := range []string{shellQuote(s), doubleQuote(s)} {
			out, err := exec.Command(shell, "-c", "printf %s "+quoted).Output()
			require.NoError(t, err)
			require.Equal(t, s, string(out), quoted)
		}
	}
}

func TestSamplePrompt(t *testing.T) {
	prompt := func(kind, train, val string) string {
		text, err := samplePrompt(&data.Corpus{Train: data.Text(train), Val: data.Text(val), Tokenizer: tokenizer.OfBytes(), Info: data.Info{Kind: kind}})
		require.NoError(t, err)
		return text
	}
	require.Equal(t, "func ", prompt(data.KindGoSource, "x", "y"))
	require.Equal(t, "func ", prompt(data.KindEmbedded, "x", "y"))
	require.Equal(t, "Once upon a time", prompt(data.KindText, "", "half a line\n\n  Once upon a time there was"))
	require.Equal(t, "Ends.", prompt(data.KindText, "", "half a line\nEnds.\nMore"))
	require.Equal(t, "one line only, l", prompt(data.KindText, "", "one line only, long"))
	require.Equal(t, "training", prompt(data.KindText, "x\ntraining", ""))
	require.Equal(t, "世世世世世", prompt(data.KindText, "", "世世世世世世世"))
	require.Equal(t, "The ", prompt(data.KindText, "", "\n\xff\xfe"))
	require.Equal(t, "The ", prompt(data.KindText, "", "\n\n"))
}
