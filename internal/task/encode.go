package task

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"octet/infer"
	"octet/tokenizer"
)

// Encoder turns documents into rows of tokens. Special tokens in texts, such as <|endoftext|>, are
// these tokens, and a text gets the tokens of the tokenizer's template, such as BOS, unless it
// begins with the prefix token: so does the harness with a Hugging Face tokenizer.
type Encoder struct {
	tokens     *tokenizer.Encoder
	prefix     int32
	prefixText []byte
	window     int
}

// NewEncoder returns an encoder for windows of this many tokens. prefix is the token that precedes a
// text without a context.
func NewEncoder(t *tokenizer.Tokenizer, prefix int32, window int) (*Encoder, error) {
	text, err := t.Decode(nil, []int32{prefix}, false)
	if err != nil {
		return nil, fmt.Errorf("the prefix token: %w", err)
	}
	return &Encoder{tokens: t.NewEncoder(), prefix: prefix, prefixText: text, window: window}, nil
}

// PrefixToken returns the harness's prefix token: BOS, else EOS. BOS is bos_token in
// tokenizer_config.json, else bos_token_id in generation_config.json.
func PrefixToken(b *tokenizer.Bundle) (int32, error) {
	for _, f := range b.Files {
		if f.Name != "tokenizer_config.json" {
			continue
		}
		var fields struct {
			BOS json.RawMessage `json:"bos_token"`
		}
		if err := json.Unmarshal(f.Data, &fields); err != nil {
			return 0, fmt.Errorf("%s: %w", f.Name, err)
		}
		if len(fields.BOS) == 0 || string(fields.BOS) == "null" {
			continue
		}
		var token struct{ Content string }
		err := json.Unmarshal(fields.BOS, &token.Content)
		if err != nil {
			err = json.Unmarshal(fields.BOS, &token)
		}
		id, ok := b.ID(token.Content)
		if err != nil || !ok {
			return 0, fmt.Errorf("%s: bos_token %s is not a token of the vocabulary: give --prefix-token", f.Name, fields.BOS)
		}
		return id, nil
	}
	for _, f := range b.Files {
		if f.Name != "generation_config.json" {
			continue
		}
		var fields struct {
			BOS *int32 `json:"bos_token_id"`
		}
		if err := json.Unmarshal(f.Data, &fields); err != nil {
			return 0, fmt.Errorf("%s: %w", f.Name, err)
		}
		if fields.BOS != nil {
			return *fields.BOS, nil
		}
	}
	if b.EndOfText < 0 {
		return 0, errors.New("the tokenizer names neither a first nor a last token of a text: give --prefix-token ID, which precedes texts without a context")
	}
	return b.EndOfText, nil
}

// Rows returns the rows of a document: one for each choice or context, or the windows of a text.
func (e *Encoder) Rows(h Header, d *Document) (rows []infer.Row, err error) {
	add := func(context, continuation string) {
		if err == nil {
			var r infer.Row
			r, err = e.pair(context, continuation)
			rows = append(rows, r)
		}
	}
	switch h.Kind {
	case Choice:
		for _, c := range d.Choices {
			add(*d.Context, h.Delimiter+c)
		}
	case Partial:
		for _, c := range d.Contexts {
			add(c, h.Delimiter+*d.Target)
		}
	case Cloze:
		add(*d.Context, h.Delimiter+*d.Target)
	case Rolling:
		return e.rolling(*d.Text)
	}
	return rows, err
}

// encode encodes a text as the harness's tok_encode does.
func (e *Encoder) encode(text string, template bool) []int32 {
	raw := []byte(text)
	return e.tokens.Encode(nil, raw, tokenizer.Options{Special: true, Template: template && !bytes.HasPrefix(raw, e.prefixText)})
}

// pair encodes context and continuation together. White space at the end of the context belongs to
// the continuation, as the tokens of most vocabularies begin with a space. The tokens before those
// of the continuation are the context's own: a merge may have crossed the boundary in the pair.
func (e *Encoder) pair(context, continuation string) (infer.Row, error) {
	if context == "" {
		ids := e.encode(continuation, false)
		if len(ids) > 0 && ids[0] != e.prefix {
			ids = slices.Insert(ids, 0, e.prefix)
		}
		return e.row(ids, 1)
	}
	trimmed := strings.TrimRightFunc(context, isSpace)
	whole, ids := e.encode(context+continuation, true), e.encode(trimmed, true)
	n := len(ids)
	if n == 0 {
		return infer.Row{}, errors.New("the context is only white space: leave it empty")
	}
	return e.row(append(ids, whole[min(n, len(whole)):]...), n)
}

// row scores ids from index first on.
func (e *Encoder) row(ids []int32, first int) (infer.Row, error) {
	if first >= len(ids) {
		return infer.Row{}, errors.New("the continuation has no tokens of its own: the tokenizer joins it with the context")
	}
	return infer.Row{IDs: ids, Scored: len(ids) - first}.Clip(e.window)
}

// rolling cuts a text into windows, whose scored tokens are all of the text. The prefix token
// precedes the first one. The others see one token before them, but the last, shorter one is filled
// up with those before.
func (e *Encoder) rolling(text string) (rows []infer.Row, err error) {
	ids := slices.Insert(e.encode(text, true), 0, e.prefix)
	for at := 1; at < len(ids); {
		end := min(at+e.window, len(ids))
		rows = append(rows, infer.Row{IDs: ids[max(0, end-e.window-1):end], Scored: end - at})
		at = end
	}
	return rows, nil
}
