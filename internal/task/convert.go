package task

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Row is a row of a published data set, by its fields: a line of a JSONL export.
type Row map[string]json.RawMessage

// Converter turns the rows of a published data set into a task file.
type Converter struct {
	Header
	Convert func(Row) (*Document, error)
}

// converters are the harness's tasks without examples in the prompt: lambada_openai, hellaswag,
// winogrande, arc_easy, arc_challenge, piqa, boolq and wikitext.
var converters = map[string]Converter{
	"lambada":       {Header{Kind: Cloze, Delimiter: " "}, lambada},
	"hellaswag":     {Header{Kind: Choice, Delimiter: " "}, hellaSwag},
	"winogrande":    {Header{Kind: Partial, Delimiter: " "}, winoGrande},
	"arc_easy":      {Header{Kind: Choice, Delimiter: " "}, arc},
	"arc_challenge": {Header{Kind: Choice, Delimiter: " "}, arc},
	"piqa":          {Header{Kind: Choice, Delimiter: " "}, piqa},
	"boolq":         {Header{Kind: Choice, Delimiter: " "}, boolQ},
	"wikitext":      {Header{Kind: Rolling}, wikiText},
}

// Converters returns the names of the data sets that have a converter.
func Converters() []string { return slices.Sorted(maps.Keys(converters)) }

// ConverterOf returns the converter of a data set.
func ConverterOf(name string) (Converter, error) {
	c, ok := converters[name]
	if !ok {
		return Converter{}, fmt.Errorf("there is no converter for %q: the names are %s", name, strings.Join(Converters(), ", "))
	}
	c.Version, c.Name = Version, name
	return c, nil
}

// ParseRow reads a line of a JSONL export.
func ParseRow(line []byte) (Row, error) {
	if !utf8.Valid(line) {
		return nil, errors.New("the line is not UTF-8")
	}
	var r Row
	if err := json.Unmarshal(line, &r); err != nil || r == nil {
		return nil, errors.New("expected a JSON object")
	}
	return r, nil
}

// Document converts a row, and checks the result as a reader of the task file does.
func (c Converter) Document(r Row) (*Document, error) {
	d, err := c.Convert(r)
	if err == nil {
		err = d.check(c.Header)
	}
	return d, err
}

// read decodes fields: strings, lists of strings, objects.
func (r Row) read(fields map[string]any) error {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		raw, ok := r[name]
		if !ok || string(raw) == "null" {
			return fmt.Errorf("the field %s is missing: expected a row of the data set as Hugging Face's datasets exports it", name)
		}
		if err := json.Unmarshal(raw, fields[name]); err != nil {
			what := "a string"
			switch fields[name].(type) {
			case *[]string:
				what = "a list of strings"
			case *Row:
				what = "an object"
			}
			return fmt.Errorf("the field %s is %.40s: expected %s", name, raw, what)
		}
	}
	return nil
}

// label reads an index that is a number or a string of digits.
func (r Row) label(name string) (*int, error) {
	raw := strings.Trim(string(r[name]), `"`)
	var v int
	if json.Unmarshal([]byte(raw), &v) != nil || v < 0 {
		return nil, fmt.Errorf("the field %s is %q: expected the index of the right answer; test splits may have none", name, raw)
	}
	return &v, nil
}

func lambada(r Row) (*Document, error) {
	var text string
	if err := r.read(map[string]any{"text": &text}); err != nil {
		return nil, err
	}
	at := strings.LastIndexByte(text, ' ')
	context, target := text[:max(0, at)], text[at+1:]
	return &Document{Context: &context, Target: &target}, nil
}

var brackets = regexp.MustCompile(`\[.*?\]`)

// withoutBrackets removes what WikiHow's pages leave in HellaSwag.
func withoutBrackets(s string) string {
	s = strings.ReplaceAll(strip(s), " [title]", ". ")
	return strings.ReplaceAll(brackets.ReplaceAllLiteralString(s, ""), "  ", " ")
}

// capitalize is Python's, but for ß, ŉ, ligatures and other characters whose title case is longer, for
// İ, and for Σ at the end of a word.
func capitalize(s string) string {
	first, n := utf8.DecodeRuneInString(s)
	if n == 0 {
		return ""
	}
	return string(unicode.ToTitle(first)) + strings.ToLower(s[n:])
}

