package tokenizer

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// piece is a token of a SentencePiece model.
type piece struct {
	text  string
	score float32
	kind  uint64
}

// Kinds of pieces and of models, as sentencepiece_model.proto numbers them.
const (
	pieceNormal, pieceUnknown, pieceControl, pieceUser, pieceUnused, pieceByte = 1, 2, 3, 4, 5, 6

	modelBPE = 2
)

// sentencePiece is a model file: the fields that encoding depends on.
type sentencePiece struct {
	pieces     []piece
	kind       uint64 // of the model
	fallback   bool
	normalizer string
	charsmap   []byte
	dummy      bool // a space precedes the text
	collapse   bool // runs of spaces become one
	escape     bool // spaces become ▁
}

// ParseSentencePiece reads a .model file of SentencePiece, a BPE model.
func ParseSentencePiece(raw []byte) (*Tokenizer, error) {
	m := sentencePiece{kind: 1, dummy: true, collapse: true, escape: true}
	if err := m.parse(raw); err != nil {
		return nil, err
	}
	switch {
	case len(m.pieces) == 0:
		return nil, errors.New("the model has no pieces")
	case m.kind != modelBPE:
		return nil, fmt.Errorf("trainer_spec.model_type %d: octet reads BPE, %d", m.kind, modelBPE)
	case len(m.charsmap) > 0:
		return nil, fmt.Errorf("normalizer_spec.name %q: octet reads models that do not normalize (identity)", m.normalizer)
	case m.collapse:
		return nil, errors.New("normalizer_spec.remove_extra_whitespaces is true: octet reads models that keep spaces")
	case !m.escape:
		return nil, errors.New("normalizer_spec.escape_whitespaces is false: octet reads models with ▁ for a space")
	}
	t := &Tokenizer{unknown: -1, fallback: m.fallback, fuseUnknown: true, runeIDs: map[rune]int32{}, ids: map[string]int32{}}
	if m.dummy {
		t.normalizers, t.stripStart = append(t.normalizers, normalizer{prepend: string(metaspace)}), 1
	}
	t.normalizers = append(t.normalizers, normalizer{replace: " ", with: string(metaspace)})
	for id, p := range m.pieces {
		t.tokens = append(t.tokens, spaced(p.text))
		switch p.kind {
		case pieceNormal, pieceByte:
			if _, twice := t.ids[p.text]; twice {
				return nil, fmt.Errorf("pieces[%d]: %q is there twice", id, p.text)
			}
			t.ids[p.text] = int32(id)
		case pieceUnknown:
			t.unknown = int32(id)
		case pieceControl, pieceUser:
			if p.text == "" {
				return nil, fmt.Errorf("pieces[%d] is empty", id)
			}
			t.added = append(t.added, addedToken{id: int32(id), content: p.text, special: p.kind == pieceControl})
		case pieceUnused:
		default:
			return nil, fmt.Errorf("pieces[%d]: type %d: octet knows 1 to 6", id, p.kind)
		}
	}
	if err := t.readCodePoints(); err != nil {
		return nil, err
	}
	ranks := m.ranks()
	t.anySplit(func(id int32) (string, int32, bool) {
		p := m.pieces[id]
		return p.text, ranks[id], p.kind == pieceNormal
	})
	t.finish()
	return t, nil
}

// ranks returns the rank of each piece: the higher its score, the lower; equal scores have one rank.
func (m *sentencePiece) ranks() []int32 {
	order := make([]int, len(m.pieces))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(m.pieces[b].score, m.pieces[a].score) })
	ranks, rank := make([]int32, len(order)), int32(0)
	for i, id := range order {
		if i > 0 && m.pieces[id].score != m.pieces[order[i-1]].score {
			rank = int32(i)
		}
		ranks[id] = rank
	}
	return ranks
}

// fields calls visit for each field of a message, with its number and its value: a varint or 32 bits in
// number, bytes in value.
func fields(message []byte, visit func(field protowire.Number, number uint64, value []byte) error) error {
	for len(message) > 0 {
		field, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return fmt.Errorf("neither a tokenizer.json, a rank file of tiktoken nor a SentencePiece model: %w", protowire.ParseError(n))
		}
		message = message[n:]
		var number uint64
		var value []byte
		switch kind {
		case protowire.VarintType:
			number, n = protowire.ConsumeVarint(message)
		case protowire.Fixed32Type:
			var x uint32
			x, n = protowire.ConsumeFixed32(message)
			number = uint64(x)
		case protowire.BytesType:
			value, n = protowire.ConsumeBytes(message)
		default:
			n = protowire.ConsumeFieldValue(field, kind, message)
		}
		if n < 0 {
			return fmt.Errorf("neither a tokenizer.json, a rank file of tiktoken nor a SentencePiece model: %w", protowire.ParseError(n))
		}
		message = message[n:]
		if err := visit(field, number, value); err != nil {
			return err
		}
	}
	return nil
}

func (m *sentencePiece) parse(raw []byte) error {
	return fields(raw, func(field protowire.Number, _ uint64, value []byte) error {
		switch field {
		case 1:
			p := piece{kind: pieceNormal}
			err := fields(value, func(field protowire.Number, number uint64, value []byte) error {
				switch field {
				case 1:
					p.text = string(value)
				case 2:
					p.score = math.Float32frombits(uint32(number))
				case 3:
					p.kind = number
				}
				return nil
			})
			if len(m.pieces) == maxID {
				return fmt.Errorf("more than %d pieces", maxID)
			}
			m.pieces = append(m.pieces, p)
			return err
		case 2: // trainer_spec
			return fields(value, func(field protowire.Number, number uint64, _ []byte) error {
				switch field {
				case 3:
					m.kind = number
				case 35:
					m.fallback = number != 0
				}
				return nil
			})
		case 3: // normalizer_spec
			return fields(value, func(field protowire.Number, number uint64, value []byte) error {
				switch field {
				case 1:
					m.normalizer = string(value)
				case 2:
					m.charsmap = value
				case 3:
					m.dummy = number != 0
				case 4:
					m.collapse = number != 0
				case 5:
					m.escape = number != 0
				}
				return nil
			})
		}
		return nil
	})
}
