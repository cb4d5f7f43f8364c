package run

import (
	"slices"
	"time"

	"octet/internal/exporter"
	"octet/internal/writers"
	"octet/train"
)

// published holds the exporter's values that do not come from the last step alone.
type published struct {
	valLoss *writers.Float  // of the last evaluation
	skipped int             // updates skipped by this process
	health  writers.Metrics // of the last measured step
	at      time.Time       // end of the last step
	step    time.Duration   // duration of the last step
	longest time.Duration   // longest time between two steps of this process
}

const (
	// A run counts as hung when a step takes hangFactor times as long as the longest step so
	// far, and at least minHang.
	hangFactor = 10
	minHang    = time.Minute
	// checkpointRate is the lowest rate at which a file system should write a checkpoint, in
	// bytes per second.
	checkpointRate = 100e6
)

// stepTimeout returns how long the next step may take before the run counts as hung. It
// adds time for an evaluation, a checkpoint or another recipe's programs that come with the
// step, since no earlier step may have had them.
func (r *Run) stepTimeout() time.Duration {
	c, done := r.Config, r.Trainer.StepsDone()
	timeout := max(minHang, hangFactor*r.published.longest)
	due := r.due(done + 1)
	if due.evaluation {
		// An evaluation batch takes less than a micro-batch of a step.
		batch := r.published.step.Seconds() / float64(c.Train.Accumulate)
		_, pairs := r.Trainer.Pairs()
		batches := max(r.Corpus.Info.ValTokens/int64(c.Data.Seq), 2*pairs)/int64(c.Train.MicroBatch*c.Train.Ranks) + 1
		timeout += seconds(hangFactor * float64(batches) * batch)
	}
	if due.checkpoint || done == c.Train.Steps { // the last checkpoint is still being written
		timeout += seconds(float64(r.Memory.Snapshot) / checkpointRate)
	}
	if slices.ContainsFunc(c.Precision.Schedule, func(s train.RecipeChange) bool { return s.Step == done }) {
		timeout += hangFactor * r.loading
	}
	return timeout
}

// publish passes the records of a step to the exporter, if there is one.
func (r *Run) publish(m writers.Metrics, t writers.Timing) {
	if r.exporter == nil {
		return
	}
	if m.ValLoss != nil {
		r.published.valLoss = m.ValLoss
	}
	if m.FP8 != nil || m.SwiGLU != nil {
		r.published.health = m
	}
	if share, _ := r.MFU(); share != nil {
		t.MFU = new(writers.Float(*share))
	}
	if m.Skipped {
		r.published.skipped++
	}
	now := time.Now()
	took := seconds(float64(t.StepSeconds))
	if !r.published.at.IsZero() { // includes the evaluation and the checkpoint of the step
		took = now.Sub(r.published.at)
	}
	r.published.at, r.published.longest, r.published.step = now, max(r.published.longest, took), seconds(float64(t.StepSeconds))
	var ranks []exporter.Rank
	for _, p := range r.stragglers.paces {
		ranks = append(ranks, exporter.Rank{Own: p.own, Wait: p.wait})
	}
	r.exporter.Publish(&exporter.State{
		At: now, Timeout: r.stepTimeout(), Steps: r.Config.Train.Steps, Metrics: m, Timing: t,
		Recipe: r.Trainer.Recipe.Name, Backend: r.Device.Spec().Name(),
		Tokens: r.Tokens(), ValLoss: r.published.valLoss, Skipped: r.published.skipped, Health: r.published.health,
		Ranks: ranks, Silence: r.group.Silence,
		Checkpoint: r.saver.last.step, CheckpointAt: r.saver.last.at,
	})
}
