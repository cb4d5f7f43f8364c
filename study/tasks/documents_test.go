package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/internal/task"
)

// source returns a small text: the program's own, with bytes that no document may have.
func source(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile("documents.go")
	require.NoError(t, err)
	half := len(text) / 2
	return append(append(bytes.Clone(text[:half]), "\x00é\r"...), text[half:]...)
}

// parsed reads back the documents of a task file as octet eval does.
func parsed(t *testing.T, kind task.Kind, documents []task.Document) (list []*task.Document) {
	t.Helper()
	lines, err := encode(task.Header{Version: task.Version, Kind: kind, Name: "test"}, documents)
	require.NoError(t, err)
	var p task.Parser
	for line := range bytes.Lines(lines) {
		require.True(t, isPlain(line), "%q", line)
		d, err := p.Parse(bytes.TrimSpace(line))
		require.NoError(t, err)
		if d != nil {
			list = append(list, d)
		}
	}
	require.Equal(t, kind, p.Header.Kind)
	return list
}

func TestContinuations(t *testing.T) {
	text := source(t)
	documents, err := continuations(text, 30)
	require.NoError(t, err)
	again, err := continuations(text, 30)
	require.NoError(t, err)
	require.Equal(t, documents, again)
	contexts, golds := map[string]bool{}, map[int]bool{}
	for _, d := range parsed(t, task.Choice, documents) {
		contexts[*d.Context], golds[*d.Gold] = true, true
		require.Len(t, *d.Context, contextBytes)
		require.False(t, isSpace((*d.Context)[contextBytes-1]))
		require.Len(t, d.Choices, 4)
		for i, c := range d.Choices {
			require.Len(t, c, choiceBytes)
			require.Contains(t, string(text), c)
			require.Equal(t, d.Choices[0][0], c[0])
			require.True(t, isSpace(c[0]))
			// A choice follows the context in the text if and only if it is the right one.
			require.Equal(t, i == *d.Gold, bytes.Contains(text, []byte(*d.Context+c)))
		}
	}
	require.Len(t, contexts, 30)
	require.Len(t, golds, 4)
	_, err = continuations(text, len(text))
	require.ErrorContains(t, err, "places for a document")
	_, err = continuations(bytes.Repeat([]byte("word "), 100), 1)
	require.ErrorContains(t, err, "too few continuations")
}

func TestLastWords(t *testing.T) {
	text := source(t)
	documents, err := lastWords(text, 30)
	require.NoError(t, err)
	contexts := map[string]bool{}
	for _, d := range parsed(t, task.Cloze, documents) {
		contexts[*d.Context] = true
		require.Len(t, *d.Context, wordContext)
		require.GreaterOrEqual(t, len(*d.Target), wordLetters)
		require.NotContains(t, []string{"func", "range", "return", "string(text", "const"}, *d.Target)
		require.Contains(t, *d.Context, *d.Target)
		at := strings.Index(string(text), *d.Context+*d.Target)
		require.GreaterOrEqual(t, at, 0)
		next := text[at+len(*d.Context)+len(*d.Target)]
		require.False(t, word.Match([]byte{next}) || next >= '0' && next <= '9', "%q goes on with %q", *d.Target, next)
	}
	require.Len(t, contexts, 30)
	_, err = lastWords(text, len(text))
	require.ErrorContains(t, err, "places for a document")
}
