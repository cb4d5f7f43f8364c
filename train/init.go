package train

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"

	"octet/backend"
	"octet/fp8"
	"octet/nn"
)

// Init sets every tensor to where training starts: parameters drawn from the
// seed, scales 1, moments and histories 0.
func (t *Trainer) Init(ctx context.Context) error {
	return t.initWith(ctx, func(p *nn.Param) ([]float32, error) {
		return p.Init(uint64(t.Config.Seed)), nil
	})
}

// initWith is Init with parameters from elsewhere: values returns
// [Master.Elems()], padding rows included.
func (t *Trainer) initWith(ctx context.Context, values func(*nn.Param) ([]float32, error)) error {
	if err := t.ensurePhase(0); err != nil {
		return err
	}
	if err := t.setConstants(); err != nil {
		return err
	}
	if err := t.setMasters(values); err != nil {
		return err
	}
	t.step, t.skipped, t.rewinds, t.calibrated = 0, 0, 0, false
	t.spikes = spikes{}
	if err := t.rememberHistories(); err != nil {
		return err
	}
	return t.prepare(ctx)
}

// setMasters stores parameters in the masters' formats.
func (t *Trainer) setMasters(values func(*nn.Param) ([]float32, error)) error {
	for _, p := range t.Model.Params {
		x, err := values(p)
		if err != nil {
			return err
		}
		codes, scaleInv := encodeMaster(p.Master.DType, x, t.Recipe.Optimizer.Pow2)
		if err := t.writeAll(p.Master, codes); err != nil {
			return err
		}
		if p.Master.Scale != nil {
			if err := t.writeAll(p.Master.Scale, floatBytes(scaleInv)); err != nil {
				return err
			}
		}
	}
	return nil
}

// setConstants writes what does not start at zero and is no parameter.
func (t *Trainer) setConstants() error {
	set := func(to *backend.Tensor, value float32) error {
		x := make([]float32, to.Elems())
		for i := range x {
			x[i] = value
		}
		return t.writeAll(to, floatBytes(x...))
	}
	for tensor, value := range t.Model.Constants() {
		if err := set(tensor, value); err != nil {
			return err
		}
	}
	for _, scale := range t.optimizer.scales {
		if err := set(scale, 1); err != nil {
			return err
		}
	}
	return nil
}

// prepare casts the weights on every rank.
func (t *Trainer) prepare(ctx context.Context) error {
	return t.each(ctx, func(ctx context.Context, r *rank) error { return r.prepare.Run(ctx) })
}

// encodeMaster stores parameters in the master's format: F32 as it is, BF16
// rounded, F16 with the scale that AdamW would give it.
func encodeMaster(d fp8.DType, x []float32, pow2 bool) (codes []byte, scaleInv float32) {
	scale, half := float32(1), make([]uint16, len(x))
	switch d {
	case fp8.F32:
		return floatBytes(x...), 1
	case fp8.BF16:
		fp8.EncodeBF16(half, x)
	default:
		scale, _ = fp8.ScaleFor(fp8.Amax(x), d.Max(), pow2)
		fp8.Quantize16(half, x, scale)
	}
	codes = make([]byte, 0, 2*len(x))
	for _, h := range half {
		codes = binary.LittleEndian.AppendUint16(codes, h)
	}
	return codes, 1 / scale
}

// decodeMaster is the inverse: the values that kernels see.
func decodeMaster(d fp8.DType, codes []byte, scaleInv float32) ([]float32, error) {
	x := make([]float32, len(codes)/d.Size())
	switch d {
	case fp8.F32:
		for i := range x {
			x[i] = math.Float32frombits(binary.LittleEndian.Uint32(codes[4*i:]))
		}
	case fp8.F16, fp8.BF16:
		half := make([]uint16, len(x))
		for i := range half {
			half[i] = binary.LittleEndian.Uint16(codes[2*i:])
		}
		if d == fp8.BF16 {
			fp8.DecodeBF16(x, half)
		} else {
			fp8.Dequantize16(x, half, scaleInv)
		}
	default:
		return nil, fmt.Errorf("master weights in %s cannot be read", d)
	}
	return x, nil
}

func floatBytes(x ...float32) []byte {
	b := make([]byte, 0, 4*len(x))
	for _, v := range x {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}
