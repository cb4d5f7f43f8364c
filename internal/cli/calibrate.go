package cli

import (
	"fmt"
	"math"

	"octet/backend/cost"
	"octet/internal/bench"
)

// calibration is the file of --calibrate.
type calibration struct {
	path  string
	bench *bench.Bench
	file  *cost.Calibration
}

// calibration reads the file of --calibrate, before anything is measured; nil without the flag.
func (f benchFlags) calibration(b *bench.Bench) (*calibration, error) {
	if f.Calibrate == "" {
		return nil, nil
	}
	file, err := bench.OpenCalibration(f.Calibrate, f.Backend, b.Spec())
	if err != nil {
		return nil, fmt.Errorf("--calibrate: %w", err)
	}
	return &calibration{f.Calibrate, b, file}, nil
}

// write adds the measurements to the file.
func (c *calibration) write(t *terminal) error {
	if c == nil {
		return nil
	}
	curves := c.bench.Extend(c.file, version())
	if err := c.file.Write(c.path); err != nil {
		return err
	}
	missed, all := 0.0, 0.0 // weighted by the time of the largest op
	for _, x := range curves {
		missed, all = missed+x.RMS*x.Largest, all+x.Largest
	}
	out := prose(t.err)
	if _, err := fmt.Fprintf(out, "%s: curves of %d kinds of ops, off the measured times by %.1f %% rms\n", c.path, len(curves), 100*missed/max(all, 1e-9)); err != nil {
		return err
	}
	w, ok, err := c.bench.Worst(c.file)
	if err != nil || !ok {
		return err
	}
	off := 100 * (w.Predicted/w.Measured - 1)
	const text = "of the measured steps, the prediction of %s, %d × %d tokens, is furthest off: %s, measured %s, %+.1f %%\n"
	if _, err = fmt.Fprintf(out, text, w.Config.Recipe, w.Config.Train.MicroBatch, w.Config.Data.Seq, duration(w.Predicted), duration(w.Measured), off); err != nil {
		return err
	}
	if math.Abs(off) > trustedError {
		_, err = fmt.Fprintf(out, "the machine was not idle, or --seconds is too short: calibrate again before you trust predictions\n")
	}
	return err
}

// trustedError is the error of a calibration's own steps, in percent, above which a warning says so.
const trustedError = 10
