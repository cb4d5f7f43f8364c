package run

import (
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"time"

	"octet/internal/disk"
	"octet/internal/writers"
	"octet/train"
)

// records are the files that grow with every step. Ranks above 0 have the log alone.
type records struct {
	metrics, timing *writers.JSONL
	events          *writers.Events
	log             *writers.RunLog
	files           []io.Closer // those above that are open
	lost            []string    // messages about missing lines of earlier steps
}

// openRecords opens the records of a rank, from step from on. Ranks that are processes have a log
// each.
func (r *Run) openRecords(from int) (*records, error) {
	switch {
	case r.rank() == 0:
		return openRecords(r.Dir, from)
	case r.group.InProcess():
		return &records{log: writers.NoRunLog()}, nil
	}
	path := r.folder.path(fmt.Sprintf(rankLogFile, r.rank()))
	if err := disk.MakeDirs(filepath.Dir(path)); err != nil {
		return nil, err
	}
	log, err := writers.OpenRunLog(path)
	if err != nil {
		return nil, err
	}
	return &records{log: log, files: []io.Closer{log}}, nil
}

// openRecords opens the files and truncates them after step from, where the run resumes.
func openRecords(dir string, from int) (r *records, err error) {
	r = &records{}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	for _, f := range []struct {
		name string
		to   **writers.JSONL
	}{{metricsFile, &r.metrics}, {timingFile, &r.timing}} {
		path := filepath.Join(dir, f.name)
		last, err := writers.TruncateAfter(path, from)
		if err != nil {
			return r, err
		}
		if last < from {
			r.lost = append(r.lost, fmt.Sprintf("%s ends at step %d: the lines up to step %d are lost", path, last, from))
		}
		if *f.to, err = writers.OpenJSONL(path); err != nil {
			return r, err
		}
		r.files = append(r.files, *f.to)
	}
	if r.log, err = writers.OpenRunLog(filepath.Join(dir, logFile)); err != nil {
		return r, err
	}
	r.files = append(r.files, r.log)
	if r.events, err = writers.OpenEvents(dir, time.Now(), from+1); err != nil {
		return r, err
	}
	r.files = append(r.files, r.events)
	return r, nil
}

// step writes the records of one step and returns its lines.
func (w *records) step(p Progress, flopsPerToken float64, tokens, memory int64) (m writers.Metrics, t writers.Timing, err error) {
	m = writers.Metrics{
		Step: p.Step, Loss: writers.Float(p.Loss), LR: writers.Float(p.LR),
		GradNorm: writers.Float(p.GradNorm), Tokens: p.Tokens, Skipped: p.Skipped,
	}
	scalars := []writers.Scalar{{Tag: "loss/train", Value: p.Loss}, {Tag: "lr", Value: p.LR}, {Tag: "grad_norm", Value: p.GradNorm}}
	if p.LossScale != 0 {
		m.LossScale = new(writers.Float(p.LossScale))
		scalars = append(scalars, writers.Scalar{Tag: "loss_scale_log2", Value: math.Log2(p.LossScale)})
	}
	if u := p.Update; u != (train.UpdateResult{}) {
		m.Update = &writers.UpdateStats{
			RMS: writers.Float(u.RMS), EmbeddingRMS: writers.Float(u.EmbeddingRMS), Largest: writers.Float(u.Largest), LargestIn: u.LargestIn,
			ZeroV: writers.Float(u.ZeroV), ZeroVIn: u.ZeroVIn,
		}
		scalars = append(scalars, writers.Scalar{Tag: "update/rms", Value: u.RMS}, writers.Scalar{Tag: "update/embedding_rms", Value: u.EmbeddingRMS}, writers.Scalar{Tag: "update/largest", Value: u.Largest}, writers.Scalar{Tag: "update/zero_v", Value: u.ZeroV})
	}
	if r := p.Routing; r != (train.Routing{}) {
		m.Routing = &writers.RoutingStats{Dropped: writers.Float(r.Dropped), MaxLoad: writers.Float(r.MaxLoad), AuxLoss: writers.Float(r.AuxLoss)}
		scalars = append(scalars, writers.Scalar{Tag: "routing/dropped", Value: r.Dropped}, writers.Scalar{Tag: "routing/max_load", Value: r.MaxLoad}, writers.Scalar{Tag: "routing/aux_loss", Value: r.AuxLoss})
	}
	if d := p.Preference; d.Pairs > 0 {
		m.Preference = &writers.PreferenceStats{Accuracy: writers.Float(d.Accuracy), Margin: writers.Float(d.Margin)}
		scalars = append(scalars, writers.Scalar{Tag: "preference/accuracy", Value: d.Accuracy}, writers.Scalar{Tag: "preference/margin", Value: d.Margin})
	}
	if d := p.ValPairs; d.Pairs > 0 {
		m.ValPreference = &writers.PreferenceStats{Accuracy: writers.Float(d.Accuracy), Margin: writers.Float(d.Margin)}
		scalars = append(scalars, writers.Scalar{Tag: "preference/validation_accuracy", Value: d.Accuracy}, writers.Scalar{Tag: "preference/validation_margin", Value: d.Margin})
	}
	if p.Evaluated {
		loss := writers.Float(p.ValLoss)
		m.ValLoss = &loss
		scalars = append(scalars, writers.Scalar{Tag: "loss/validation", Value: p.ValLoss})
	}
	m.FP8, m.SwiGLU = healthStats(p.Health)
	scalars = append(scalars, healthScalars(p.Health)...)
	seconds := p.Elapsed.Seconds()
	rate := float64(tokens) / seconds
	t = writers.Timing{
		Step: p.Step, StepSeconds: writers.Float(seconds), TokensPerSec: writers.Float(rate),
		FlopsPerSec: writers.Float(rate * flopsPerToken), Memory: memory,
	}
	if p.MFU != nil {
		t.MFU = new(writers.Float(*p.MFU))
	}
	if p.SaveCopy > 0 {
		t.CheckpointWait, t.CheckpointCopy = new(writers.Float(p.SaveWait.Seconds())), new(writers.Float(p.SaveCopy.Seconds()))
	}
	for _, r := range p.Devices {
		t.Devices = append(t.Devices, writers.Device(r))
	}
	return m, t, errors.Join(w.metrics.Write(m), w.timing.Write(t), w.events.Write(time.Now(), p.Step, scalars...))
}

