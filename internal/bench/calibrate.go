package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"runtime"
	"strings"
	"time"

	"octet/backend"
	"octet/backend/cost"
	"octet/internal/disk"
	"octet/internal/hostmem"
	"octet/train"
)

// Shapes returns the configurations on which CalibrateStep runs: the given one, one of half its
// sequence length, and one of twice the length with half the sequences. Work of the same kind then
// has several sizes, and attention several ratios of FLOPs to bytes.
func Shapes(c train.Config) ([]train.Config, error) {
	if c.Train.Ranks > 1 {
		return nil, fmt.Errorf("train.ranks = %d: the ops of one rank wait for those of others; calibrate with train.ranks = 1, and collectives by octet bench collectives", c.Train.Ranks)
	}
	list := []train.Config{c}
	if c.Data.Seq >= 2*minSeq {
		short := c
		short.Data.Seq /= 2
		list = append(list, short)
	}
	long := c
	long.Data.Seq *= 2
	long.Train.MicroBatch = max(1, long.Train.MicroBatch/2)
	return append(list, long), nil
}

// minSeq is the shortest sequence that Shapes makes.
const minSeq = 32

// CalibrateStep runs steps of the configuration in several shapes, interleaved, and samples the
// median time of each of their ops. The pass of train.health_every runs beside each step.
func (b *Bench) CalibrateStep(ctx context.Context, c train.Config) (err error) {
	configs, err := Shapes(c)
	if err != nil {
		return err
	}
	s, err := b.Steps(ctx, configs)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	profiles := make([]*backend.Profile, len(s.trainers))
	bursts := make([]burst, len(s.trainers))
	for i, t := range s.trainers {
		p := backend.NewProfile()
		profiles[i], t.Execute = p, p.Run
		bursts[i] = func() (float64, error) {
			p.Begin()
			defer p.End()
			r, err := t.Next(ctx)
			if err == nil && t.Job.Health != nil {
				_, err = t.Health(ctx)
			}
			return r.Elapsed.Seconds(), err
		}
	}
	samples, err := interleave(b.o.Seconds*float64(len(bursts)), bursts...)
	if err != nil {
		return err
	}
	for i, c := range configs {
		b.steps = append(b.steps, measuredStep{c, median(samples[i])})
	}
	for _, p := range profiles {
		for n, times := range p.Times() {
			seconds := make([]float64, len(times))
			for i, t := range times {
				seconds[i] = t.Seconds()
			}
			b.sample("step", cost.Sample{Key: cost.Key(n), Cost: n.Cost(), Seconds: median(seconds)})
		}
	}
	return nil
}

// sample adds a measurement to the calibration.
func (b *Bench) sample(bench string, s cost.Sample) {
	if b.samples == nil {
		b.samples = map[string][]cost.Sample{}
	}
	b.samples[bench] = append(b.samples[bench], s)
}

// measuredStep is a step that CalibrateStep measured, in seconds.
type measuredStep struct {
	config train.Config
	median float64
}

// Worst compares the steps that CalibrateStep measured with those that a calibration predicts. It
// returns the comparison that is furthest off; ok is false if no step was measured.
func (b *Bench) Worst(c *cost.Calibration) (w Comparison, ok bool, err error) {
	m := cost.Devices().Local(c)
	for _, s := range b.steps {
		s.config.Train.HealthEvery = 0 // the median is that of steps alone
		job, lowered, _, err := train.LargestJob(s.config, b.spec)
		if err != nil {
			return w, false, err
		}
		p, err := m.Predict(cost.NewStep(job.Runs(lowered)...))
		if err != nil {
			return w, false, err
		}
		x := Comparison{s.config, p.Step, s.median}
		if !ok || math.Abs(math.Log(x.Predicted/x.Measured)) > math.Abs(math.Log(w.Predicted/w.Measured)) {
			w, ok = x, true
		}
	}
	return w, ok, nil
}

// Comparison is a step as predicted and as measured, in seconds.
type Comparison struct {
	Config              train.Config
	Predicted, Measured float64
}

// OpenCalibration returns the calibration in a file, to which measurements of a device can be
// added. A file that does not exist is an empty calibration; one of another device is an error.
// backendName is what the device was opened by.
func OpenCalibration(path, backendName string, s backend.Spec) (*cost.Calibration, error) {
	if err := disk.CheckFile(path); err != nil {
		return nil, err
	}
	name := s.Backend
	if _, device, _ := strings.Cut(backendName, ":"); device != "" {
		name += ":" + device
	}
	c, err := cost.ReadCalibration(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		c = &cost.Calibration{Backend: name, Device: s.Device, Threads: s.Threads}
		if s.Threads > 0 {
			c.Processors = runtime.NumCPU()
		}
		return c, nil
	case err != nil:
		return nil, err
	case c.Backend != name || c.Device != s.Device:
		return nil, fmt.Errorf("%s is of backend %s, %s; this is backend %s, %s: name another file, or run all of them with the same --backend and --threads", path, c.Backend, c.Device, name, s.Device)
	}
	return c, nil
}

// Spec describes the device.
func (b *Bench) Spec() backend.Spec { return b.spec }

// date records when a calibration was made, and by which version of Octet.
func date(c *cost.Calibration, version string) {
	c.Octet, c.Date = version, time.Now().UTC().Format(time.DateOnly)
}

// Extend adds what was measured since Open to a calibration. A curve replaces that of the same
// ops. It returns the curves.
func (b *Bench) Extend(c *cost.Calibration, version string) map[string]cost.Curve {
	date(c, version)
	source := fmt.Sprintf("octet bench, %s, %s", b.spec.Device, c.Date)
	curves := map[string]cost.Curve{}
	for bench, samples := range b.samples {
		for key, x := range cost.FitCurves(bench, samples) {
			curves[key] = x
		}
	}
	c.Add(curves)
	if bytes := b.memory(); bytes > 0 {
		c.Set("memory", float64(bytes)/(1<<30), source+": free then, on a host")
	}
	if b.meter != nil {
		c.Set("bandwidth", b.copyBytes()/1e12, source+": copy")
		c.Set("copy_share", 1, source+": bandwidth is that of a copy")
	}
	return curves
}

// memory returns the memory of the device, in bytes; 0 if it is unknown.
func (b *Bench) memory() int64 {
	if r, ok := b.device.(backend.UsageReporter); ok {
		u, err := r.Usage()
		if err == nil {
			return u.Total
		}
	}
	if free, _, ok := hostmem.Free(); ok && b.spec.HostMemory {
		return free
	}
	return 0
}

// copyBytes measures the copy bandwidth, in bytes per second.
func (b *Bench) copyBytes() float64 {
	samples, _ := interleave(peakSeconds, rate(b.meter.Bytes)) // it does not fail
	return median(samples[0])
}
