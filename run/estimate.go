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

// Upper bounds of the miniature model that estimate times: small enough for a fraction of a
// second on a laptop, large enough for the GEMMs to outweigh the optimizer's update.
const (
	miniatureSeq    = 256
	miniatureTokens = 1024
	miniatureDim    = 512
)

// estimate returns roughly how long the rest of the run will take: the FLOPs of its steps
// and evaluations over the FLOP/s of a miniature, one layer on a few short sequences. ok is
// false on an accelerator: launches dominate a miniature there, its kernels compile for
// seconds, and the first steps soon show the pace.
func (r *Run) estimate(ctx context.Context, job *train.Job) (d time.Duration, ok bool, err error) {
	if !job.Device.HostMemory {
		return 0, false, nil
	}
	steps := r.Config.Train.Steps
	if r.WasResumed {
		done, err := checkpoint.List(r.folder.checkpoints())
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
	evaluated := 0.0 // number of tokens
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

// seconds converts to a Duration. A value that a Duration cannot hold (292 years) becomes
// half of the maximum.
func seconds(s float64) time.Duration {
	return time.Duration(min(s*float64(time.Second), 1<<62))
}

// miniatureRate returns the FLOP/s of a step of the miniature.
func (r *Run) miniatureRate(ctx context.Context) (rate float64, err error) {
	c := r.Config
	c.Model.Layers, c.Model.Vocab, c.Model.Init = 1, data.TextVocab, ""
	c.Precision.Schedule = nil
	// A model of one layer has no use for exceptions by layer, and may lack the layers that
	// they leave to Smooth-SwiGLU.
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
