package train

import (
	"errors"

	"octet/data"
)

// CheckCorpus returns an error if the configuration cannot train on, or evaluate, a corpus:
// data.attention = "document" needs to know where its documents end, and
// train.objective = "dpo" needs pairs.
func (c Config) CheckCorpus(corpus *data.Corpus) error {
	if c.Data.Attention == AttendDocument && corpus.EndOfText < 0 {
		return errors.New(`data.attention = "document" needs the token that ends a document, which shards without a tokenizer do not record; name their tokenizer with data.tokenizer, or use data.attention = "causal"`)
	}
	if c.Data.Attention == AttendDocument && corpus.EndInside {
		return errors.New(`data.attention = "document" needs a token that only ends documents, but this data has its end of text inside documents, too, as after each turn of a conversation; prepare it with another --eos, such as '<|endoftext|>', or use data.attention = "causal"`)
	}
	if corpus.Documents == data.KindPreference && c.Train.Objective != ObjectiveDPO {
		return errors.New(`the data has pairs of a chosen and a rejected answer, which only train.objective = "dpo" tells apart; use that, or prepare the chosen answers with octet data prepare --kind completion`)
	}
	if c.Train.Objective == ObjectiveDPO && corpus.Documents != data.KindPreference {
		return errors.New(`train.objective = "dpo" needs pairs of a chosen and a rejected answer; prepare them with octet data prepare --kind preference, and name that folder in data.paths`)
	}
	return nil
}

// Answers reports whether only targets outside prompts count: see [data.Options].
func (c Config) Answers() bool {
	return c.Data.Loss == LossAnswers || c.Train.Objective == ObjectiveDPO
}
