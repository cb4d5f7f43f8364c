package main

import (
	"fmt"
	"go/token"
	"math/rand/v2"
	"regexp"
	"slices"

	"octet/internal/task"
)

// Lengths of documents in bytes, which are the tokens of a model of bytes.
const (
	contextBytes = 96
	choiceBytes  = 24
	wordContext  = 200
	wordLetters  = 4 // of the shortest identifier
)

// continuations returns n documents at even distances: a context, and four continuations that
// begin with the same white space, of which one is the text's and three are from elsewhere.
func continuations(text []byte, n int) ([]task.Document, error) {
	var at []int // where a context ends at a word's end
	for p := contextBytes; p+choiceBytes <= len(text); p++ {
		if isSpace(text[p]) && !isSpace(text[p-1]) && isPlain(text[p-contextBytes:p+choiceBytes]) {
			at = append(at, p)
		}
	}
	if len(at) < n {
		return nil, fmt.Errorf("the text has %d places for a document, but %d are needed", len(at), n)
	}
	list := make([]task.Document, n)
	for i := range list {
		p := at[i*len(at)/n]
		random := rand.New(rand.NewPCG(1, uint64(i)))
		choices := []string{string(text[p : p+choiceBytes])}
		for try := 0; len(choices) < 4; try++ {
			if try == 100*len(at) {
				return nil, fmt.Errorf("the text has too few continuations that begin as at byte %d", p)
			}
			q := at[random.IntN(len(at))]
			other := string(text[q : q+choiceBytes])
			near := q > p-contextBytes-choiceBytes && q < p+choiceBytes
			if text[q] == text[p] && !near && !slices.Contains(choices, other) {
				choices = append(choices, other)
			}
		}
		gold := random.IntN(4)
		choices[0], choices[gold] = choices[gold], choices[0]
		list[i] = task.Document{Context: new(string(text[p-contextBytes : p])), Choices: choices, Gold: &gold}
	}
	return list, nil
}

var word = regexp.MustCompile(`[A-Za-z_][A-Za-z0-9_]*`)

// lastWords returns n documents at even distances: a context that ends before an identifier of
// at least four letters which it has already, and that identifier. Go's keywords are none.
func lastWords(text []byte, n int) ([]task.Document, error) {
	var all []task.Document
	for _, span := range word.FindAllIndex(text, -1) {
		begin, end := span[0], span[1]
		name := string(text[begin:end])
		if begin < wordContext || len(name) < wordLetters || !token.IsIdentifier(name) || !isPlain(text[begin-wordContext:end]) {
			continue
		}
		context := string(text[begin-wordContext : begin])
		if slices.Contains(word.FindAllString(context, -1), name) {
			all = append(all, task.Document{Context: &context, Target: &name})
		}
	}
	if len(all) < n {
		return nil, fmt.Errorf("the text has %d places for a document, but %d are needed", len(all), n)
	}
	list := make([]task.Document, n)
	for i := range list {
		list[i] = all[i*len(all)/n]
	}
	return list, nil
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\n' }

// isPlain reports whether text is printable ASCII and white space.
func isPlain(text []byte) bool {
	return !slices.ContainsFunc(text, func(c byte) bool { return (c < ' ' && !isSpace(c)) || c > '~' })
}
