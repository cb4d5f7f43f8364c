package data

import (
	"math"

	"octet/tokenizer"
)

// BitsPerByte converts a mean loss in nats per token, over the targets of a stream that count (see
// Sweep), to bits per byte of their text, by which models with different tokenizers compare. The bytes are
// those that the tokens decode to; the end of text has none, but in text of bytes, where it is one.
// A stream without text gives NaN.
func BitsPerByte(loss float64, t Tokens, tok *tokenizer.Bundle) (float64, error) {
	ids := make([]int32, min(1<<16, t.Len()))
	mask, _ := t.(masked)
	bytes, targets := 0, 0
	for at := int64(1); at < t.Len(); at += int64(len(ids)) {
		ids = ids[:min(int64(len(ids)), t.Len()-at)]
		if err := t.ReadTokens(ids, at); err != nil {
			return 0, err
		}
		if mask != nil {
			if err := mask.ignore(ids, at); err != nil {
				return 0, err
			}
		}
		for _, id := range ids {
			if id != IgnoreTarget {
				bytes += len(tok.Text(id))
				targets++
			}
		}
	}
	if bytes == 0 {
		return math.NaN(), nil
	}
	return loss * float64(targets) / float64(bytes) / math.Ln2, nil
}
