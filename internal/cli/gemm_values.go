package cli

import (
	"context"
	"errors"
	"fmt"

	"octet/backend"
	"octet/fp8"
	"octet/internal/arrays"
	"octet/internal/gemm"
	"octet/internal/quantize"
)

// holdsValues reports whether a file holds values, not codes.
func holdsValues(file string) bool {
	_, err := arrays.Ext(file)
	return err == nil
}

// multiplyValues multiplies the matrices of two files: values, which the device casts, or
// codes with their scales.
func (c gemmCmd) multiplyValues(ctx context.Context, t *terminal) error {
	switch {
	case c.B == "":
		return badInput(errors.New("gemm multiplies two matrices: give two files, or none"))
	case !holdsValues(c.A) || !holdsValues(c.B):
		return badInput(fmt.Errorf("%s and %s: expected two .npy or safetensors files, or two text files of codes", c.A, c.B))
	case c.Explain != "":
		return badInput(errors.New("--explain shows the sums of codes: give text files of codes"))
	case c.Scales != "":
		return badInput(errors.New("--scales gives the scales of codes in text files: use --granularity and --scale for values"))
	}
	formats, err := c.formats()
	if err != nil {
		return badInput(err)
	}
	var operands [2]gemm.Operand
	for i, file := range []string{c.A, c.B} {
		if arrays.HoldsCodes(file) {
			operands[i], err = quantize.Read(file)
		} else {
			operands[i], err = c.castFile(ctx, file, formats[i])
		}
		if err != nil {
			return badInput(err)
		}
	}
	a, b := operands[0], operands[1]
	if a.Cols != b.Cols {
		return badInput(fmt.Errorf("rows of %s have %d values, rows of %s have %d: both must have the same length K", c.A, a.Cols, c.B, b.Cols))
	}
	var result []float32
	err = c.onDevice(func(dev backend.Backend) error {
		result, err = gemm.Multiply(ctx, dev, a, b, c.accum())
		return err
	})
	if err != nil {
		return badInput(err)
	}
	return c.show(t, result, a.Rows, b.Rows, a.Cols)
}

// castFile casts the matrix of a file on the device.
func (c gemmCmd) castFile(ctx context.Context, file string, d fp8.DType) (o gemm.Operand, err error) {
	cast, err := c.cast("formats", d.String(), "nearest")
	if err != nil {
		return o, err
	}
	m, err := arrays.ReadOne(file, "")
	if err != nil {
		return o, err
	}
	err = c.onDevice(func(dev backend.Backend) error {
		r, err := quantize.Cast(ctx, dev, m, cast, 0)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		o = r.Operand
		return nil
	})
	return o, err
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
