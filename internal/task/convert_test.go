package task

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// The documents are those that the functions of lm-evaluation-harness 0.4.13 (doc_to_text,
// doc_to_choice, doc_to_target, process_docs) returned for these rows.
func TestConvert(t *testing.T) {
	for _, test := range []struct{ name, row, want string }{
		{"lambada", `{"text":"He said \"hi\"  to é"}`, `{"context":"He said \"hi\"  to","target":"é"}`},
		{"lambada", `{"text":"word"}`, `{"context":"","target":"word"}`},
		{
			"hellaswag", `{"activity_label":"Éa","ctx_a":"A  [title] x [step] y   z","ctx_b":"the MAN é","endings":[" [a] B"," c  d","[title] e","f"],"label":"2"}`,
			`{"context":"Éa: A . x y  z The man é","choices":[" B","c d"," e","f"],"gold":2}`,
		},
		{"hellaswag", `{"activity_label":"","ctx_a":"a","ctx_b":"","endings":["[x\ny] z"],"label":0}`, `{"context":": a","choices":["[x\ny] z"],"gold":0}`},
		{"winogrande", `{"sentence":"Ann met _ at_ the pub. ","option1":"Bo","option2":"the ox","answer":"2"}`, `{"contexts":["Ann met Bo","Ann met the ox"],"target":"at_ the pub.","gold":1}`},
		{"arc_easy", `{"question":"Why? ","choices":{"text":["a","b ","c"],"label":["1","2","3"]},"answerKey":"3"}`, `{"context":"Question: Why? \nAnswer:","choices":["a","b ","c"],"gold":2}`},
		{"arc_challenge", `{"id":"x","question":"q","choices":{"text":["a","b"],"label":["A","B"]},"answerKey":"A"}`, `{"context":"Question: q\nAnswer:","choices":["a","b"],"gold":0}`},
		{"piqa", `{"goal":"g","sol1":"it's","sol2":"\"two\"","label":1}`, `{"context":"Question: g\nAnswer:","choices":["it's","\"two\""],"gold":1}`},
		{"boolq", `{"passage":"P -- p.","question":"is it","idx":0,"label":1}`, `{"context":"P -- p.\nQuestion: is it?\nAnswer:","choices":["no","yes"],"gold":1}`},
		{
			"wikitext", `{"page":" = = Title = = \n The dogs ' 1 @,@ 000 @-@ day \" long  \" ( trip ) , it 's 5 ° C : [ x ] ; { y} /' 5/ N ' q ' . \n"}`,
			`{"text":" == Title ==\nThe dogs'1,000-day \"long\" (trip), it's 5°C: [x]; {y} /'[0-9]/ N' q '.\n","words":41,"bytes":112}`,
		},
	} {
		c, err := ConverterOf(test.name)
		require.NoError(t, err)
		row, err := ParseRow([]byte(test.row))
		require.NoError(t, err)
		d, err := c.Document(row)
		require.NoError(t, err, test.row)
		got, err := json.Marshal(d)
		require.NoError(t, err)
		require.JSONEq(t, test.want, string(got), test.row)
	}
}

func TestConvertRefuses(t *testing.T) {
	_, err := ConverterOf("mmlu")
	require.EqualError(t, err, `there is no converter for "mmlu": the names are arc_challenge, arc_easy, boolq, hellaswag, lambada, piqa, wikitext, winogrande`)
	for _, line := range []string{"[1]", "null", "{", "\"\xff\""} {
		_, err := ParseRow([]byte(line))
		require.Error(t, err, line)
	}
	for _, test := range []struct{ name, row, want string }{
		{"lambada", `{"txt":"a"}`, "the field text is missing: expected a row of the data set as Hugging Face's datasets exports it"},
		{"lambada", `{"text":3}`, "the field text is 3: expected a string"},
		{"hellaswag", `{"activity_label":"a","ctx_a":"a","ctx_b":"b","endings":"c","label":"0"}`, `the field endings is "c": expected a list of strings`},
		{"hellaswag", `{"activity_label":"a","ctx_a":"a","ctx_b":"b","endings":["c"],"label":""}`, `the field label is "": expected the index of the right answer; test splits may have none`},
		{"hellaswag", `{"activity_label":"a","ctx_a":"a","ctx_b":"b","endings":["c"],"label":"4"}`, "gold is 4: expected an index of choices, 0 to 0"},
		{"hellaswag", `{"activity_label":"a","ctx_a":"a","ctx_b":"b","endings":["[c]"],"label":"0"}`, "choices[0] is empty"},
		{"winogrande", `{"sentence":"a b","option1":"c","option2":"d","answer":"1"}`, `the sentence "a b" has no gap, _`},
		{"winogrande", `{"sentence":"a _ b","option1":"c","option2":"d","answer":""}`, `the field answer is "": expected 1 or 2; test splits have none`},
		{"winogrande", `{"sentence":"a _ b","option1":"c","option2":"d","answer":"0"}`, `the field answer is "0": expected 1 or 2`},
		{"arc_easy", `{"question":"q","choices":["a"],"answerKey":"A"}`, `the field choices is ["a"]: expected an object`},
		{"arc_easy", `{"question":"q","choices":{"text":["a"]},"answerKey":"A"}`, "choices: the field label is missing"},
		{"arc_easy", `{"question":"q","choices":{"text":["a"],"label":["A"]},"answerKey":"B"}`, `choices: 1 texts with the labels ["A"]; the answerKey is "B"`},
		{"piqa", `{"goal":"a","sol1":"b","sol2":"c","label":-1}`, `the field label is "-1": expected the index`},
		{"boolq", `{"passage":"a","question":"b"}`, `the field label is "": expected the index`},
		{"wikitext", `{"page":""}`, "text is empty"},
	} {
		c, err := ConverterOf(test.name)
		require.NoError(t, err)
		row, err := ParseRow([]byte(test.row))
		require.NoError(t, err)
		_, err = c.Document(row)
		require.ErrorContains(t, err, test.want, test.row)
	}
}
