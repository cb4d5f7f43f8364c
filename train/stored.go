package train

import (
	"context"
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

// Weights returns the values of a parameter of Job.Model after the last completed step,
// dequantized, padding rows included: [nn.Param.Elems].
func (t *Trainer) Weights(p *nn.Param) ([]float32, error) {
	if err := t.stateError(); err != nil {
		return nil, err
	}
	x, err := t.readMaster(p)
	if err != nil {
		return nil, err
	}
	raw, err := t.wholeOf(context.Background(), p.Master, fp8.AppendFloats(nil, x...))
	if err != nil {
		return nil, err
	}
	all := make([]float32, len(raw)/4)
	fp8.F32.Decode(all, raw)
	return all, nil
}

// readMaster returns the dequantized rows of a parameter that this rank holds.
func (t *Trainer) readMaster(p *nn.Param) ([]float32, error) {
	x, err := t.localFloats(p.Master)
	if err != nil || p.Master.Scale == nil {
		return x, err
	}
	scaleInv, err := t.localFloats(p.Master.Scale)
	if err != nil {
		return nil, err
	}
	for i := range x {
		x[i] *= scaleInv[0]
	}
	return x, nil
}

// setMaster encodes this rank's rows of a parameter and writes them. amax is that of all rows.
func (t *Trainer) setMaster(p *nn.Param, x []float32, amax float32) error {
	codes, scaleInv := encodeMaster(p.Master.DType, x, amax, t.Recipe.Optimizer.Pow2)
	if err := t.device.Write(p.Master, codes); err != nil || p.Master.Scale == nil {
		return err
	}
	return t.device.Write(p.Master.Scale, fp8.AppendFloats(nil, scaleInv))
}

// encodeMaster encodes parameters in a master's format, rounded to nearest: F32, BF16,
// or F16 with the scale that AdamW would choose for amax.
func encodeMaster(d fp8.DType, x []float32, amax float32, pow2 bool) (codes []byte, scaleInv float32) {
	if d == fp8.F32 {
		return fp8.AppendFloats(nil, x...), 1
	}
	scale, half := float32(1), make([]uint16, len(x))
	if d == fp8.BF16 {
		fp8.EncodeBF16(half, x)
	} else {
		scale, _ = fp8.ScaleFor(amax, d.Max(), pow2)
		fp8.Quantize16(half, x, scale)
	}
	codes = make([]byte, 0, 2*len(x))
	for _, h := range half {
		codes = binary.LittleEndian.AppendUint16(codes, h)
	}
	return codes, 1 / scale
}

func masterName(p *nn.Param) string { return p.Name + ".master" }

// storedMaster returns this rank's rows of a parameter in a checkpoint, in the master's format.
func (t *Trainer) storedMaster(c *checkpoint.Checkpoint, p *nn.Param) ([]byte, error) {
	d := p.Master.DType
	r := t.regionOf(p.Master, t.group.Rank())
	from := r.rows[0]
	if d == fp8.F32 {
		x, err := c.Model.WeightRows(p.Name, min(from, p.Rows), min(r.rows[1], p.Rows))
		if err != nil {
			return nil, err
		}
		if r.columns[1] != 0 {
			x = columnsOf(x, p.Shape[1], r.columns)
		}
		return append(fp8.AppendFloats(make([]byte, 0, p.Master.Bytes()), x...), make([]byte, int(p.Master.Bytes())-4*len(x))...), nil
	}
	raw, err := t.storedRows(c.Optimizer, masterName(p), p.Master)
	if err != nil {
		return nil, err
	}
	if i := notFinite16(d, raw); i >= 0 {
		x := d.Float32(uint32(binary.LittleEndian.Uint16(raw[2*i:])))
		return nil, fmt.Errorf("tensor %q is damaged: element %d is %v; octet inspect counts such elements", masterName(p), from*p.Cols()+i, x)
	}
	return raw, nil
}

// storedRows returns the rows of a checkpoint's tensor that this rank holds, as its memory holds
// them: zeros are the padding.
func (t *Trainer) storedRows(from *checkpoint.Tensors, name string, x *backend.Tensor) ([]byte, error) {
	stored, ok := from.Lookup(name)
	if !ok {
		return nil, fmt.Errorf("there is no tensor %q; was the checkpoint written under another configuration?", name)
	}
	if stored.DType != x.DType {
		return nil, fmt.Errorf("%s is stored as %s, but the recipe needs %s", name, stored.DType, x.DType)
	}
	rows, ok := t.storedFits(x, stored.Shape)
	if !ok {
		return nil, fmt.Errorf("%s is stored as %v, but the configuration needs %v", name, stored.Shape, t.wholeShape(x))
	}
	raw := make([]byte, x.Bytes())
	r := t.regionOf(x, t.group.Rank())
	first, last := min(r.rows[0], rows), min(r.rows[1], rows)
	part := raw[:int64(last-first)*x.Bytes()/int64(x.Shape[0])]
	if r.columns[1] != 0 {
		return raw, from.ReadBlock(name, first, last, r.columns[0], r.columns[1], part)
	}
	return raw, from.ReadRows(name, first, last, part)
}

// storedFits returns how many rows of a stored tensor belong to x, and whether x can have its shape: that
// of the full tensor, or one with another padding of the vocabulary, which depends on
// train.tensor_parallel.
func (j *Job) storedFits(x *backend.Tensor, stored []int) (rows int, ok bool) {
	want := j.wholeShape(x)
	if len(want) == 0 || len(stored) != len(want) || !slices.Equal(stored[1:], want[1:]) {
		return 0, false
	}
	used, padded := j.vocabulary[x]
	return min(stored[0], want[0]), stored[0] == want[0] || padded && stored[0] >= used
}

// columnsOf returns some columns of rows of so many values.
func columnsOf(x []float32, width int, columns [2]int) []float32 {
	n := len(x) / width
	list := make([]float32, n*(columns[1]-columns[0]))
	copyRegion(x, width, region{[2]int{0, n}, columns}, list, 1, false)
	return list
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

// moments yields the moments of each parameter: two, or Muon's momentum.
func (t *Trainer) moments() iter.Seq2[*nn.Param, *backend.Tensor] {
	return func(yield func(*nn.Param, *backend.Tensor) bool) {
		for _, p := range t.Model.Params {
			m1, m2 := t.optimizer.m1[p], t.optimizer.m2[p]
			if !yield(p, m1) || m2 != nil && !yield(p, m2) {
				return
			}
		}
	}
}

// setMoment encodes this rank's rows of moment m of p and writes them with their scales. amax is
// that of all rows.
func (t *Trainer) setMoment(p *nn.Param, m *backend.Tensor, x []float32, amax float32) error {
	o := t.Recipe.Optimizer
	codes, scaleInv := encodeMoment(m, x, amax, o.Pow2, o.FloorV && m == t.optimizer.m2[p])
	if err := t.device.Write(m, codes); err != nil || m.Scale == nil {
		return err
	}
	return t.device.Write(m.Scale, fp8.AppendFloats(nil, scaleInv...))
}

// encodeMoment encodes rows of a moment in the format of m, rounded to nearest, with the
// scales that AdamW would choose; amax is that of all rows. With floor, positive values do not
// become 0.
func encodeMoment(m *backend.Tensor, x []float32, amax float32, pow2, floor bool) (codes []byte, scaleInv []float32) {
	if m.DType == fp8.F32 {
		return fp8.AppendFloats(nil, x...), nil
	}
	codes = make([]byte, 0, len(x)*m.DType.Size())
	for _, block := range momentBlocks(m, x) {
		scale := float32(1)
		switch {
		case m.Expand:
			e, ok := fp8.ExpansionOf(block, m.DType.Max())
			if !ok {
				e = fp8.Expansion{1, 1, 1}
			}
			block = slices.Clone(block)
			e.Compress(block)
			scaleInv = append(scaleInv, e[:]...)
		case m.Scale != nil:
			if m.Block != backend.PerTensor {
				amax = fp8.Amax(block)
			}
			scale, _ = fp8.ScaleFor(amax, m.DType.Max(), pow2)
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

// readMoment returns the dequantized rows of a moment that this rank holds.
func (t *Trainer) readMoment(m *backend.Tensor) ([]float32, error) {
	x, err := t.localFloats(m)
	if err != nil || m.Scale == nil {
		return x, err
	}
	scaleInv, err := t.localFloats(m.Scale)
	if err != nil {
		return nil, err
	}
	dequantizeMoment(m, x, scaleInv)
	return x, nil
}

func dequantizeMoment(m *backend.Tensor, x, scaleInv []float32) {
	for i, block := range momentBlocks(m, x) {
		if m.Expand {
			fp8.Expansion(scaleInv[i*fp8.ExpansionElems:][:fp8.ExpansionElems]).Expand(block)
			continue
		}
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
