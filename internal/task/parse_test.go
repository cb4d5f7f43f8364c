package task

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWrongLines(t *testing.T) {
	header := func(kind string) string { return `{"octet_task":1,"kind":"` + kind + `","name":"x","delimiter":" "}` }
	choice, cloze, partial, rolling := header("choice"), header("cloze"), header("partial"), `{"octet_task":1,"kind":"rolling","name":"x"}`
	for _, test := range []struct{ header, line, want string }{
		{"", `{"context":"a"}`, `unknown field "context": expected the header of a task file, such as {"octet_task":1,"kind":"choice","name":"mine","delimiter":" "}; octet data task converts published data sets`},
		{"", `[1]`, "expected a JSON object: expected the header"},
		{"", `{"kind":"choice"}`, "octet_task is missing: expected the header"},
		{"", `{"octet_task":2,"kind":"choice","name":"x"}`, "octet_task is 2: expected 1"},
		{"", `{"octet_task":1,"name":"x"}`, "kind is missing: expected choice, cloze, partial or rolling"},
		{"", header("generate"), `kind is "generate": expected choice, cloze, partial or rolling`},
		{"", `{"octet_task":1,"kind":"choice","delimiter":" "}`, "name is missing"},
		{"", `{"octet_task":1,"kind":"choice","delimiter":" ","name":"a\tb"}`, `name is "a\tb": expected no control characters`},
		{"", `{"octet_task":1,"kind":"choice","name":"x"}`, "delimiter is missing"},
		{"", header("rolling"), "delimiter: a task of kind rolling has none"},
		{choice, `{"context":"a","choices":["b"],"gold":0`, "unexpected EOF"},
		{choice, `{"context":"a","choices":["b"],"gold":0} {}`, "expected one JSON object on a line"},
		{choice, `{"context":"a","choices":["b"],"gold":0}}`, "expected one JSON object on a line"},
		{choice, "{\"context\":\"a\xff\"}", "the line is not UTF-8"},
		{choice, `{"contxt":"a"}`, `unknown field "contxt"`},
		{choice, `{"context":1,"choices":["b"],"gold":0}`, "context is a JSON number: expected a string"},
		{choice, `{"context":"a","choices":"b","gold":0}`, "choices is a JSON string: expected an array"},
		{choice, `{"context":"a","choices":["b"],"gold":0.5}`, "gold is a JSON number 0.5: expected an integer"},
		{choice, `{"context":"a","choices":["b"]}`, "gold is missing: a document of kind choice has context, choices, gold"},
		{choice, `{"context":null,"choices":["b"],"gold":0}`, "context is missing"},
		{choice, `{"context":"a","choices":["b"],"gold":0,"text":"c"}`, "text: a document of kind choice has context, choices, gold"},
		{choice, `{"context":"a","choices":["b"],"gold":0,"words":3}`, "words, bytes: only a document of kind rolling has them"},
		{choice, `{"context":"a","choices":[],"gold":0}`, "choices is empty"},
		{choice, `{"context":"a","choices":["b",""],"gold":0}`, "choices[1] is empty"},
		{choice, `{"context":"a","choices":["b",null],"gold":0}`, "choices[1] is empty"},
		{choice, `{"context":"a","choices":["b","c"],"gold":2}`, "gold is 2: expected an index of choices, 0 to 1"},
		{choice, `{"context":"a","choices":["b","c"],"gold":-1}`, "gold is -1: expected an index of choices, 0 to 1"},
		{cloze, `{"context":"a"}`, "target is missing: a document of kind cloze has context, target"},
		{strings.Replace(cloze, `" "`, `""`, 1), `{"context":"a","target":""}`, "target is empty"},
		{partial, `{"contexts":["a",""],"target":"b","gold":0}`, "contexts[1] is empty"},
		{partial, `{"contexts":["a"],"target":"b","gold":1}`, "gold is 1: expected an index of contexts, 0 to 0"},
		{rolling, `{"text":""}`, "text is empty"},
		{rolling, `{"text":"a","bytes":-1}`, "words, bytes: 0, -1: expected positive numbers"},
		{rolling, `{"words":1}`, "text is missing: a document of kind rolling has text"},
	} {
		var p Parser
		if test.header != "" {
			d, err := p.Parse([]byte(test.header))
			require.NoError(t, err)
			require.Nil(t, d)
		}
		_, err := p.Parse([]byte(test.line))
		require.ErrorContains(t, err, test.want, test.line)
	}
}

func TestParse(t *testing.T) {
	h, documents := parsed(t, []string{`{"octet_task":1,"kind":"rolling","name":"x"}`, `{"text":" a  b\n"}`, `{"text":"é","words":7,"bytes":9}`})
	require.Equal(t, Header{1, Rolling, "x", ""}, h)
	require.Equal(t, 4, documents[0].Words, "empty parts at the ends count")
	require.Equal(t, 6, documents[0].Bytes)
	require.Equal(t, 7, documents[1].Words)
	require.Equal(t, 9, documents[1].Bytes)
	_, documents = parsed(t, []string{`{"octet_task":1,"kind":"partial","name":"x","delimiter":""}`, `{"contexts":["a","b"],"target":"c","gold":1}`})
	require.Equal(t, []string{"a", "b"}, documents[0].Contexts)
	require.Equal(t, 1, *documents[0].Gold)
}

// Whatever is read as a document has what its kind needs, and is read again from what it is written
// as.
func FuzzParse(f *testing.F) {
	for _, g := range []string{
		`{"octet_task":1,"kind":"choice","name":"x","delimiter":" "}` + "\n" + `{"context":"a","choices":["b","é"],"gold":1}`,
		`{"octet_task":1,"kind":"cloze","name":"x","delimiter":" "}` + "\n" + `{"context":"","target":"b"}`,
		`{"octet_task":1,"kind":"partial","name":"x","delimiter":""}` + "\n" + `{"contexts":["a","b"],"target":"b","gold":0}`,
		`{"octet_task":1,"kind":"rolling","name":"x"}` + "\n" + `{"text":"a b","words":1}`,
		`{"octet_task":1e0,"kind":"rolling","name":"x","delimiter":null}` + "\n" + `{"text":"\ud800"}`,
	} {
		f.Add(g)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var p Parser
		for line := range strings.SplitSeq(text, "\n") {
			d, err := p.Parse([]byte(line))
			if err != nil {
				return
			}
			if d == nil {
				continue
			}
			require.NoError(t, d.check(p.Header))
			raw, err := json.Marshal(d)
			require.NoError(t, err)
			again := Parser{Header: p.Header, begun: true}
			e, err := again.Parse(raw)
			require.NoError(t, err)
			require.Equal(t, d, e)
		}
	})
}
