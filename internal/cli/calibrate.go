package cli

import (
	"fmt"

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
	file, err := bench.OpenCalibration(f.Calibrate, b.Spec())
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
	_, err := fmt.Fprintf(prose(t.err), "%s: curves of %d kinds of ops, off the measured times by %.1f %% rms\n", c.path, len(curves), 100*missed/max(all, 1e-9))
	return err
}
