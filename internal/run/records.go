package run

import (
	"errors"
	"log/slog"
	"math"
	"time"

	"octet/internal/writers"
)

// records are the files that grow by a line a step.
type records struct {
	metrics, timing *writers.JSONL
	events          *writers.Events
	log             *writers.RunLog
}

// openRecords opens them, cut back to the step that the run goes on from.
func (r *Run) openRecords() error {
	var err error
	records := &records{}
	for _, f := range []struct {
		name string
		to   **writers.JSONL
	}{{metricsFile, &records.metrics}, {timingFile, &records.timing}} {
		if err = writers.TruncateAfter(r.Folder.path(f.name), r.Resumed); err != nil {
			return err
		}
		if *f.to, err = writers.OpenJSONL(r.Folder.path(f.name)); err != nil {
			return err
		}
	}
	if records.events, err = writers.OpenEvents(r.Folder.Dir, time.Now(), r.Resumed+1); err != nil {
		return err
	}
	if records.log, err = writers.OpenRunLog(r.Folder.path(logFile), slog.LevelInfo); err != nil {
		return err
	}
	r.records, r.log = records, records.log.Logger
	r.log.Info("start", "octet", r.version, "recipe", r.Config.Recipe, "backend", r.backendName(),
		"device", r.Devices[0].Spec().Device, "step", r.Resumed, "corpus", r.Corpus.Info.SHA256)
	for _, e := range r.Skipped {
		r.log.Warn("checkpoint passed over", "path", e.Path, "reason", e.Damage.Error())
	}
	return nil
}

// step writes what one step has to say.
func (w *records) step(p Progress, flopsPerToken float64, tokens, memory int64) error {
	m := writers.Metrics{
		Step: p.Step, Loss: writers.Float(p.Loss), LR: writers.Float(p.LR),
		GradNorm: writers.Float(p.GradNorm), Tokens: p.Tokens, Skipped: p.Skipped,
	}
	scalars := []writers.Scalar{{Tag: "loss/train", Value: p.Loss}, {Tag: "lr", Value: p.LR}, {Tag: "grad_norm", Value: p.GradNorm}}
	if !math.IsNaN(p.ValLoss) {
		loss := writers.Float(p.ValLoss)
		m.ValLoss = &loss
		scalars = append(scalars, writers.Scalar{Tag: "loss/validation", Value: p.ValLoss})
	}
	seconds := p.Elapsed.Seconds()
	rate := float64(tokens) / seconds
	t := writers.Timing{
		Step: p.Step, StepSeconds: writers.Float(seconds), TokensPerSec: writers.Float(rate),
		FlopsPerSec: writers.Float(rate * flopsPerToken), Memory: memory,
	}
	return errors.Join(w.metrics.Write(m), w.timing.Write(t), w.events.Write(time.Now(), p.Step, scalars...))
}

// flush brings the lines to the disk before a checkpoint vouches for them.
func (w *records) flush() error { return errors.Join(w.metrics.Sync(), w.timing.Sync()) }

func (w *records) close() error {
	return errors.Join(w.metrics.Close(), w.timing.Close(), w.events.Close(), w.log.Close())
}
