package run

import (
	"slices"
	"time"

	"octet/internal/exporter"
	"octet/internal/writers"
	"octet/train"
)

// published is what the exporter tells of more than the last step.
type published struct {
	valLoss *writers.Float  // of the last evaluation
	skipped int             // updates that this process left out
	health  writers.Metrics // of the last step that was measured
	at      time.Time       // of the last step
	step    time.Duration   // that it took
	longest time.Duration   // between two steps of this process
}

const (
	// A run counts as hung when a step takes hangFactor times as long as the longest step so
	// far, and at least leastHang.
	hangFactor = 10
	leastHang  = time.Minute
	// checkpointRate is the lowest rate at which a file system should write a checkpoint, in
	// bytes per second.
	checkpointRate = 100e6
)

// stepTimeout returns how long the next step may take before the run counts as hung. It
// adds time for an evaluation, a checkpoint or another recipe's programs that come with the
// step, since no earlier step may have had them.
func (r *Run) stepTimeout() time.Duration {
	c, done := r.Config, r.Trainer.StepsDone()
	timeout := max(leastHang, hangFactor*r.published.longest)
	due := r.due(done + 1)
	if due.evaluation {
		// A batch of it takes less than a micro-batch of a step.
		batch := r.published.step.Seconds() / float64(c.Train.Accumulate)
		batches := r.Corpus.Info.ValTokens/int64(c.Train.MicroBatch*c.Data.Seq*c.Train.Ranks) + 1
		timeout += seconds(hangFactor * float64(batches) * batch)
	}
	if due.checkpoint || done == c.Train.Steps { // the last one is still being written
		timeout += seconds(float64(r.Memory.Snapshot) / checkpointRate)
	}
	if slices.ContainsFunc(c.Precision.Schedule, func(s train.RecipeChange) bool { return s.Step == done }) {
		timeout += hangFactor * r.loading
	}
	return timeout
}

// publish tells the exporter, if there is one, what the records were told of a step.
func (r *Run) publish(m writers.Metrics, t writers.Timing) {
	if r.Exporter == nil {
		return
	}
	if m.ValLoss != nil {
		r.published.valLoss = m.ValLoss
	}
	if m.FP8 != nil || m.SwiGLU != nil {
		r.published.health = m
	}
	if share := r.MFU(); share != nil {
		t.MFU = new(writers.Float(*share))
	}
	if m.Skipped {
		r.published.skipped++
	}
	now := time.Now()
	took := seconds(float64(t.StepSeconds))
	if !r.published.at.IsZero() { // with the evaluation, the checkpoint and whatever else came with the step
		took = now.Sub(r.published.at)
	}
	r.published.at, r.published.longest, r.published.step = now, max(r.published.longest, took), seconds(float64(t.StepSeconds))
	r.Exporter.Publish(&exporter.State{
		At: now, Timeout: r.stepTimeout(), Steps: r.Config.Train.Steps, Metrics: m, Timing: t,
		Recipe: r.Trainer.Recipe.Name, Backend: r.backendName(),
		Tokens: r.Tokens(), ValLoss: r.published.valLoss, Skipped: r.published.skipped, Health: r.published.health,
		Checkpoint: r.saver.last.step, CheckpointAt: r.saver.last.at,
	})
}
