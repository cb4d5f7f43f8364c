package tokenizer

import (
	"bytes"
	"slices"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// After says what a text follows that Encode does not see.
type After uint8

const (
	// AfterNothing is the start of a text.
	AfterNothing After = iota
	// AfterToken is a place after an added token: a prefix meant only for the start of a text is
	// not added.
	AfterToken
	// AfterText is a place within a text: it gets no prefix.
	AfterText
)

// Template returns the ids that the post-processor puts before and after a text.
func (t *Tokenizer) Template() (before, after []int32) { return t.before, t.after }

// Cut returns the last place in text, above 0, at which a text may be cut: the ids of text[:n], and
// those of the rest with AfterText, are the ids of the whole, whatever follows text. It returns 0 if it
// knows no such place. Where in a text it finds one depends on the tokenizer:
//
//   - between a letter or a number and another kind of character or one space and a letter, and after
//     a single newline, where a pattern splits the text;
//   - before a space that no token joins to the character before it, and after a newline that no merge
//     joins, in Metaspace models;
//   - anywhere, if ids are bytes.
func (t *Tokenizer) Cut(text []byte) int {
	if t.bytesOnly() {
		return len(text)
	}
	if !t.Cuttable() {
		return 0
	}
	at := t.cutPattern
	if t.scan == nil {
		at = t.cutSpaces
	}
	for p := len(text) - 1; p > 0; p-- {
		if !utf8.RuneStart(text[p]) || !utf8.FullRune(text[p:]) || !at(text, p) || t.nearAdded(text, p) {
			continue
		}
		return p
	}
	return 0
}

// bytesOnly reports whether ids are bytes, wherever they are in a text.
func (t *Tokenizer) bytesOnly() bool {
	return t.runeIDs == nil && len(t.tokens) == 256 && t.merges.empty() && !t.ignoreMerges && len(t.added) == 0 && len(t.normalizers) == 0 && !t.prefixSpace
}

// Cuttable reports whether Cut may find a place: whether the normalizers change characters one by one, NFC
// aside.
func (t *Tokenizer) Cuttable() bool {
	for _, n := range t.normalizers {
		switch {
		case n.nfc && t.scan != nil:
		case n.prepend == string(metaspace) && t.scan == nil:
		case n.replace == " " && n.with == string(metaspace) && t.scan == nil:
		default:
			return false
		}
	}
	return true
}

func (t *Tokenizer) nfc() bool {
	return slices.ContainsFunc(t.normalizers, func(n normalizer) bool { return n.nfc })
}

// cutPattern reports whether every pattern has a boundary at p, and finds it without what follows p.
func (t *Tokenizer) cutPattern(text []byte, p int) bool {
	before, size := lastClass(text[:p])
	after, n := next(text[p:])
	switch {
	case before == newline && text[p-1] == '\n':
		// The patterns differ in runs of white space, but a single newline is a piece or ends one.
		above, m := lastClass(text[:p-1])
		if m == 0 || above.white() || after.white() {
			return false
		}
	case (before == letter || before == number) && text[p] == ' ':
		k, m := next(text[p+1:])
		if m == 0 || k != letter || !utf8.FullRune(text[p+1:]) {
			return false
		}
	case (before == letter || before == number) && !after.white() && after != before:
	default:
		return false
	}
	if !t.nfc() {
		return true
	}
	// Neither character may change or join the other.
	left, right := norm.NFC.Properties(text[p-size:p]), norm.NFC.Properties(text[p:p+n])
	return left.Decomposition() == nil && right.Decomposition() == nil && right.BoundaryBefore()
}

// lastClass returns the class and the length of the last code point of text; length 0 without one.
func lastClass(text []byte) (class, int) {
	r, n := utf8.DecodeLastRune(text)
	if r == utf8.RuneError && n == 1 {
		return other, 1
	}
	return classOf(r), n
}

// cutSpaces reports whether no merge crosses p.
func (t *Tokenizer) cutSpaces(text []byte, p int) bool {
	if text[p-1] == '\n' && t.newlineAlone {
		return true
	}
	if !bytes.HasPrefix(text[p:], metaspace) && !(text[p] == ' ' && slices.ContainsFunc(t.normalizers, func(n normalizer) bool { return n.replace == " " })) {
		return false
	}
	r, n := utf8.DecodeLastRune(text[:p])
	if r == ' ' || r == '▁' || r == utf8.RuneError && n == 1 {
		return false
	}
	return !isSpace(r) && (t.splitSpaces || !t.joins[r])
}

// nearAdded reports whether an added token might cross p, end there, or take white space there.
func (t *Tokenizer) nearAdded(text []byte, p int) bool {
	nfc := t.nfc()
	strippable := isSpace(lastRune(text[:p]))
	after, _ := utf8.DecodeRune(text[p:])
	for i := range t.added {
		a := &t.added[i]
		if nfc && a.normalized {
			if a.lstrip || a.rstrip || bytes.IndexByte([]byte(a.content), text[p-1]) >= 0 { // its text may be another before NFC
				return true
			}
			continue
		}
		if a.lstrip && strippable && (isSpace(after) || bytes.HasPrefix(text[p:], []byte(a.content)) || bytes.HasPrefix([]byte(a.content), text[p:])) {
			return true
		}
		if a.rstrip && bytes.HasSuffix(bytes.TrimRightFunc(text[:p], isSpace), []byte(a.content)) {
			return true
		}
		for k := 1; k <= min(p, len(a.content)); k++ {
			rest := []byte(a.content[k:])
			if bytes.HasSuffix(text[:p], []byte(a.content[:k])) && (bytes.HasPrefix(text[p:], rest) || bytes.HasPrefix(rest, text[p:])) {
				return true
			}
		}
	}
	return false
}
