package tokenizer

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// file is a tokenizer.json.
type file struct {
	Added []struct {
		ID         int32
		Content    string
		SingleWord bool `json:"single_word"`
		LStrip     bool `json:"lstrip"`
		RStrip     bool `json:"rstrip"`
		Normalized bool
		Special    bool
	} `json:"added_tokens"`
	Normalizer    json.RawMessage
	PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
	PostProcessor json.RawMessage `json:"post_processor"`
	Decoder       json.RawMessage
	Model         struct {
		Type         string
		Dropout      *float64
		Unknown      *string `json:"unk_token"`
		Prefix       *string `json:"continuing_subword_prefix"`
		Suffix       *string `json:"end_of_word_suffix"`
		FuseUnknown  bool    `json:"fuse_unk"`
		ByteFallback bool    `json:"byte_fallback"`
		IgnoreMerges bool    `json:"ignore_merges"`
		Vocab        map[string]int32
		Merges       []pair
	}
}

// pair is a merge: "a b" or ["a", "b"].
type pair [2]string

func (p *pair) UnmarshalJSON(raw []byte) error {
	if len(raw) > 0 && raw[0] == '[' {
		var list []string
		if err := json.Unmarshal(raw, &list); err != nil {
			return err
		}
		if len(list) != 2 {
			return fmt.Errorf("model.merges: a merge has %d tokens, expected 2", len(list))
		}
		*p = pair(list)
		return nil
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return err
	}
	left, right, ok := strings.Cut(s, " ")
	if !ok || strings.Contains(right, " ") {
		return fmt.Errorf("model.merges: %q: expected two tokens and one space between them", s)
	}
	*p = pair{left, right}
	return nil
}

// ParseJSON reads a tokenizer.json. It refuses what it does not implement by name.
func ParseJSON(raw []byte) (*Tokenizer, error) {
	var f file
	if err := json.Unmarshal(raw, &f); err != nil {
		return nil, err
	}
	t := &Tokenizer{unknown: -1}
	for _, read := range []func(*Tokenizer) error{f.checkModel, f.readNormalizer, f.readPreTokenizer, f.readVocab, f.readMerges, f.readAdded, f.readPostProcessor, f.readDecoder} {
		if err := read(t); err != nil {
			return nil, err
		}
	}
	t.finish()
	return t, nil
}

func (f *file) checkModel(t *Tokenizer) error {
	m := &f.Model
	empty := func(s *string) bool { return s == nil || *s == "" }
	switch {
	case m.Type != "BPE":
		return fmt.Errorf("model.type %q: octet reads BPE", m.Type)
	case m.Dropout != nil && *m.Dropout != 0:
		return fmt.Errorf("model.dropout %v: octet reads models without dropout", *m.Dropout)
	case !empty(m.Prefix):
		return fmt.Errorf("model.continuing_subword_prefix %q: octet reads models without one", *m.Prefix)
	case !empty(m.Suffix):
		return fmt.Errorf("model.end_of_word_suffix %q: octet reads models without one", *m.Suffix)
	case len(m.Vocab) == 0:
		return errors.New("model.vocab is empty")
	}
	t.fallback, t.fuseUnknown, t.ignoreMerges = m.ByteFallback, m.FuseUnknown, m.IgnoreMerges
	return nil
}

// maxID bounds ids, so that a file with one huge id takes no memory for all below it.
const maxID = 1 << 24

// readVocab fills tokens and ids. The pre-tokenizer has told the family.
func (f *file) readVocab(t *Tokenizer) error {
	top := int32(-1)
	for token, id := range f.Model.Vocab {
		if id < 0 || id >= maxID {
			return fmt.Errorf("model.vocab: token %q has id %d: expected 0 to %d", token, id, maxID-1)
		}
		top = max(top, id)
	}
	t.tokens, t.ids = make([][]byte, top+1), make(map[string]int32, len(f.Model.Vocab))
	for token, id := range f.Model.Vocab {
		raw, key := []byte(token), token
		if t.runeIDs == nil {
			// Special tokens may be in the vocabulary, too, as plain text.
			if b, err := fromByteLevel(token); err == nil {
				raw, key = b, string(b)
			}
		} else {
			raw = spaced(token)
		}
		if t.tokens[id] != nil {
			return fmt.Errorf("model.vocab: tokens %q and %q have id %d", t.tokens[id], token, id)
		}
		t.tokens[id], t.ids[key] = raw, id
	}
	if t.runeIDs == nil {
		if err := t.readBytes(); err != nil {
			return fmt.Errorf("model.vocab: %w", err)
		}
		return nil
	}
	if err := t.readCodePoints(); err != nil {
		return fmt.Errorf("model.vocab: %w", err)
	}
	if u := f.Model.Unknown; u != nil && !t.fallback {
		id, ok := t.ids[*u]
		if !ok {
			return fmt.Errorf("model.unk_token %q is not in model.vocab", *u)
		}
		t.unknown = id
	}
	return nil
}

