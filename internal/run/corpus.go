package run

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"octet/data"
	"octet/train"
)

// OpenCorpus opens what the config names, or the embedded default: the Go
// installation's source, or octet's own without one. note says which, where
// nobody named it.
func OpenCorpus(ctx context.Context, c train.Config, sources fs.FS) (corpus *data.Corpus, note string, err error) {
	o := data.Options{ValBytes: c.Data.ValBytes, Vocab: c.Model.Vocab}
	if len(c.Data.Paths) > 0 {
		corpus, err = openFiles(ctx, c.Data.Paths, o)
		return corpus, "", err
	}
	root, version, err := data.FindGoRoot(ctx)
	if errors.Is(err, data.ErrNoGo) {
		corpus, err = data.OpenEmbedded(sources, o)
		return corpus, "no Go installation found: training on octet's own source", err
	}
	if err != nil {
		return nil, "", err
	}
	corpus, err = data.OpenGoSource(root, version, o)
	return corpus, fmt.Sprintf("the source of %s in %s", version, root), err
}

// openFiles is data.OpenFiles, which reads for an hour where the text is a terabyte, and
// returns at once when ctx is done.
func openFiles(ctx context.Context, paths []string, o data.Options) (*data.Corpus, error) {
	type result struct {
		corpus *data.Corpus
		err    error
	}
	opened := make(chan result, 1)
	go func() {
		corpus, err := data.OpenFiles(paths, o)
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
