package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"octet/backend"
	"octet/backend/cost"
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
	if _, err := interleave(b.o.Seconds*float64(len(bursts)), bursts...); err != nil {
		return err
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

// OpenCalibration returns the calibration in a file, to which measurements of a device can be
// added. A file that does not exist is an empty calibration; one of another device is an error.
func OpenCalibration(path string, s backend.Spec) (*cost.Calibration, error) {
	c, err := cost.ReadCalibration(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &cost.Calibration{Backend: s.Backend, Device: s.Device, Threads: s.Threads}, nil
	case err != nil:
		return nil, err
	case c.Backend != s.Backend || c.Device != s.Device:
		return nil, fmt.Errorf("%s is of backend %s, %s; this is backend %s, %s: name another file", path, c.Backend, c.Device, s.Backend, s.Device)
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
		c.Set("memory", float64(bytes)/(1<<30), source)
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
