package safetensors

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"unicode/utf8"
)

// parseHeader checks a header against the number of data bytes that follow it.
// It returns the tensors in the order of their offsets, relative to the start
// of the data, and the metadata.
func parseHeader(header []byte, dataSize int64) ([]Tensor, map[string]string, error) {
	if len(header) == 0 || header[0] != '{' {
		return nil, nil, errors.New("header: does not start with {")
	}
	if !utf8.Valid(header) {
		return nil, nil, errors.New("header: not valid UTF-8")
	}
	p := headerParser{dec: json.NewDecoder(bytes.NewReader(header))}
	p.dec.UseNumber()
	if err := p.header(); err != nil {
		return nil, nil, fmt.Errorf("header: %w", err)
	}
	if rest := header[p.dec.InputOffset():]; len(bytes.Trim(rest, " \t\r\n")) > 0 {
		return nil, nil, fmt.Errorf("header: trailing data after the closing brace at byte %d", p.dec.InputOffset())
	}
	slices.SortFunc(p.tensors, func(a, b Tensor) int {
		// An empty tensor has the same offset as its successor.
		return cmp.Or(cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.Size, b.Size), cmp.Compare(a.Name, b.Name))
	})
	end := int64(0)
	for _, t := range p.tensors {
		switch {
		case t.Offset < end:
			return nil, nil, fmt.Errorf("tensor %s overlaps the previous tensor: starts at data byte %d, expected %d", quote(t.Name), t.Offset, end)
		case t.Offset > end:
			return nil, nil, fmt.Errorf("gap before tensor %s: starts at data byte %d, expected %d", quote(t.Name), t.Offset, end)
		case t.Size > dataSize-t.Offset:
			return nil, nil, fmt.Errorf("file is truncated: tensor %s ends at data byte %d, but the file has %d", quote(t.Name), t.Offset+t.Size, dataSize)
		}
		end += t.Size
	}
	if end != dataSize {
		return nil, nil, fmt.Errorf("%d bytes at the end belong to no tensor", dataSize-end)
	}
	return p.tensors, p.metadata, nil
}

// headerParser parses the header token by token. json.Unmarshal would silently
// accept duplicate keys, unknown keys and keys of different case.
type headerParser struct {
	dec      *json.Decoder
	tensors  []Tensor
	metadata map[string]string
}

func (p *headerParser) header() error {
	if err := p.delim('{'); err != nil {
		return err
	}
	seen := map[string]bool{}
	for p.dec.More() {
		name, err := p.str()
		if err != nil {
			return err
		}
		if seen[name] {
			return fmt.Errorf("the name %s appears twice", quote(name))
		}
		seen[name] = true
		if name == metadataKey {
			if p.metadata, err = p.stringMap(); err != nil {
				return fmt.Errorf("%s: %w", metadataKey, err)
			}
			continue
		}
		t, err := p.tensor()
		if err != nil {
			return fmt.Errorf("tensor %s: %w", quote(name), err)
		}
		t.Name = name
		p.tensors = append(p.tensors, t)
	}
	return p.delim('}')
}

func (p *headerParser) tensor() (t Tensor, err error) {
	if err := p.delim('{'); err != nil {
		return t, err
	}
	dtype := -1
	var offsets []int64
	for p.dec.More() {
		key, err := p.str()
		if err != nil {
			return t, err
		}
		switch {
		case key == "dtype" && dtype < 0:
			name, err := p.str()
			if err != nil {
				return t, fmt.Errorf("dtype: %w", err)
			}
			if dtype = dtypeIndex(name); dtype < 0 {
				return t, fmt.Errorf("unknown dtype %s", quote(name))
			}
		case key == "shape" && t.Shape == nil:
			if t.Shape, err = p.ints(maxDims); err != nil {
				return t, fmt.Errorf("shape: %w", err)
			}
		case key == "data_offsets" && offsets == nil:
			if offsets, err = p.ints(2); err != nil {
				return t, fmt.Errorf("data_offsets: %w", err)
			}
		case key == "dtype", key == "shape", key == "data_offsets":
			return t, fmt.Errorf("the key %s appears twice", quote(key))
		default:
			return t, fmt.Errorf("unknown key %s", quote(key))
		}
	}
	if err := p.delim('}'); err != nil {
		return t, err
	}
	if dtype < 0 || t.Shape == nil || offsets == nil {
		return t, errors.New("dtype, shape and data_offsets are all required")
	}
	t.DType = dtypes[dtype].name
	if t.Size, err = byteSize(dtype, t.Shape); err != nil {
		return t, err
	}
	if len(offsets) != 2 || offsets[0] < 0 || offsets[1] < offsets[0] {
		return t, fmt.Errorf("data_offsets %s: expected [begin, end]", shapeString(offsets))
	}
	if got := offsets[1] - offsets[0]; got != t.Size {
		return t, fmt.Errorf("%s %s has %d bytes, but its data_offsets %s span %d", t.DType, shapeString(t.Shape), t.Size, shapeString(offsets), got)
	}
	t.Offset = offsets[0]
	return t, nil
}

func (p *headerParser) stringMap() (map[string]string, error) {
	if err := p.delim('{'); err != nil {
		return nil, err
	}
	m := map[string]string{}
	for p.dec.More() {
		key, err := p.str()
		if err != nil {
			return nil, err
		}
		if _, ok := m[key]; ok {
			return nil, fmt.Errorf("the key %s appears twice", quote(key))
		}
		if m[key], err = p.str(); err != nil {
			return nil, fmt.Errorf("%s: %w", quote(key), err)
		}
	}
	return m, p.delim('}')
}

// maxDims is the maximum number of dimensions of a shape: NumPy's limit, the largest
// among the libraries that write such files. Parsing a number allocates many times the
// length of its digits, so the header parser bounds lists of numbers.
const maxDims = 64

// ints reads a list of at most limit integers. The slice is non-nil even if empty.
func (p *headerParser) ints(limit int) ([]int64, error) {
	if err := p.delim('['); err != nil {
		return nil, err
	}
	list := []int64{}
	for p.dec.More() {
		token, err := p.token()
		if err != nil {
			return nil, err
		}
		number, ok := token.(json.Number)
		if !ok {
			return nil, p.expected("an integer", token)
		}
		n, err := strconv.ParseInt(number.String(), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("expected an integer of at most 64 bits, got %s", quote(number.String()))
		}
		if len(list) == limit {
			return nil, fmt.Errorf("more than %d numbers", limit)
		}
		list = append(list, n)
	}
	return list, p.delim(']')
}

func (p *headerParser) str() (string, error) {
	token, err := p.token()
	if err != nil {
		return "", err
	}
	s, ok := token.(string)
	if !ok {
		return "", p.expected("a string", token)
	}
	return s, nil
}

func (p *headerParser) delim(want json.Delim) error {
	token, err := p.token()
	if err != nil {
		return err
	}
	if token != want {
		return p.expected(want.String(), token)
	}
	return nil
}

func (p *headerParser) token() (json.Token, error) {
	token, err := p.dec.Token()
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, fmt.Errorf("JSON: %w", err)
	}
	return token, nil
}

func (p *headerParser) expected(want string, got json.Token) error {
	return fmt.Errorf("expected %s, got %s near byte %d", want, quote(fmt.Sprint(got)), p.dec.InputOffset())
}
