package prepare

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"

	"octet/data"
)

// record is a line, a row or a file: the values of the kind's fields in order, or its messages.
type record struct {
	values   [3][]byte
	messages []message
	buffers  [3][]byte // of values with escapes
}

// forget drops buffers that a long document has made large.
func (r *record) forget() {
	for i := range r.buffers {
		if cap(r.buffers[i]) > keepBytes {
			r.buffers[i] = nil
		}
	}
}

func trimSpace(text []byte) []byte { return bytes.TrimSpace(text) }

// parseLine fills the record with a JSON line.
func (r *record) parseLine(line []byte, o *Options) error {
	fields := o.fields()
	var values [3]jsonValue
	err := object(line, func(key []byte, value jsonValue) error {
		for i, name := range fields {
			if string(key) == name {
				values[i] = value
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i, name := range fields {
		switch {
		case values[i] == nil:
			return missing(line, name, o.Kind)
		case o.Kind == data.KindMessages:
			return r.parseMessages(values[i], name)
		case values[i][0] != '"':
			return fmt.Errorf("the field %q is %s, not a string", name, values[i].kind())
		}
		r.values[i] = unquote(r.buffers[i][:0], values[i])
		if len(r.values[i]) < len(values[i])-2 { // it had escapes
			r.buffers[i] = r.values[i]
		}
	}
	return nil
}

// missing returns the error for a line without a field.
func missing(line []byte, name, kind string) error {
	var there []string
	if err := object(line, func(key []byte, _ jsonValue) error {
		if len(there) < 20 {
			there = append(there, fmt.Sprintf("%.80q", key))
		}
		return nil
	}); err != nil {
		return err
	}
	return missingField(name, kind, there)
}

// missingField returns the error for a record or a table whose fields are there.
func missingField(name, kind string, there []string) error {
	hint := ""
	if kind == data.KindDocuments || kind == data.KindMessages {
		hint = "; name another with --field"
	}
	if len(there) == 0 {
		return fmt.Errorf("there is no field %q, and no other", name)
	}
	return fmt.Errorf("there is no field %q, but %s%s", name, strings.Join(there, ", "), hint)
}

// parseMessages fills the messages with an array of objects with role and content.
func (r *record) parseMessages(value jsonValue, name string) error {
	if value[0] != '[' {
		return fmt.Errorf("the field %q is %s, not an array of messages", name, value.kind())
	}
	r.messages = r.messages[:0]
	s := scanJSON{text: value}
	err := s.elements(0, func(value jsonValue) error {
		var m message
		place := fmt.Sprintf("message %d of %q", len(r.messages)+1, name)
		if value[0] != '{' {
			return fmt.Errorf("%s is %s, not an object", place, value.kind())
		}
		inner := scanJSON{text: value}
		var found [2]jsonValue
		if err := inner.members(0, func(key []byte, value jsonValue) error {
			switch string(key) {
			case "role":
				found[0] = value
			case "content":
				found[1] = value
			}
			return nil
		}); err != nil {
			return err
		}
		for i, key := range []string{"role", "content"} {
			switch {
			case found[i] == nil:
				return fmt.Errorf("%s has no %q", place, key)
			case found[i][0] != '"':
				return fmt.Errorf("%s has a %q that is %s, not a string", place, key, found[i].kind())
			}
		}
		m.role, m.content = unquote(nil, found[0]), unquote(nil, found[1])
		r.messages = append(r.messages, m)
		return nil
	})
	if err != nil {
		return err
	}
	return checkMessages(r.messages)
}

// hash returns the number that decides on which side a record is. The documents of a preference are on
// the side of their prompt.
func (r *record) hash(kind string) uint64 {
	if kind == data.KindDocuments { // the common case, without copies
		sum := sha256.Sum256(r.values[0])
		return binary.BigEndian.Uint64(sum[:])
	}
	parts := r.values[:2]
	switch kind {
	case data.KindPreference:
		parts = r.values[:1]
	case data.KindMessages:
		parts = nil
		for _, m := range r.messages {
			parts = append(parts, m.role, m.content)
		}
	}
	h := sha256.New()
	for _, p := range parts {
		h.Write(p)
	}
	return binary.BigEndian.Uint64(h.Sum(nil))
}

// heldOut reports whether a record with a hash is held out.
func heldOut(hash uint64, val float64) bool { return float64(hash>>11) < val*(1<<53) }

// empty reports whether a record has no text.
func (r *record) empty(kind string) bool {
	return kind == data.KindDocuments && len(r.values[0]) == 0
}
