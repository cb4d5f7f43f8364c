package tokenizer

import (
	"bytes"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/text/unicode/norm"
)

// Tokenizer is a vocabulary with the rules that encode text. It is safe for concurrent use.
type Tokenizer struct {
	tokens  [][]byte         // the bytes of each id as decoded; nil for an id without a token
	ids     map[string]int32 // of the tokens of the vocabulary, by their bytes or as Metaspace text
	added   []addedToken
	addedBy [256][]addedToken // by the first byte, the longest first
	merges  merges

	normalizers  []normalizer
	scan         scanner // nil: the text is one piece, cut at spaces where that changes nothing
	prefixSpace  bool    // byte-level: a space precedes each text that has none
	ignoreMerges bool    // a piece that is a token is this token

	byteIDs     [256]int32     // byte-level: the id of each byte; with byte fallback the id of <0xXX>
	runeIDs     map[rune]int32 // Metaspace: the ids of code points; nil: byte-level
	unknown     int32          // Metaspace without byte fallback; −1: none
	fallback    bool
	fuseUnknown bool
	joins       map[rune]bool // code points that some token has before ▁
	splitSpaces bool          // a piece begins at every ▁

	newlineAlone bool // Metaspace: a newline is a token that no merge joins to another

	prefix prefix // of a text without ▁ at its start

	before, after []int32 // the post-processor's ids
	stripStart    int     // spaces that decoding removes from the start

	encoders sync.Pool // of *Encoder
}

// prefix says which parts of a text, between added tokens, get a ▁ at the start.
type prefix uint8

const (
	prefixNever prefix = iota
	prefixFirst
	prefixAlways
)

// addedToken is a token that is found in the text before it is split.
type addedToken struct {
	id             int32
	content        string
	special        bool // of the model, not of the text: control tokens
	normalized     bool // found after normalization
	lstrip, rstrip bool // it takes the white space beside it
}

// Options say how a text is encoded.
type Options struct {
	// Special encodes special tokens in the text, such as <|endoftext|>, as single tokens. Otherwise
	// they are plain text, so that a document cannot contain a control token.
	Special bool
	// Template adds the tokens of the post-processor, such as BOS.
	Template bool
	// After says what the text follows.
	After After
}

// Vocab returns the number of ids: the highest id of a token plus one.
func (t *Tokenizer) Vocab() int { return len(t.tokens) }

// ID returns the id of a token as tokenizer.json writes it, such as </s>.
func (t *Tokenizer) ID(token string) (id int32, ok bool) {
	for _, a := range t.added {
		if a.content == token {
			return a.id, true
		}
	}
	if t.runeIDs == nil {
		raw, err := fromByteLevel(token)
		if err != nil {
			return 0, false
		}
		token = string(raw)
	}
	id, ok = t.ids[token]
	return id, ok
}

// Encode appends the ids of text to dst.
func (t *Tokenizer) Encode(dst []int32, text []byte, o Options) []int32 {
	e, _ := t.encoders.Get().(*Encoder)
	if e == nil {
		e = t.NewEncoder()
	}
	dst = e.Encode(dst, text, o)
	t.encoders.Put(e)
	return dst
}

// Decode appends the bytes of ids to dst. Skip leaves out special tokens.
func (t *Tokenizer) Decode(dst []byte, ids []int32, skip bool) ([]byte, error) {
	start := len(dst)
	for _, id := range ids {
		if id < 0 || int(id) >= len(t.tokens) || t.tokens[id] == nil {
			return dst, fmt.Errorf("id %d is not in the vocabulary of %d tokens", id, len(t.tokens))
		}
		if skip && t.isSpecial(id) {
			continue
		}
		dst = append(dst, t.tokens[id]...)
	}
	for range t.stripStart {
		if len(dst) == start || dst[start] != ' ' {
			break
		}
		dst = slices.Delete(dst, start, start+1)
	}
	return dst, nil
}

// Text returns the bytes that an id adds to a decoded text: none for special tokens and unknown ids.
// The spaces that Decode removes from the start of a text are in it. The caller must not change them.
func (t *Tokenizer) Text(id int32) []byte {
	if id < 0 || int(id) >= len(t.tokens) || t.isSpecial(id) {
		return nil
	}
	return t.tokens[id]
}

func (t *Tokenizer) isSpecial(id int32) bool {
	for _, a := range t.added {
		if a.id == id {
			return a.special
		}
	}
	return false
}

// Encoder encodes with a tokenizer. It keeps the ids of pieces that it has met, and is not safe for
// concurrent use.
type Encoder struct {
	*Tokenizer
	known map[string][]int32
	room  []int32 // of known's ids

	work    []int32 // symbols of a piece
	symbols []symbol
	heap    []uint64
	text    [2][]byte // normalized
	first   bool      // nothing of the text is encoded yet
	within  bool      // neither is a part of this text, which continues another one
}

// NewEncoder returns an encoder.
func (t *Tokenizer) NewEncoder() *Encoder { return &Encoder{Tokenizer: t, known: map[string][]int32{}} }

// Encode appends the ids of text to dst.
func (e *Encoder) Encode(dst []int32, text []byte, o Options) []int32 {
	if o.Template {
		dst = append(dst, e.before...)
	}
	e.first, e.within = o.After == AfterNothing, o.After == AfterText
	dst = e.split(dst, text, o.Special, false, func(dst []int32, part []byte) []int32 {
		return e.split(dst, e.normalize(part), o.Special, true, e.encodePart)
	})
	if o.Template {
		dst = append(dst, e.after...)
	}
	return dst
}

