package tokenizer

import (
	"unicode"
	"unicode/utf8"
)

// scanner returns the length of the first piece of text, which is not empty.
type scanner func(text []byte) int

// The patterns that scanners implement, as tokenizer.json writes them. Scanners are written by hand
// because Go's regexp lacks (?!\S).
const (
	patternGPT2  = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	patternLlama = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternQwen  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// scanners holds the scanner of each pattern.
var scanners = map[string]scanner{
	patternGPT2:  scanGPT2,
	patternLlama: func(text []byte) int { return scanLlama(text, 3) },
	patternQwen:  func(text []byte) int { return scanLlama(text, 1) },
}

// class is a class of code points that patterns tell apart.
type class uint8

const (
	other class = iota // [^\s\p{L}\p{N}]; also a byte of invalid UTF-8
	letter
	number
	space   // \s without \r and \n
	newline // \r and \n
)

func (c class) white() bool { return c >= space }

var asciiClass = func() (list [utf8.RuneSelf]class) {
	for i := range list {
		list[i] = classOf(rune(i))
	}
	return list
}()

func classOf(r rune) class {
	switch {
	case r == '\r' || r == '\n':
		return newline
	case unicode.Is(unicode.White_Space, r):
		return space
	case unicode.IsLetter(r):
		return letter
	case unicode.IsNumber(r):
		return number
	}
	return other
}

// next returns the class and the length of the first code point of text; length 0 at its end.
func next(text []byte) (class, int) {
	if len(text) == 0 {
		return other, 0
	}
	if text[0] < utf8.RuneSelf {
		return asciiClass[text[0]], 1
	}
	r, n := utf8.DecodeRune(text)
	if r == utf8.RuneError && n == 1 {
		return other, 1
	}
	return classOf(r), n
}

// run returns the length of the code points from at on that are of class c, at most limit of them.
func run(text []byte, at int, c class, limit int) int {
	for ; limit > 0; limit-- {
		k, n := next(text[at:])
		if k != c || n == 0 {
			break
		}
		at += n
	}
	return at
}

const unlimited = 1 << 62

// contraction returns the length of 's, 't, 're, 've, 'm, 'll or 'd at the start of text, 0 for none.
// fold ignores case, by which ſ is an s.
func contraction(text []byte, fold bool) int {
	if len(text) < 2 || text[0] != '\'' {
		return 0
	}
	lower := func(i int) byte {
		if i >= len(text) {
			return 0
		}
		if c := text[i]; fold && 'A' <= c && c <= 'Z' {
			return c + 'a' - 'A'
		}
		return text[i]
	}
	switch a, b := lower(1), lower(2); {
	case a == 's', a == 't', a == 'm', a == 'd':
		return 2
	case a == 'r' && b == 'e', a == 'v' && b == 'e', a == 'l' && b == 'l':
		return 3
	case fold && a == 0xc5 && b == 0xbf: // ſ
		return 3
	}
	return 0
}

// scanGPT2 implements patternGPT2.
func scanGPT2(text []byte) int {
	if n := contraction(text, false); n > 0 {
		return n
	}
	first := 0
	if text[0] == ' ' {
		first = 1
	}
	if c, n := next(text[first:]); n > 0 && !c.white() {
		return run(text, first+n, c, unlimited)
	}
	return whitespace(text)
}

// scanLlama implements patternLlama, with groups of up to digits numbers.
func scanLlama(text []byte, digits int) int {
	if n := contraction(text, true); n > 0 {
		return n
	}
	c, n := next(text)
	if c == letter {
		return run(text, n, letter, unlimited)
	}
	if c == number {
		return run(text, 0, number, digits)
	}
	if c != newline {
		if k, m := next(text[n:]); m > 0 && k == letter {
			return run(text, n+m, letter, unlimited)
		}
	}
	first := 0
	if text[0] == ' ' {
		first = 1
	}
	if k, m := next(text[first:]); m > 0 && k == other {
		return run(text, run(text, first+m, other, unlimited), newline, unlimited)
	}
	// \s*[\r\n]+ ends after the last newline of the white space.
	end := 0
	for at := 0; ; {
		k, m := next(text[at:])
		if m == 0 || !k.white() {
			break
		}
		at += m
		if k == newline {
			end = at
		}
	}
	if end > 0 {
		return end
	}
	return whitespace(text)
}

// whitespace implements \s+(?!\S)|\s+: all white space at the end of text, and before other text all
// but its last code point, unless that is the only one.
func whitespace(text []byte) int {
	at, last := 0, 0
	for {
		c, n := next(text[at:])
		if n == 0 {
			return at
		}
		if !c.white() {
			break
		}
		last, at = at, at+n
	}
	if last > 0 {
		return last
	}
	return at
}