func (f *file) readMerges(t *Tokenizer) error {
	t.merges = newMerges(len(f.Model.Merges))
	for rank, p := range f.Model.Merges {
		var ids [3]int32
		for i, token := range []string{p[0], p[1], p[0] + p[1]} {
			id, ok := f.Model.Vocab[token]
			if !ok {
				return fmt.Errorf("model.merges[%d], %q %q: %q is not in model.vocab", rank, p[0], p[1], token)
			}
			ids[i] = id
		}
		t.merges.add(ids[0], ids[1], int32(rank), ids[2])
	}
	return nil
}

func (f *file) readAdded(t *Tokenizer) error {
	for i, a := range f.Added {
		switch {
		case a.Content == "":
			return fmt.Errorf("added_tokens[%d] has no content", i)
		case a.ID < 0 || a.ID >= maxID:
			return fmt.Errorf("added_tokens[%d], %q, has id %d: expected 0 to %d", i, a.Content, a.ID, maxID-1)
		case a.SingleWord:
			return fmt.Errorf("added_tokens[%d], %q, has single_word: octet reads tokens without it", i, a.Content)
		}
		if grow := int(a.ID) + 1 - len(t.tokens); grow > 0 {
			t.tokens = append(t.tokens, make([][]byte, grow)...)
		}
		t.tokens[a.ID] = []byte(a.Content)
		t.added = append(t.added, addedToken{a.ID, a.Content, a.Special, a.Normalized, a.LStrip, a.RStrip})
	}
	return nil
}

// finish fills the fields that follow from others.
func (t *Tokenizer) finish() {
	id, ok := t.runeIDs['\n']
	if t.fallback && !ok {
		id, ok = t.byteIDs['\n'], true
	}
	t.newlineAlone = ok && !t.ignoreMerges && !t.merges.joins(id)
	for _, a := range t.added {
		list := append(t.addedBy[a.content[0]], a)
		slices.SortStableFunc(list, func(a, b addedToken) int { return cmp.Compare(len(b.content), len(a.content)) })
		t.addedBy[a.content[0]] = list
	}
}

// step is a normalizer, pre-tokenizer, post-processor or decoder: its type, and the fields of all.
type step struct {
	Type           string
	Normalizers    []step
	Pretokenizers  []step
	Processors     []step
	Decoders       []step
	Pattern        struct{ String, Regex string }
	Content        string
	Prepend        string
	Behavior       string
	Invert         bool
	AddPrefixSpace *bool `json:"add_prefix_space"`
	UseRegex       *bool `json:"use_regex"`
	Replacement    string
	PrependScheme  string `json:"prepend_scheme"`
	Split          *bool
	Start, Stop    int
	Single         []struct {
		SpecialToken *struct{ ID string }
		Sequence     *struct{ ID string }
	}
	SpecialTokens map[string]struct{ IDs []int32 } `json:"special_tokens"`
}

// steps returns the steps of a field, those of sequences in order; none for null.
func steps(field string, raw json.RawMessage) ([]step, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var s step
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	var flat []step
	var add func(step)
	add = func(s step) {
		if s.Type != "Sequence" {
			flat = append(flat, s)
			return
		}
		for _, list := range [][]step{s.Normalizers, s.Pretokenizers, s.Processors, s.Decoders} {
			for _, inner := range list {
				add(inner)
			}
		}
	}
	add(s)
	return flat, nil
}

func unread(field string, s step, read string) error {
	return fmt.Errorf("%s.type %q: octet reads %s", field, s.Type, read)
}

func (f *file) readNormalizer(t *Tokenizer) error {
	list, err := steps("normalizer", f.Normalizer)
	for _, s := range list {
		switch {
		case s.Type == "NFC":
			t.normalizers = append(t.normalizers, normalizer{nfc: true})
		case s.Type == "Prepend":
			t.normalizers = append(t.normalizers, normalizer{prepend: s.Prepend})
		case s.Type == "Replace" && s.Pattern.String != "":
			t.normalizers = append(t.normalizers, normalizer{replace: s.Pattern.String, with: s.Content})
		default:
			return unread("normalizer", s, "NFC, Prepend, and Replace of a string")
		}
	}
	return err
}

