package run

import (
	"time"

	"octet/internal/exporter"
	"octet/internal/writers"
)

// published is what the exporter tells of more than the last step.
type published struct {
	valLoss *writers.Float  // of the last evaluation
	skipped int             // updates that this process left out
	health  writers.Metrics // of the last step that was measured
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
	if m.Skipped {
		r.published.skipped++
	}
	r.Exporter.Publish(&exporter.State{
		At: time.Now(), Steps: r.Config.Train.Steps, Metrics: m, Timing: t,
		Recipe: r.Trainer.Recipe.Name, Backend: r.backendName(),
		Tokens: r.Tokens(), ValLoss: r.published.valLoss, Skipped: r.published.skipped, Health: r.published.health,
		Checkpoint: r.saver.last.step, CheckpointAt: r.saver.last.at,
	})
}
