package npy

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// parseHeader reads a header, a Python dictionary of three entries in any order:
//
//	{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
func parseHeader(text string) (a Array, err error) {
	h := header{rest: text}
	seen := map[string]bool{}
	h.expect("{")
	for h.err == nil && !h.skip("}") {
		key := h.quoted()
		h.expect(":")
		if seen[key] {
			h.fail("the key '%s' appears twice", key)
		}
		seen[key] = true
		switch key {
		case "descr":
			a.DType = h.dtype()
		case "fortran_order":
			h.order()
		case "shape":
			a.Shape = h.shape()
		default:
			h.fail("unknown key '%.40s'", key)
		}
		if !h.skip(",") {
			h.expect("}")
			break
		}
	}
	switch {
	case h.err != nil:
		return Array{}, h.err
	case strings.TrimSpace(h.rest) != "":
		return Array{}, fmt.Errorf("text follows the dictionary: %.40q", h.rest)
	case len(seen) != 3:
		return Array{}, errors.New("descr, fortran_order and shape are all required")
	}
	return a, nil
}

// header is the part of a header that is not read yet, and the first error.
type header struct {
	rest string
	err  error
}

func (h *header) fail(format string, args ...any) {
	if h.err == nil {
		h.err = fmt.Errorf(format, args...)
	}
}

// skip reports whether the next token is token, and skips it.
func (h *header) skip(token string) bool {
	rest, ok := strings.CutPrefix(strings.TrimLeft(h.rest, " \t\r\n"), token)
	if ok {
		h.rest = rest
	}
	return ok
}

func (h *header) expect(token string) {
	if !h.skip(token) {
		h.fail("expected %s before %.40q", token, h.rest)
	}
}

// quoted reads a string without escapes.
func (h *header) quoted() string {
	for _, quote := range []string{"'", `"`} {
		if !h.skip(quote) {
			continue
		}
		text, rest, ok := strings.Cut(h.rest, quote)
		if !ok {
			break
		}
		h.rest = rest
		return text
	}
	h.fail("expected a string before %.40q", h.rest)
	return ""
}

func (h *header) dtype() DType {
	if h.skip("[") {
		h.fail("descr is a list of fields: only arrays of numbers are supported (store one field, such as x['name'])")
		return ""
	}
	descr := h.quoted()
	for _, f := range formats {
		if descr == f.descr || f.size == 1 && len(descr) == 3 && strings.ContainsAny(descr[:1], "<>=|") && descr[1:] == f.descr[1:] {
			return f.dtype
		}
	}
	hint := ""
	if strings.HasPrefix(descr, ">") {
		hint = ", which is big-endian"
	}
	h.fail("descr is '%.40s'%s: only float16, float32, float64, int8, uint8 and int32 in little-endian order are supported (convert it, such as x.astype('<f4'))", descr, hint)
	return ""
}

func (h *header) order() {
	switch {
	case h.skip("True"):
		h.fail("fortran_order is True: the array is column-major (store numpy.ascontiguousarray(x))")
	case !h.skip("False"):
		h.fail("fortran_order: expected True or False before %.40q", h.rest)
	}
}

// shape reads a tuple of integers. (3) is a number in Python and no tuple.
func (h *header) shape() []int {
	shape := []int{}
	h.expect("(")
	for h.err == nil && !h.skip(")") {
		digits := strings.TrimLeft(h.rest, " \t\r\n")
		end := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' })
		if end < 0 {
			end = len(digits)
		}
		n, err := strconv.Atoi(digits[:end])
		if err != nil || len(shape) == maxDims {
			h.fail("shape: expected at most %d integers before %.40q", maxDims, digits)
			break
		}
		shape, h.rest = append(shape, n), digits[end:]
		if !h.skip(",") {
			if len(shape) == 1 {
				h.fail("shape: expected a tuple, such as (%d,)", n)
			}
			h.expect(")")
			break
		}
	}
	return shape
}