func (f *file) readPreTokenizer(t *Tokenizer) error {
	const field = "pre_tokenizer"
	list, err := steps(field, f.PreTokenizer)
	if err != nil {
		return err
	}
	byteLevel := false
	for _, s := range list {
		pattern := ""
		switch {
		case s.Type == "Split" && s.Behavior == "Isolated" && !s.Invert:
			pattern = s.Pattern.Regex
		case s.Type == "ByteLevel":
			byteLevel = true
			t.prefixSpace = s.AddPrefixSpace == nil || *s.AddPrefixSpace
			if s.UseRegex == nil || *s.UseRegex {
				pattern = patternGPT2
			}
		case s.Type == "Metaspace" && len(list) == 1 && (s.Replacement == "" || s.Replacement == string(metaspace)):
			t.normalizers = append(t.normalizers, normalizer{replace: " ", with: string(metaspace)})
			t.splitSpaces = s.Split == nil || *s.Split
			switch {
			case s.PrependScheme == "always", s.PrependScheme == "" && (s.AddPrefixSpace == nil || *s.AddPrefixSpace):
				t.prefix, t.stripStart = prefixAlways, 1
			case s.PrependScheme == "first":
				t.prefix, t.stripStart = prefixFirst, 1
			}
		default:
			return unread(field, s, "ByteLevel, Split into isolated pieces, and Metaspace")
		}
		if pattern == "" {
			continue
		}
		if t.scan != nil {
			return fmt.Errorf("%s splits text twice: octet reads one pattern", field)
		}
		if t.scan = scanners[pattern]; t.scan == nil {
			return fmt.Errorf("%s: unknown pattern %q: octet reads those of GPT-2, Llama 3 and Qwen", field, pattern)
		}
	}
	switch {
	case !byteLevel && t.scan != nil:
		return fmt.Errorf("%s: Split without ByteLevel: octet reads a pattern of byte-level tokens", field)
	case byteLevel && t.scan == nil:
		return fmt.Errorf("%s: ByteLevel without a pattern: octet reads those of GPT-2, Llama 3 and Qwen", field)
	case !byteLevel:
		t.runeIDs = map[rune]int32{}
	}
	return nil
}

func (f *file) readPostProcessor(t *Tokenizer) error {
	list, err := steps("post_processor", f.PostProcessor)
	for _, s := range list {
		switch s.Type {
		case "ByteLevel": // offsets only
		case "TemplateProcessing":
			ids := &t.before
			for _, part := range s.Single {
				if part.SpecialToken == nil {
					ids = &t.after
					continue
				}
				token, ok := s.SpecialTokens[part.SpecialToken.ID]
				if !ok {
					return fmt.Errorf("post_processor.single has %q, which post_processor.special_tokens lacks", part.SpecialToken.ID)
				}
				for _, id := range token.IDs {
					if id < 0 || int(id) >= len(t.tokens) {
						return fmt.Errorf("post_processor.special_tokens: %q has id %d, which is not in the vocabulary", part.SpecialToken.ID, id)
					}
				}
				*ids = append(*ids, token.IDs...)
			}
		default:
			return unread("post_processor", s, "ByteLevel and TemplateProcessing")
		}
	}
	return err
}

// readDecoder checks that the decoder is the inverse that Decode computes: that of the family.
func (f *file) readDecoder(t *Tokenizer) error {
	list, err := steps("decoder", f.Decoder)
	for _, s := range list {
		switch {
		case s.Type == "ByteLevel" && t.runeIDs == nil:
		case s.Type == "Replace" && s.Pattern.String == string(metaspace) && s.Content == " " && t.runeIDs != nil:
		case (s.Type == "ByteFallback" || s.Type == "Fuse" || s.Type == "Metaspace") && t.runeIDs != nil:
		case s.Type == "Strip" && s.Content == " " && s.Stop == 0 && s.Start >= 0 && t.runeIDs != nil:
			t.stripStart = s.Start
		default:
			return unread("decoder", s, "ByteLevel, and for other models Replace of ▁, Metaspace, ByteFallback, Fuse and Strip of spaces at the start")
		}
	}
	return err
}
