package train

import (
	"errors"

	"octet/data"
)

// CheckCorpus returns an error if the configuration cannot train on, or evaluate, a corpus:
// data.attention = "document" needs to know where its documents end.
func (c Config) CheckCorpus(corpus *data.Corpus) error {
	if c.Data.Attention == AttendDocument && corpus.EndOfText < 0 {
		return errors.New(`data.attention = "document" needs to know which token ends a document, and shards without a tokenizer do not say; name their tokenizer with data.tokenizer, or use data.attention = "causal"`)
	}
	return nil
}
