package tokenizer

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// readCodePoints fills runeIDs, joins and with byte fallback byteIDs of a Metaspace vocabulary.
func (t *Tokenizer) readCodePoints() error {
	t.joins = map[rune]bool{}
	for token, id := range t.ids {
		if r, n := utf8.DecodeRuneInString(token); n == len(token) && n > 0 {
			t.runeIDs[r] = id
		}
		for at := range token {
			if at > 0 && strings.HasPrefix(token[at:], string(metaspace)) {
				t.joins[lastRune([]byte(token[:at]))] = true
			}
		}
	}
	for b := range t.byteIDs {
		token := fmt.Sprintf("<0x%02X>", b)
		id, ok := t.ids[token]
		switch {
		case !t.fallback:
			return nil
		case !ok:
			return fmt.Errorf("byte fallback is on, and there is no token %s", token)
		}
		t.byteIDs[b], t.tokens[id] = id, []byte{byte(b)}
	}
	return nil
}

func lastRune(text []byte) rune {
	r, _ := utf8.DecodeLastRune(text)
	return r
}

// spaced returns the bytes of a Metaspace token, with a space for each ▁. They are not nil, which stands
// for an id without a token.
func spaced(token string) []byte {
	return append([]byte{}, strings.ReplaceAll(token, string(metaspace), " ")...)
}

// codePoints appends the ids of the code points of a piece to e.work. A code point that is no token
// becomes its bytes, or the unknown token.
func (e *Encoder) codePoints(piece []byte) {
	unknown := false // the last symbol is the unknown token
	for len(piece) > 0 {
		r, n := utf8.DecodeRune(piece)
		id, ok := e.runeIDs[r]
		if r == utf8.RuneError && n == 1 {
			ok = false
		}
		switch {
		case ok:
			e.work, unknown = append(e.work, id), false
		case e.fallback:
			for _, b := range piece[:n] {
				e.work = append(e.work, e.byteIDs[b])
			}
			unknown = false
		case e.unknown >= 0 && !(unknown && e.fuseUnknown):
			e.work, unknown = append(e.work, e.unknown), true
		}
		piece = piece[n:]
	}
}
