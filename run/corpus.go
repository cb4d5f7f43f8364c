package run

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"octet/data"
	"octet/tokenizer"
	"octet/train"
)

// OpenCorpus opens the config's data.paths or, if there are none, the source of the Go
// installation, or Octet's own source without a Go installation. note names the source that
// was chosen; it is empty for data.paths. sources, Octet's own source, may be nil.
func OpenCorpus(ctx context.Context, c train.Config, sources fs.FS) (corpus *data.Corpus, note string, err error) {
	if corpus, note, err = chooseCorpus(ctx, c, sources); err != nil {
		return corpus, note, err
	}
	if err := c.CheckCorpus(corpus); err != nil {
		return nil, "", errors.Join(err, corpus.Close())
	}
	return corpus, note, nil
}

// chooseCorpus is OpenCorpus without the check that the config can train on the corpus.
func chooseCorpus(ctx context.Context, c train.Config, sources fs.FS) (corpus *data.Corpus, note string, err error) {
	o := data.Options{ValBytes: c.Data.ValBytes, Vocab: c.Model.Vocab, Tokenizer: c.Data.Tokenizer, Answers: c.Answers()}
	if len(c.Data.Sources) > 0 {
		corpus, err = within(ctx, func() (*data.Corpus, error) { return data.OpenSources(c.Data.DataSources(), o) })
		return corpus, "", err
	}
	if len(c.Data.Paths) > 0 {
		corpus, err = within(ctx, func() (*data.Corpus, error) { return data.OpenFiles(c.Data.Paths, o) })
		return corpus, "", err
	}
	if c.Data.Loss == train.LossAnswers {
		return nil, "", errors.New("data.loss=answers needs data with prompts: name a folder that octet data prepare wrote in data.paths")
	}
	if c.Data.Tokenizer != "" {
		return nil, "", errors.New("data.tokenizer is for the shards of data.paths, but there are none")
	}
	root, version, err := data.FindGoRoot(ctx)
	if errors.Is(err, data.ErrNoGo) {
		if sources == nil {
			return nil, "", fmt.Errorf("%w, and data.paths is empty: name a text to train on", err)
		}
		corpus, err = data.OpenEmbedded(sources, o)
		return corpus, "octet's own source: no Go installation found", err
	}
	if err != nil {
		return nil, "", err
	}
	corpus, err = data.OpenGoSource(root, version, o)
	return corpus, fmt.Sprintf("the source of %s in %s", version, root), err
}

// within calls open, which may read for an hour, and returns as soon as ctx is done.
func within(ctx context.Context, open func() (*data.Corpus, error)) (*data.Corpus, error) {
	type result struct {
		corpus *data.Corpus
		err    error
	}
	opened := make(chan result, 1)
	go func() {
		corpus, err := open()
		opened <- result{corpus, err}
	}()
	select {
	case r := <-opened:
		return r.corpus, r.err
	case <-ctx.Done():
		go func() {
			if r := <-opened; r.corpus != nil {
				_ = r.corpus.Close() // it was only read
			}
		}()
		return nil, ctx.Err()
	}
}

// Passes returns how often the whole run reads its text.
func (r *Run) Passes() float64 {
	n := float64(r.Config.Train.Steps) * float64(r.Trainer.TokensPerStep())
	if pairs, _ := r.Trainer.Pairs(); pairs > 0 {
		return n / float64(2*r.Config.Data.Seq) / float64(pairs)
	}
	return n / float64(r.Corpus.Info.TrainTokens)
}

// measureRows sets Lengths for rows of whole documents. It returns an error if no target counts.
func (r *Run) measureRows() error {
	if r.Config.Data.Packing != train.PackDocuments || r.rank() > 0 {
		return nil
	}
	lengths, _, err := r.Corpus.Lengths(r.Config.Data.Seq)
	if err == nil && lengths.Silent == lengths.Documents {
		err = fmt.Errorf("no document has a token of an answer within data.seq = %d, since prompts fill the rows: raise data.seq", r.Config.Data.Seq)
	}
	r.Lengths = lengths
	return err
}

// checkInitTokenizer returns an error if the initial weights have another tokenizer than the data: the
// same ids would be other tokens. A tokenizer that adds tokens to that of the weights passes.
func (r *Run) checkInitTokenizer() error {
	dir, tok := r.Config.Model.Init, r.Corpus.Tokenizer
	if tok == nil || !tokenizer.In(dir) {
		return nil
	}
	of, err := tokenizer.OpenBundle(dir)
	if err != nil {
		return fmt.Errorf("model.init: %w", err)
	}
	if id, differs := of.Differs(tok); differs {
		return fmt.Errorf("model.init: %s has another tokenizer than the data: id %d is %q there and %q here; prepare the data with --tokenizer %s", dir, id, of.Text(id), tok.Text(id), dir)
	}
	return nil
}