// split appends the ids of added tokens in text, of those found after normalization or before, and
// calls encode for the parts between them.
func (e *Encoder) split(dst []int32, text []byte, special, normalized bool, encode func([]int32, []byte) []int32) []int32 {
	for len(text) > 0 {
		at, token := e.findAdded(text, special, normalized)
		if token == nil {
			return encode(dst, text)
		}
		part, rest := text[:at], text[at+len(token.content):]
		if token.lstrip {
			part = bytes.TrimRightFunc(part, isSpace)
		}
		if token.rstrip {
			rest = bytes.TrimLeftFunc(rest, isSpace)
		}
		if len(part) > 0 {
			dst = encode(dst, part)
		}
		dst, text, e.first, e.within = append(dst, token.id), rest, false, false
	}
	return dst
}

func isSpace(r rune) bool { return classOf(r).white() }

// findAdded returns the first added token in text, of those that begin there the longest.
func (t *Tokenizer) findAdded(text []byte, special, normalized bool) (at int, found *addedToken) {
	for ; at < len(text); at++ {
		list := t.addedBy[text[at]]
		for i := range list {
			a := &list[i]
			if a.normalized == normalized && (special || !a.special) && bytes.HasPrefix(text[at:], []byte(a.content)) {
				return at, a
			}
		}
	}
	return len(text), nil
}

// normalizer is a step of the normalizer; one field is set.
type normalizer struct {
	nfc           bool
	prepend       string
	replace, with string
}

// normalize returns the normalized text, which is valid until the next call.
func (e *Encoder) normalize(text []byte) []byte {
	for i, n := range e.normalizers {
		to := &e.text[i%2]
		switch {
		case n.nfc:
			if norm.NFC.IsNormal(text) {
				continue
			}
			*to = norm.NFC.Append((*to)[:0], text...)
		case n.prepend != "":
			if len(text) == 0 || e.within {
				continue
			}
			*to = append(append((*to)[:0], n.prepend...), text...)
		default:
			*to = (*to)[:0]
			for {
				k := bytes.Index(text, []byte(n.replace))
				if k < 0 {
					break
				}
				*to = append(append(*to, text[:k]...), n.with...)
				text = text[k+len(n.replace):]
			}
			*to = append(*to, text...)
		}
		text = *to
	}
	return text
}

// encodePart appends the ids of a normalized part without added tokens.
func (e *Encoder) encodePart(dst []int32, text []byte) []int32 {
	first, within := e.first, e.within
	e.first, e.within = false, false
	if e.scan == nil {
		if !within && (e.prefix == prefixAlways || e.prefix == prefixFirst && first) && !bytes.HasPrefix(text, metaspace) {
			text = slices.Concat(metaspace, text)
		}
		return e.encodeSpaces(dst, text)
	}
	if e.prefixSpace && !within && text[0] != ' ' {
		text = append([]byte{' '}, text...)
	}
	for len(text) > 0 {
		n := e.scan(text)
		dst = e.encodePiece(dst, text[:n])
		text = text[n:]
	}
	return dst
}

var metaspace = []byte("▁")

// encodeSpaces cuts the text before each ▁ that no token joins to what precedes it: no merge crosses
// such a place, so the ids are those of the text as one piece.
func (e *Encoder) encodeSpaces(dst []int32, text []byte) []int32 {
	start := 0
	for at := 0; at < len(text); {
		k := bytes.Index(text[at:], metaspace)
		if k < 0 {
			break
		}
		at += k
		if at > start && (e.splitSpaces || !e.joins[lastRune(text[:at])]) {
			dst = e.encodePiece(dst, text[start:at])
			start = at
		}
		at += len(metaspace)
	}
	if start < len(text) {
		dst = e.encodePiece(dst, text[start:])
	}
	return dst
}

// The longest piece that an encoder keeps, and the ids that it keeps before it begins anew.
const (
	knownPiece = 64
	knownIDs   = 1 << 20
)

// encodePiece appends the ids of a piece.
func (e *Encoder) encodePiece(dst []int32, piece []byte) []int32 {
	if len(piece) <= knownPiece {
		if ids, ok := e.known[string(piece)]; ok {
			return append(dst, ids...)
		}
	}
	start := len(dst)
	dst = e.mergePiece(dst, piece)
	if len(piece) <= knownPiece {
		if len(e.room)+len(dst)-start > cap(e.room) {
			if len(e.room) > 0 {
				clear(e.known)
			}
			e.room = make([]int32, 0, knownIDs)
		}
		from := len(e.room)
		e.room = append(e.room, dst[start:]...)
		e.known[string(piece)] = e.room[from:]
	}
	return dst
}

func (e *Encoder) mergePiece(dst []int32, piece []byte) []int32 {
	if e.ignoreMerges {
		if id, ok := e.ids[string(piece)]; ok {
			return append(dst, id)
		}
	}
	e.work = e.work[:0]
	if e.runeIDs == nil {
		for _, b := range piece {
			e.work = append(e.work, e.byteIDs[b])
		}
	} else {
		e.codePoints(piece)
	}
	return append(dst, e.work[:e.merge(e.work)]...)
}
