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

// The miniature that estimate times is no larger than this, so that it takes a
// fraction of a second on a laptop, and no smaller than it must be, so that the
// update does not outweigh the products.
const (
	miniatureSeq    = 256
	miniatureTokens = 1024
	miniatureDim    = 512
)

// estimate is roughly how long the rest of the run will take: the FLOPs of its
// steps and evaluations over the rate at which a miniature of it runs here, one
// layer on a few short sequences. ok is false where that would tell nothing: to an
// accelerator a miniature is idleness between launches, and its kernels are
// compiled for seconds first. There the pace of the first steps is soon known.
func (r *Run) estimate(ctx context.Context, job *train.Job) (d time.Duration, ok bool, err error) {
	if !job.Device.HostMemory {
		return 0, false, nil
	}
	steps := r.Config.Train.Steps
	if r.WasResumed {
		done, err := checkpoint.List(r.Folder.Checkpoints())
		if err != nil {
			return 0, false, err
		}
		if len(done) > 0 {
			steps = max(0, steps-done[0].Step)
		}
	}
	if steps == 0 {
		return 0, false, nil
	}
	evaluated := 0.0 // tokens
	if r.hasValidation() {
		evaluated = float64(r.Corpus.Val.Len())
		if every := r.Config.Train.EvalEvery; every > 0 {
			evaluated *= float64(1 + steps/every)
		}
	}
	// A validation token costs the forward pass, a third of a training token.
	tokens := float64(steps)*float64(job.TokensPerStep()) + evaluated/3
	rate, err := r.miniatureRate(ctx)
	if err != nil {
		return 0, false, err
	}
	return seconds(tokens * job.FLOPsPerToken() / rate), true, nil
}

// seconds is a duration; one beyond what the type holds, 292 years, becomes
// half of that.
func seconds(s float64) time.Duration {
	return time.Duration(min(s*float64(time.Second), 1<<62))
}

// miniatureRate is the FLOP/s of a step of the miniature.
func (r *Run) miniatureRate(ctx context.Context) (rate float64, err error) {
	c := r.Config
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
	devices, err := backend.Open(r.backend, backend.Options{Threads: r.options.Threads})
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
