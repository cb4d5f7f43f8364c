package train

import (
	"encoding/binary"
	"fmt"
	"iter"
	"slices"

	"octet/backend"
	"octet/checkpoint"
	"octet/fp8"
	"octet/nn"
)

// This file encodes and decodes masters and moments, with their formats and scales in
// device memory and in checkpoints.

// readFloats returns a full tensor's decoded values; scales are not applied.
func (t *Trainer) readFloats(from *backend.Tensor) ([]float32, error) {
	raw, err := t.read(from)
	if err != nil {
		return nil, err
	}
	x := make([]float32, t.wholeElems(from))
	from.DType.Decode(x, raw)
	return x, nil
}

// Weights returns the values of a parameter of Job.Model after the last completed step,
// dequantized, padding rows included: [nn.Param.Elems].
func (t *Trainer) Weights(p *nn.Param) ([]float32, error) {
	if err := t.stateError(); err != nil {
		return nil, err
	}
	return t.readMaster(p)
}

// readMaster returns a parameter's dequantized master.
func (t *Trainer) readMaster(p *nn.Param) ([]float32, error) {
	x, err := t.readFloats(p.Master)
	if err != nil || p.Master.Scale == nil {
		return x, err
	}
	scaleInv, err := t.readFloats(p.Master.Scale)
	if err != nil {
		return nil, err
	}
	for i := range x {
		x[i] *= scaleInv[0]
	}
	return x, nil
}

// encodeMaster encodes parameters in a master's format, rounded to nearest: F32, BF16,
// or F16 with the scale that AdamW would choose.
func encodeMaster(d fp8.DType, x []float32, pow2 bool) (codes []byte, scaleInv float32) {
	if d == fp8.F32 {
		return fp8.AppendFloats(nil, x...), 1
	}
	scale, half := float32(1), make([]uint16, len(x))
	if d == fp8.BF16 {
		fp8.EncodeBF16(half, x)
	} else {
		scale, _ = fp8.ScaleFor(fp8.Amax(x), d.Max(), pow2)
		fp8.Quantize16(half, x, scale)
	}
	codes = make([]byte, 0, 2*len(x))
	for _, h := range half {
		codes = binary.LittleEndian.AppendUint16(codes, h)
	}
	return codes, 1 / scale
}

func masterName(p *nn.Param) string { return p.Name + ".master" }

func masterBytes(c *checkpoint.Checkpoint, p *nn.Param) ([]byte, error) {
	if d := p.Master.DType; d != fp8.F32 {
		raw := make([]byte, p.Elems()*d.Size())
		if err := readTensor(c.Optimizer, masterName(p), d, raw); err != nil {
			return nil, fmt.Errorf("%s: %w", c.Path, err)
		}
		if i := notFinite16(d, raw); i >= 0 {
			x := d.Float32(uint32(binary.LittleEndian.Uint16(raw[2*i:])))
			return nil, fmt.Errorf("%s: tensor %q is damaged: element %d is %v; octet inspect counts such elements", c.Path, masterName(p), i, x)
		}
		return raw, nil
	}
	x, err := c.Model.Weight(p.Name)
	if err == nil {
		x, err = p.Padded(x)
	}
	return fp8.AppendFloats(nil, x...), err
}

// notFinite16 returns the index of the first infinity or NaN in little-endian codes of
// BF16 or F16, -1 without one. Such a code has every exponent bit set.
func notFinite16(d fp8.DType, codes []byte) int {
	exponent := uint16(0x7c00)
	if d == fp8.BF16 {
		exponent = 0x7f80
	}
	for i := range len(codes) / 2 {
		if binary.LittleEndian.Uint16(codes[2*i:])&exponent == exponent {
			return i
		}
	}
	return -1
}

// moments yields both moments of each parameter.
func (t *Trainer) moments() iter.Seq2[*nn.Param, *backend.Tensor] {
	return func(yield func(*nn.Param, *backend.Tensor) bool) {
		for _, p := range t.Model.Params {
			if !yield(p, t.optimizer.m1[p]) || !yield(p, t.optimizer.m2[p]) {
				return
			}
		}
	}
}

