package prepare

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// A line is scanned by hand: encoding/json is slower than a tokenizer.

// jsonValue is a value within a line: its text, and its first byte tells its type.
type jsonValue []byte

// kind names the type of a value for messages.
func (v jsonValue) kind() string {
	switch v[0] {
	case '"':
		return "a string"
	case '{':
		return "an object"
	case '[':
		return "an array"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}

// maxDepth bounds the nesting of values.
const maxDepth = 1000

var (
	errEnd    = errors.New("invalid JSON: the line ends within a value")
	errFields = errors.New("not a JSON object")
)

// scanJSON is the rest of a line.
type scanJSON struct {
	text []byte
	at   int
}

func (s *scanJSON) space() {
	for s.at < len(s.text) {
		switch s.text[s.at] {
		case ' ', '\t', '\r', '\n':
			s.at++
		default:
			return
		}
	}
}

// peek skips white space and returns the next byte, which it does not consume.
func (s *scanJSON) peek() (byte, error) {
	s.space()
	if s.at == len(s.text) {
		return 0, errEnd
	}
	return s.text[s.at], nil
}

func (s *scanJSON) unexpected() error {
	if s.at >= len(s.text) {
		return errEnd
	}
	r, _ := utf8.DecodeRune(s.text[s.at:])
	return fmt.Errorf("invalid JSON: unexpected %q at byte %d", r, s.at+1)
}

// object calls visit for each field of the line, an object, and checks that nothing follows it.
func object(line []byte, visit func(key []byte, value jsonValue) error) error {
	s := scanJSON{text: line}
	if c, err := s.peek(); err != nil {
		return err
	} else if c != '{' {
		if _, err := s.value(0); err != nil {
			return err
		}
		return errFields
	}
	if err := s.members(0, visit); err != nil {
		return err
	}
	if s.space(); s.at < len(s.text) {
		return s.unexpected()
	}
	return nil
}

// members consumes an object.
func (s *scanJSON) members(depth int, visit func(key []byte, value jsonValue) error) error {
	s.at++
	if c, err := s.peek(); err != nil {
		return err
	} else if c == '}' {
		s.at++
		return nil
	}
	for {
		if c, err := s.peek(); err != nil {
			return err
		} else if c != '"' {
			return s.unexpected()
		}
		begin := s.at
		if err := s.string(); err != nil {
			return err
		}
		quoted := s.text[begin:s.at]
		if c, err := s.peek(); err != nil {
			return err
		} else if c != ':' {
			return s.unexpected()
		}
		s.at++
		value, err := s.value(depth)
		if err != nil {
			return err
		}
		if visit != nil {
			if err := visit(unquote(nil, quoted), value); err != nil {
				return err
			}
		}
		if end, err := s.separator('}'); end || err != nil {
			return err
		}
	}
}

// elements consumes an array.
func (s *scanJSON) elements(depth int, visit func(value jsonValue) error) error {
	s.at++
	if c, err := s.peek(); err != nil {
		return err
	} else if c == ']' {
		s.at++
		return nil
	}
	for {
		value, err := s.value(depth)
		if err != nil {
			return err
		}
		if visit != nil {
			if err := visit(value); err != nil {
				return err
			}
		}
		if end, err := s.separator(']'); end || err != nil {
			return err
		}
	}
}

// separator consumes a comma, or the closing bracket.
func (s *scanJSON) separator(closing byte) (end bool, err error) {
	c, err := s.peek()
	if err != nil {
		return false, err
	}
	if c != ',' && c != closing {
		return false, s.unexpected()
	}
	s.at++
	return c == closing, nil
}

// value consumes a value.
func (s *scanJSON) value(depth int) (jsonValue, error) {
	c, err := s.peek()
	if err != nil {
		return nil, err
	}
	if depth++; depth > maxDepth {
		return nil, fmt.Errorf("invalid JSON: more than %d values within each other", maxDepth)
	}
	begin := s.at
	switch {
	case c == '"':
		err = s.string()
	case c == '{':
		err = s.members(depth, nil)
	case c == '[':
		err = s.elements(depth, nil)
	case c == '-' || '0' <= c && c <= '9':
		err = s.number()
	default:
		for _, word := range []string{"true", "false", "null"} {
			if bytes.HasPrefix(s.text[begin:], []byte(word)) {
				s.at += len(word)
				return s.text[begin:s.at], nil
			}
		}
		err = s.unexpected()
	}
	return s.text[begin:s.at], err
}

func (s *scanJSON) digits() error {
	begin := s.at
	for s.at < len(s.text) && '0' <= s.text[s.at] && s.text[s.at] <= '9' {
		s.at++
	}
	if s.at == begin {
		return s.unexpected()
	}
	return nil
}

func (s *scanJSON) is(list string) bool {
	return s.at < len(s.text) && bytes.IndexByte([]byte(list), s.text[s.at]) >= 0
}

func (s *scanJSON) number() error {
	if s.is("-") {
		s.at++
	}
	if s.is("0") {
		s.at++
	} else if err := s.digits(); err != nil {
		return err
	}
	if s.is(".") {
		s.at++
		if err := s.digits(); err != nil {
			return err
		}
	}
	if s.is("eE") {
		if s.at++; s.is("+-") {
			s.at++
		}
		return s.digits()
	}
	return nil
}

// string consumes a string.
func (s *scanJSON) string() error {
	text := s.text
	for s.at++; s.at < len(text); s.at++ {
		at := s.at
		for at < len(text) && inString[text[at]] {
			at++
		}
		if s.at = at; at == len(text) {
			break
		}
		switch c := text[at]; {
		case c == '"':
			s.at++
			return nil
		case c < ' ':
			return s.unexpected()
		default: // a backslash
			s.at++
			switch {
			case s.at == len(text) || text[s.at] != 'u' && escapes[text[s.at]] == 0:
				return s.unexpected()
			case text[s.at] == 'u':
				for range 4 {
					if s.at++; !s.is("0123456789abcdefABCDEF") {
						return s.unexpected()
					}
				}
			}
		}
	}
	return errEnd
}

// inString has the bytes that stand for themselves in a string.
var inString = func() (list [256]bool) {
	for c := range list {
		list[c] = c >= ' ' && c != '"' && c != '\\'
	}
	return list
}()

var escapes = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// unquote returns the text of a valid string: that of the line, or, of a string with escapes, appended
// to dst. Half of a surrogate pair becomes U+FFFD.
func unquote(dst, quoted []byte) []byte {
	text := quoted[1 : len(quoted)-1]
	if bytes.IndexByte(text, '\\') < 0 {
		return text
	}
	dst = slices.Grow(dst, len(text))
	unit := func(at int) rune { // of \uXXXX
		if at+6 > len(text) || text[at] != '\\' || text[at+1] != 'u' {
			return -1
		}
		n, err := strconv.ParseUint(string(text[at+2:at+6]), 16, 16)
		if err != nil {
			return -1
		}
		return rune(n)
	}
	for at := 0; at < len(text); {
		k := bytes.IndexByte(text[at:], '\\')
		if k < 0 {
			return append(dst, text[at:]...)
		}
		dst = append(dst, text[at:at+k]...)
		at += k
		if text[at+1] != 'u' {
			dst = append(dst, escapes[text[at+1]])
			at += 2
			continue
		}
		r := unit(at)
		at += 6
		if utf16.IsSurrogate(r) {
			if r = utf16.DecodeRune(r, unit(at)); r != utf8.RuneError {
				at += 6
			}
		}
		dst = utf8.AppendRune(dst, r)
	}
	return dst
}
