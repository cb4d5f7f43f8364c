package task

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Version is the version of task files.
const Version = 1

// Kind says what a document of a task has, and which metrics the task has.
type Kind string

const (
	// Choice: continuations of one context, of which one is right.
	Choice Kind = "choice"
	// Cloze: the one right continuation of a context.
	Cloze Kind = "cloze"
	// Partial: contexts with one continuation, of which one context is right.
	Partial Kind = "partial"
	// Rolling: a text, of which every token is scored.
	Rolling Kind = "rolling"
)

// Header is the first line of a task file.
type Header struct {
	Version int    `json:"octet_task"`
	Kind    Kind   `json:"kind"`
	Name    string `json:"name"`
	// Delimiter precedes a continuation in the scored text.
	Delimiter string `json:"delimiter"`
}

// Document is a row of a task file.
type Document struct {
	Context  *string  `json:"context,omitempty"`  // of Choice and Cloze
	Contexts []string `json:"contexts,omitempty"` // of Partial
	Choices  []string `json:"choices,omitempty"`
	Target   *string  `json:"target,omitempty"` // of Cloze and Partial
	Gold     *int     `json:"gold,omitempty"`   // index of the right choice or context
	Text     *string  `json:"text,omitempty"`   // of Rolling
	// Words and Bytes, by which Rolling divides; absent: those of Text. They may be of the text
	// before a detokenizer.
	Words int `json:"words,omitempty"`
	Bytes int `json:"bytes,omitempty"`
}

// Parser reads the lines of a task file.
type Parser struct {
	Header Header
	begun  bool
}

// Parse reads a line: the header, for which it returns nil, or a document.
func (p *Parser) Parse(line []byte) (*Document, error) {
	if !p.begun {
		p.begun = true
		return nil, p.header(line)
	}
	d := &Document{}
	if err := decode(line, d); err != nil {
		return nil, err
	}
	if err := d.check(p.Header); err != nil {
		return nil, err
	}
	if p.Header.Kind == Rolling {
		if d.Words == 0 {
			d.Words = words(*d.Text)
		}
		if d.Bytes == 0 {
			d.Bytes = len(*d.Text)
		}
	}
	return d, nil
}

const headerExample = `{"octet_task":1,"kind":"choice","name":"mine","delimiter":" "}`

func (p *Parser) header(line []byte) error {
	var fields struct {
		Version   *int    `json:"octet_task"`
		Kind      *Kind   `json:"kind"`
		Name      *string `json:"name"`
		Delimiter *string `json:"delimiter"`
	}
	err := decode(line, &fields)
	switch {
	case err != nil || fields.Version == nil:
		if err == nil {
			err = errors.New("octet_task is missing")
		}
		return fmt.Errorf("%w: expected the header of a task file, such as %s; octet data task converts published data sets", err, headerExample)
	case *fields.Version != Version:
		return fmt.Errorf("octet_task is %d: expected %d", *fields.Version, Version)
	case fields.Kind == nil:
		return errors.New("kind is missing: expected choice, cloze, partial or rolling")
	case fields.Name == nil || *fields.Name == "":
		return errors.New("name is missing: expected the name of the task")
	case strings.ContainsFunc(*fields.Name, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return fmt.Errorf("name is %q: expected no control characters", *fields.Name)
	}
	p.Header = Header{Version: Version, Kind: *fields.Kind, Name: *fields.Name}
	switch p.Header.Kind {
	case Choice, Cloze, Partial:
		if fields.Delimiter == nil {
			return errors.New(`delimiter is missing: expected what precedes a continuation, " " in most tasks`)
		}
		p.Header.Delimiter = *fields.Delimiter
	case Rolling:
		if fields.Delimiter != nil && *fields.Delimiter != "" {
			return errors.New("delimiter: a task of kind rolling has none")
		}
	default:
		return fmt.Errorf("kind is %q: expected choice, cloze, partial or rolling", p.Header.Kind)
	}
	return nil
}

// decode reads one JSON object. Unknown fields are errors: a misspelled one would have no effect.
func decode(line []byte, v any) error {
	if !utf8.Valid(line) {
		return errors.New("the line is not UTF-8")
	}
	if len(line) == 0 || line[0] != '{' {
		return errors.New("expected a JSON object")
	}
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return plainJSON(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("expected one JSON object on a line")
	}
	return nil
}

// plainJSON words an error of package json without names of Go.
func plainJSON(err error) error {
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) && wrong.Field != "" {
		return fmt.Errorf("%s is a JSON %s: expected %s", wrong.Field, wrong.Value, kinds[wrong.Type.Kind().String()])
	}
	return errors.New(strings.TrimPrefix(err.Error(), "json: "))
}

// kinds are the names of Go's kinds in JSON.
var kinds = map[string]string{"int": "an integer", "string": "a string", "slice": "an array", "ptr": "an object", "struct": "an object"}

// check returns an error unless the document has the fields of its kind, and no others.
func (d *Document) check(h Header) error {
	has := map[string]bool{
		"context": d.Context != nil, "contexts": d.Contexts != nil, "choices": d.Choices != nil, "target": d.Target != nil,
		"gold": d.Gold != nil, "text": d.Text != nil,
	}
	needs := map[Kind][]string{
		Choice: {"context", "choices", "gold"}, Cloze: {"context", "target"}, Partial: {"contexts", "target", "gold"}, Rolling: {"text"},
	}[h.Kind]
	for _, name := range needs {
		if !has[name] {
			return fmt.Errorf("%s is missing: a document of kind %s has %s", name, h.Kind, strings.Join(needs, ", "))
		}
		delete(has, name)
	}
	for _, name := range []string{"context", "contexts", "choices", "target", "gold", "text"} {
		if has[name] {
			return fmt.Errorf("%s: a document of kind %s has %s", name, h.Kind, strings.Join(needs, ", "))
		}
	}
	if h.Kind != Rolling && (d.Words != 0 || d.Bytes != 0) {
		return fmt.Errorf("words, bytes: only a document of kind rolling has them")
	}
	switch h.Kind {
	case Choice:
		return d.checkGold("choices", d.Choices)
	case Partial:
		if err := d.checkGold("contexts", d.Contexts); err != nil {
			return err
		}
		fallthrough
	case Cloze:
		if h.Delimiter+*d.Target == "" {
			return errors.New("target is empty")
		}
	case Rolling:
		if *d.Text == "" {
			return errors.New("text is empty")
		}
		if d.Words < 0 || d.Bytes < 0 {
			return fmt.Errorf("words, bytes: %d, %d: expected positive numbers", d.Words, d.Bytes)
		}
	}
	return nil
}

func (d *Document) checkGold(name string, list []string) error {
	if len(list) == 0 {
		return fmt.Errorf("%s is empty", name)
	}
	for i, s := range list {
		if s == "" {
			return fmt.Errorf("%s[%d] is empty", name, i)
		}
	}
	if *d.Gold < 0 || *d.Gold >= len(list) {
		return fmt.Errorf("gold is %d: expected an index of %s, 0 to %d", *d.Gold, name, len(list)-1)
	}
	return nil
}
