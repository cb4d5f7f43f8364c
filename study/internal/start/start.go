// Package start prepares an experiment that trains: the Go distribution's source as
// text, and a trainer at step 0.
package start

import (
	"context"
	"errors"

	"octet/backend"
	_ "octet/backend/emu" // experiments run on it
	"octet/data"
	"octet/train"
)

// Corpus opens the source of the installed Go distribution and returns its version.
func Corpus(ctx context.Context, valBytes int64) (*data.Corpus, string, error) {
	root, version, err := data.FindGoRoot(ctx)
	if err != nil {
		return nil, "", err
	}
	corpus, err := data.OpenGoSource(root, version, data.Options{ValBytes: valBytes})
	return corpus, version, err
}

// Trainer returns a trainer on a backend with this many threads, with the weights that
// the config names, and a function that closes the device.
func Trainer(ctx context.Context, c train.Config, device string, threads int, corpus *data.Corpus) (*train.Trainer, func() error, error) {
	return Edited(ctx, c, device, threads, corpus, nil)
}

// Edited is Trainer with programs that edit changes before they are loaded; nil changes
// none.
func Edited(ctx context.Context, c train.Config, device string, threads int, corpus *data.Corpus, edit func(*train.Job) error) (*train.Trainer, func() error, error) {
	d, err := backend.Open(device, backend.Options{Threads: threads})
	if err != nil {
		return nil, nil, err
	}
	t, err := newTrainer(ctx, c, d, corpus, edit)
	if err != nil {
		return nil, nil, errors.Join(err, d.Close())
	}
	return t, d.Close, nil
}

func newTrainer(ctx context.Context, c train.Config, d backend.Backend, corpus *data.Corpus, edit func(*train.Job) error) (*train.Trainer, error) {
	job, err := train.NewJob(c, d.Spec())
	if err != nil {
		return nil, err
	}
	if edit != nil {
		if err := edit(job); err != nil {
			return nil, err
		}
	}
	t, err := train.NewTrainer(job, corpus, d, nil)
	if err != nil {
		return nil, err
	}
	if c.Model.Init != "" {
		return t, t.InitFrom(ctx, c.Model.Init)
	}
	return t, t.Init(ctx)
}