// setMoment encodes moment m of p and writes it with its scales.
func (t *Trainer) setMoment(p *nn.Param, m *backend.Tensor, x []float32) error {
	o := t.Recipe.Optimizer
	codes, scaleInv := encodeMoment(m, x, o.Pow2, o.FloorV && m == t.optimizer.m2[p])
	if err := t.write(m, codes); err != nil || m.Scale == nil {
		return err
	}
	return t.write(m.Scale, fp8.AppendFloats(nil, scaleInv...))
}

// encodeMoment encodes a full moment in the format of m, rounded to nearest, with the
// scales that AdamW would choose. With floor, positive values do not become 0.
func encodeMoment(m *backend.Tensor, x []float32, pow2, floor bool) (codes []byte, scaleInv []float32) {
	if m.DType == fp8.F32 {
		return fp8.AppendFloats(nil, x...), nil
	}
	codes = make([]byte, 0, len(x)*m.DType.Size())
	for _, block := range momentBlocks(m, x) {
		scale := float32(1)
		if m.Scale != nil {
			scale, _ = fp8.ScaleFor(fp8.Amax(block), m.DType.Max(), pow2)
			scaleInv = append(scaleInv, 1/scale)
		}
		for _, v := range block {
			code := m.DType.Nearest(v*scale, fp8.Saturate)
			if floor && v > 0 && code == 0 {
				code = 1 // the format's smallest value
			}
			codes = append(codes, byte(code))
			if m.DType.Size() == 2 {
				codes = append(codes, byte(code>>8))
			}
		}
	}
	return codes, scaleInv
}

// momentBlocks splits a moment's values into ranges that share a scale: all values,
// or blocks of a row.
func momentBlocks(m *backend.Tensor, x []float32) (list [][]float32) {
	width := m.Block.Cols
	if width == 0 {
		return [][]float32{x}
	}
	for of := range slices.Chunk(x, m.Cols()) {
		for from := 0; from < len(of); from += width {
			list = append(list, of[from:min(from+width, len(of))])
		}
	}
	return list
}

// readMoment returns a dequantized moment.
func (t *Trainer) readMoment(m *backend.Tensor) ([]float32, error) {
	x, err := t.readFloats(m)
	if err != nil || m.Scale == nil {
		return x, err
	}
	scaleInv, err := t.readFloats(m.Scale)
	if err != nil {
		return nil, err
	}
	dequantizeMoment(m, x, scaleInv)
	return x, nil
}

func dequantizeMoment(m *backend.Tensor, x, scaleInv []float32) {
	for i, block := range momentBlocks(m, x) {
		for k := range block {
			block[k] *= scaleInv[i]
		}
	}
}

// otherE4M3 returns the dequantized values of a moment that is stored in the other
// E4M3 variant than m's; nil if it is not.
func (j *Job) otherE4M3(from *checkpoint.Tensors, m *backend.Tensor) ([]float32, error) {
	isE4M3 := func(d fp8.DType) bool { return d == fp8.E4M3 || d == fp8.E4M3IEEE }
	stored, ok := from.Lookup(m.Name)
	if !ok || stored.DType == m.DType || !isE4M3(stored.DType) || !isE4M3(m.DType) {
		return nil, nil
	}
	x, err := readFloats(from, m.Name)
	if err != nil {
		return nil, err
	}
	scaleInv, err := readFloats(from, m.Scale.Name)
	if err != nil {
		return nil, err
	}
	if len(x) != j.wholeElems(m) || len(scaleInv) != j.wholeElems(m.Scale) {
		return nil, fmt.Errorf("%s has %d values and %d scales, but the configuration needs %d and %d", m.Name, len(x), len(scaleInv), j.wholeElems(m), j.wholeElems(m.Scale))
	}
	dequantizeMoment(m, x, scaleInv)
	return x, nil
}
