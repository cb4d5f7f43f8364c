package data

import "fmt"

// Tokens is a stream of token ids with random access. Implementations are safe
// for concurrent use.
type Tokens interface {
	// Len returns the number of tokens.
	Len() int64
	// ReadTokens fills dst with the tokens [at, at+len(dst)). A range outside the
	// stream is an error.
	ReadTokens(dst []int32, at int64) error
}

// Text is a stream whose tokens are bytes.
type Text []byte

// Len returns the number of bytes.
func (t Text) Len() int64 { return int64(len(t)) }

// ReadTokens implements Tokens.
func (t Text) ReadTokens(dst []int32, at int64) error {
	if err := checkRange(t.Len(), at, len(dst)); err != nil {
		return err
	}
	for i, b := range t[at : at+int64(len(dst))] {
		dst[i] = int32(b)
	}
	return nil
}

func checkRange(length, at int64, count int) error {
	if at < 0 || at > length-int64(count) {
		return fmt.Errorf("data: %d tokens at %d are outside the stream, which has %d", count, at, length)
	}
	return nil
}