// healthStats converts the health of a measured step to the form of metrics.jsonl.
func healthStats(h train.Health) (map[string]writers.FP8Stats, map[string]writers.SwiGLUStats) {
	var casts map[string]writers.FP8Stats
	if len(h.Casts) > 0 {
		casts = make(map[string]writers.FP8Stats, len(h.Casts))
	}
	for _, c := range h.Casts {
		s := writers.FP8Stats{
			Amax: writers.Float(c.Amax), Saturated: writers.Float(c.Saturated), Flushed: writers.Float(c.Flushed),
			AmaxRMS: writers.Float(c.AmaxRMS), Kurtosis: writers.Float(c.Kurtosis), SQNR: writers.Float(c.SQNR),
		}
		if c.Scales == nil {
			s.Scale = new(writers.Float(c.Scale))
		} else {
			s.ScaleMin, s.ScaleMax = new(writers.Float(c.Scales.Min)), new(writers.Float(c.Scales.Max))
			s.ScaleLog2Mean, s.ScaleLog2Std = new(writers.Float(c.Scales.Log2Mean)), new(writers.Float(c.Scales.Log2Std))
			s.ZeroBlocks = new(writers.Float(c.Scales.ZeroBlocks))
			s.ScaleInvLowest, s.ScaleInvHighest = new(writers.Float(c.Scales.Lowest)), new(writers.Float(c.Scales.Highest))
			if c.Scales.Outer != 1 {
				s.Outer = new(writers.Float(c.Scales.Outer))
			}
		}
		casts[c.Name] = s
	}
	var channels map[string]writers.SwiGLUStats
	if len(h.SwiGLU) > 0 {
		channels = make(map[string]writers.SwiGLUStats, len(h.SwiGLU))
	}
	for _, s := range h.SwiGLU {
		channels[s.Layer] = writers.SwiGLUStats{
			Channel: s.Channel, Amax: writers.Float(s.Amax), Median: writers.Float(s.Median), Cosine: writers.Float(s.Cosine),
			NormUp: writers.Float(s.NormUp), NormGate: writers.Float(s.NormGate), OthersRMS: writers.Float(s.OthersRMS),
			CosineMean: writers.Float(s.CosineMean), Aligned: writers.Float(s.Aligned), Correlation: writers.Float(s.Correlation),
		}
	}
	return casts, channels
}

// healthScalars converts the health of a measured step to TensorBoard scalars. It omits
// infinite values, such as the SQNR of a cast without error, which no axis can show.
func healthScalars(h train.Health) (list []writers.Scalar) {
	add := func(tag string, value float64) {
		if !math.IsInf(value, 1) {
			list = append(list, writers.Scalar{Tag: tag, Value: value})
		}
	}
	for _, c := range h.Casts {
		tag := "fp8/" + c.Name
		add(tag+"/saturated", c.Saturated)
		add(tag+"/flushed", c.Flushed)
		add(tag+"/sqnr_db", c.SQNR)
		add(tag+"/amax_rms", c.AmaxRMS)
		add(tag+"/kurtosis", c.Kurtosis)
		add(tag+"/amax", c.Amax)
		if c.Scales == nil {
			add(tag+"/scale_log2", math.Log2(c.Scale))
			continue
		}
		add(tag+"/scale_min", c.Scales.Min)
		add(tag+"/scale_max", c.Scales.Max)
		add(tag+"/scale_log2", c.Scales.Log2Mean)
		add(tag+"/scale_log2_std", c.Scales.Log2Std)
		add(tag+"/zero_blocks", c.Scales.ZeroBlocks)
		add(tag+"/scale_inv_lowest", c.Scales.Lowest)
		add(tag+"/scale_inv_highest", c.Scales.Highest)
	}
	for _, s := range h.SwiGLU {
		add("swiglu/amax/"+s.Layer, s.Amax)
		add("swiglu/median/"+s.Layer, s.Median)
		add("swiglu/cosine/"+s.Layer, s.Cosine)
		add("swiglu/others_rms/"+s.Layer, s.OthersRMS)
		add("swiglu/cosine_mean/"+s.Layer, s.CosineMean)
	}
	return list
}

// flush syncs the lines to disk, so that a checkpoint never outlives the lines of its steps.
func (w *records) flush() error { return errors.Join(w.metrics.Sync(), w.timing.Sync()) }

func (w *records) close() error {
	var errs []error
	for _, f := range w.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
