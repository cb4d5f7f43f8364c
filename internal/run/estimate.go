package run

import (
	"context"
	"errors"
	"time"

	"octet/backend"
	"octet/checkpoint"
	"octet/data"
	"octet/nn"
	"octet/recipe"
	"octet/train"
)

// The miniature that Estimate times is no larger than this, so that it takes a
// fraction of a second on a laptop, and no smaller than it must be, so that the
// update does not outweigh the products.
const (
	miniatureSeq    = 256
	miniatureTokens = 1024
	miniatureDim    = 512
)

// Estimate is roughly how long the rest of a run will take: the FLOPs of its
// steps and evaluations over the rate at which a miniature of it runs here, one
// layer on a few short sequences. It reads no data and touches no folder. An error
// is one that Start would report.
func Estimate(ctx context.Context, o Options) (d time.Duration, err error) {
	c := o.Config
	spec, err := backend.SpecOf(o.Backend)
	if err != nil {
		return 0, err
	}
	job, err := train.NewJob(c, spec)
	if err != nil {
		return 0, err
	}
	steps := c.Train.Steps
	if o.Resume {
		done, err := checkpoint.List((&Folder{Dir: o.Dir}).Checkpoints())
		if err != nil {
			return 0, err
		}
		if len(done) > 0 {
			steps -= done[0].Step
		}
	}
	evals := 1
	if c.Train.EvalEvery > 0 {
		evals += steps / c.Train.EvalEvery
	}
	// A validation token costs the forward pass, a third of a training token.
	tokens := float64(steps)*float64(job.TokensPerStep()) + float64(evals)*float64(c.Data.ValBytes)/3
	rate, err := miniatureRate(ctx, c, o)
	if err != nil {
		return 0, err
	}
	return seconds(tokens * job.FLOPsPerToken() / rate), nil
}

// seconds is a duration; one beyond what the type holds, 292 years, becomes
// half of that.
func seconds(s float64) time.Duration {
	return time.Duration(min(s*float64(time.Second), 1<<62))
}

// miniatureRate is the FLOP/s of a step of the miniature.
func miniatureRate(ctx context.Context, c train.Config, o Options) (rate float64, err error) {
	c.Model.Layers, c.Model.Vocab, c.Model.Init = 1, data.TextVocab, ""
	c.Precision.Schedule = nil
	// Exceptions by layer mean nothing to a model of one layer, and what they
	// leave to smooth may not be in it.
	c.Precision.Rows = nil
	if nn.Activation(c.Model.Activation) == nn.SmoothSwiGLU {
		c.Model.Activation, c.Precision.Smooth = string(nn.SwiGLU), recipe.NoSmooth.String()
	}
	if c.Model.Dim > miniatureDim {
		small := train.Default().Model
		c.Model.Dim, c.Model.Heads, c.Model.KVHeads, c.Model.FFN = small.Dim, small.Heads, small.KVHeads, small.FFN
	}
	if c.Data.Seq > miniatureSeq || c.Data.Seq%16 != 0 {
		c.Data.Seq = miniatureSeq
	}
	c.Train.MicroBatch = min(c.Train.MicroBatch, max(1, miniatureTokens/c.Data.Seq))
	c.Train.Accumulate, c.Train.Ranks = 1, 1
	devices, err := backend.Open(o.Backend, backend.Options{Threads: o.Threads})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, closeAll(devices)) }()
	job, err := train.NewJob(c, devices[0].Spec())
	if err != nil {
		return 0, err
	}
	text := make(data.Text, 4*c.Data.Seq)
	for i := range text {
		text[i] = byte(i * i / 7)
	}
	trainer, err := train.NewTrainer(job, &data.Corpus{Train: text}, devices)
	if err != nil {
		return 0, err
	}
	if err := trainer.Init(ctx); err != nil {
		return 0, err
	}
	// The first step also fills the histories and warms the caches.
	var last train.StepResult
	for range 2 {
		if last, err = trainer.Next(ctx); err != nil {
			return 0, err
		}
	}
	return float64(job.TokensPerStep()) * job.FLOPsPerToken() / last.Elapsed.Seconds(), nil
}

// closeAll closes backends and joins their errors.
func closeAll(devices []backend.Backend) error {
	var errs []error
	for _, d := range devices {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}
