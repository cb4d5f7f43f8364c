package cli

import (
	"context"
	"errors"
	"fmt"

	"octet/backend"
	"octet/internal/arrays"
	"octet/internal/quantize"
)

// holdsValues reports whether a file holds values, not codes.
func holdsValues(file string) bool {
	_, err := arrays.Ext(file)
	return err == nil
}

// multiplyValues casts the matrices of two files on the device and multiplies them.
func (c gemmCmd) multiplyValues(ctx context.Context, t *terminal) error {
	switch {
	case !holdsValues(c.A) || !holdsValues(c.B):
		return badInput(fmt.Errorf("%s and %s: expected two .npy or safetensors files of values, or two text files of codes", c.A, c.B))
	case c.Explain != "":
		return badInput(errors.New("--explain shows the sums of codes: give text files of codes"))
	case c.Scales != "":
		return badInput(errors.New("--scales gives the scales of codes: use --granularity and --scale for values"))
	}
	formats, err := c.formats()
	if err != nil {
		return badInput(err)
	}
	var operands [2]*quantize.Result
	for i, file := range []string{c.A, c.B} {
		cast, err := c.cast("formats", formats[i].String(), "nearest")
		if err != nil {
			return badInput(err)
		}
		m, err := arrays.ReadOne(file, "")
		if err != nil {
			return badInput(err)
		}
		err = c.onDevice(func(dev backend.Backend) error {
			operands[i], err = quantize.Cast(ctx, dev, m, cast, 0)
			return err
		})
		if err != nil {
			return badInput(fmt.Errorf("%s: %w", file, err))
		}
	}
	a, b := operands[0], operands[1]
	if a.Cols != b.Cols {
		return badInput(fmt.Errorf("rows of %s have %d values, rows of %s have %d: both must have the same length K", c.A, a.Cols, c.B, b.Cols))
	}
	var result []float32
	err = c.onDevice(func(dev backend.Backend) error {
		result, err = quantize.Multiply(ctx, dev, a, b, c.accum())
		return err
	})
	if err != nil {
		return badInput(err)
	}
	return c.show(t, result, a.Rows, b.Rows, a.Cols)
}

// onDevice opens the device for do: a backend is bound once, and a command may have several
// programs to run.
func (d device) onDevice(do func(backend.Backend) error) error {
	dev, err := d.open()
	if err != nil {
		return err
	}
	return errors.Join(do(dev), dev.Close())
}