func hellaSwag(r Row) (*Document, error) {
	var a, b, activity string
	d := &Document{}
	if err := r.read(map[string]any{"ctx_a": &a, "ctx_b": &b, "activity_label": &activity, "endings": &d.Choices}); err != nil {
		return nil, err
	}
	context := withoutBrackets(activity + ": " + a + " " + capitalize(b))
	d.Context = &context
	for i, ending := range d.Choices {
		d.Choices[i] = withoutBrackets(ending)
	}
	var err error
	d.Gold, err = r.label("label")
	return d, err
}

func winoGrande(r Row) (*Document, error) {
	var sentence, option1, option2 string
	if err := r.read(map[string]any{"sentence": &sentence, "option1": &option1, "option2": &option2}); err != nil {
		return nil, err
	}
	before, after, ok := strings.Cut(sentence, "_")
	if !ok {
		return nil, fmt.Errorf("the sentence %q has no gap, _", sentence)
	}
	gold, err := r.label("answer")
	if err != nil || *gold < 1 {
		return nil, fmt.Errorf("the field answer is %s: expected 1 or 2; test splits have none", r["answer"])
	}
	*gold--
	after = strip(after)
	return &Document{Contexts: []string{before + option1, before + option2}, Target: &after, Gold: gold}, nil
}

func question(text string) *string {
	text = "Question: " + text + "\nAnswer:"
	return &text
}

func arc(r Row) (*Document, error) {
	var text, key string
	var raw Row
	if err := r.read(map[string]any{"question": &text, "answerKey": &key, "choices": &raw}); err != nil {
		return nil, err
	}
	d := &Document{Context: question(text)}
	var labels []string
	if err := raw.read(map[string]any{"text": &d.Choices, "label": &labels}); err != nil {
		return nil, fmt.Errorf("choices: %w", err)
	}
	gold := slices.Index(labels, key)
	if gold < 0 || len(labels) != len(d.Choices) {
		return nil, fmt.Errorf("choices: %d texts with the labels %q; the answerKey is %q", len(d.Choices), labels, key)
	}
	d.Gold = &gold
	return d, nil
}

func piqa(r Row) (*Document, error) {
	var goal string
	choices := make([]string, 2)
	if err := r.read(map[string]any{"goal": &goal, "sol1": &choices[0], "sol2": &choices[1]}); err != nil {
		return nil, err
	}
	gold, err := r.label("label")
	return &Document{Context: question(goal), Choices: choices, Gold: gold}, err
}

func boolQ(r Row) (*Document, error) {
	var passage, text string
	if err := r.read(map[string]any{"passage": &passage, "question": &text}); err != nil {
		return nil, err
	}
	gold, err := r.label("label")
	context := passage + "\nQuestion: " + text + "?\nAnswer:"
	return &Document{Context: &context, Choices: []string{"no", "yes"}, Gold: gold}, err
}

// space is Python's \s.
const space = `[\t-\r\x1c-\x20\x{85}\p{Z}]*`

// rewrites are those of the harness's wikitext_detokenizer, in its order. The second one looks for
// slashes, as its pattern is written in JavaScript's way.
var rewrites = []func(string) string{
	texts("s '", "s'"),
	matches(`/' [0-9]/`, `/'[0-9]/`),
	texts(" @-@ ", "-"), texts(" @,@ ", ","), texts(" @.@ ", "."),
	texts(" : ", ": "), texts(" ; ", "; "), texts(" . ", ". "), texts(" ! ", "! "), texts(" ? ", "? "), texts(" , ", ", "),
	matches(`\(`+space+`([^\)]*?)`+space+`\)`, `(${1})`),
	matches(`\[`+space+`([^\]]*?)`+space+`\]`, `[${1}]`),
	matches(`\{`+space+`([^}]*?)`+space+`\}`, `{${1}}`),
	matches(`"`+space+`([^"]*?)`+space+`"`, `"${1}"`),
	matches(`'`+space+`([^']*?)`+space+`'`, `'${1}'`),
	texts("= = = =", "===="), texts("= = =", "==="), texts("= =", "=="),
	texts(" ° ", "°"), texts(" \n", "\n"), texts("\n ", "\n"), texts(" N ", " 1 "), texts(" 's", "'s"),
}

func texts(from, to string) func(string) string {
	return func(s string) string { return strings.ReplaceAll(s, from, to) }
}

func matches(pattern, to string) func(string) string {
	r := regexp.MustCompile(pattern)
	return func(s string) string { return r.ReplaceAllString(s, to) }
}

func wikiText(r Row) (*Document, error) {
	var page string
	if err := r.read(map[string]any{"page": &page}); err != nil {
		return nil, err
	}
	text := page
	for _, rewrite := range rewrites {
		text = rewrite(text)
	}
	return &Document{Text: &text, Words: words(page), Bytes: len(page)}, nil
}
