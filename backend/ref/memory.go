package ref

import (
	"encoding/binary"
	"fmt"
	"math"

	"octet/backend"
	"octet/fp8"
)

// Write implements backend.Backend.
func (b *Backend) Write(t *backend.Tensor, raw []byte) error {
	if err := b.vars.CheckCopy(t, len(raw)); err != nil {
		return err
	}
	b.put(t, decode(t.DType, raw))
	return nil
}

// Read implements backend.Backend.
func (b *Backend) Read(t *backend.Tensor, raw []byte) error {
	if err := b.vars.CheckCopy(t, len(raw)); err != nil {
		return err
	}
	copy(raw, encode(t.DType, b.stored(t)))
	return nil
}

// Values returns t's stored values, row-major, scale not applied. In Exact mode F32,
// BF16 and unscaled F16 values are not rounded, unlike Read's.
func (b *Backend) Values(t *backend.Tensor) ([]float64, error) {
	if err := b.own(t); err != nil {
		return nil, fmt.Errorf("values: %w", err)
	}
	return b.stored(t), nil
}

// SetValues is the inverse of Values; it rounds values to t's format.
func (b *Backend) SetValues(t *backend.Tensor, values []float64) error {
	if err := b.own(t); err != nil {
		return fmt.Errorf("set values: %w", err)
	}
	if len(values) != t.Elems() {
		return fmt.Errorf("set values: %s takes %d values, got %d", t, t.Elems(), len(values))
	}
	b.store(t, values)
	return nil
}

func (b *Backend) own(t *backend.Tensor) error {
	if b.data[t.Root()] == nil {
		return fmt.Errorf("tensor %s has no memory in this backend", t)
	}
	return nil
}

// observed is the backend.Memory of observers.
type observed struct{ *Backend }

// Read implements backend.Memory.
func (o observed) Read(t *backend.Tensor) ([]byte, error) {
	if err := o.own(t); err != nil {
		return nil, err
	}
	return encode(t.DType, o.stored(t)), nil
}

// Write implements backend.Memory.
func (o observed) Write(t *backend.Tensor, raw []byte) error {
	err := o.own(t)
	if err == nil && int64(len(raw)) != t.Bytes() {
		err = fmt.Errorf("%s takes %d bytes, got %d", t, t.Bytes(), len(raw))
	}
	if err == nil {
		o.put(t, decode(t.DType, raw))
	}
	return err
}

// poison fills temps with NaN, so that reads of unwritten ones show.
func (b *Backend) poison(temps []*backend.Tensor) {
	for _, t := range temps {
		data := b.data[t]
		for i := range data {
			data[i] = math.NaN()
		}
	}
}

// stored returns a copy of t's values, row-major without gaps, scale not applied.
func (b *Backend) stored(t *backend.Tensor) []float64 {
	rows, cols, root := t.Rows(), t.Cols(), b.data[t.Root()]
	values := make([]float64, 0, rows*cols)
	for r := range rows {
		from := t.Offset + r*t.LD
		values = append(values, root[from:from+cols]...)
	}
	return values
}

// read returns t's values with its scale applied, as the ops' equations mean them.
func (b *Backend) read(t *backend.Tensor) []float64 {
	values := b.stored(t)
	if t.Scale == nil {
		return values
	}
	scales, outer := b.stored(t.Scale), 1.0
	if t.Outer != nil {
		outer = b.stored(t.Outer)[0]
	}
	for i := range values {
		if t.Expand {
			values[i] = expanded(values[i], scales[fp8.ExpansionElems*t.ScaleIndex(i):])
		} else {
			values[i] *= scales[t.ScaleIndex(i)] * outer
		}
	}
	return values
}

// readOr reads an optional operand; a nil one reads as n times value.
func (b *Backend) readOr(t *backend.Tensor, n int, value float64) []float64 {
	if t != nil {
		return b.read(t)
	}
	values := make([]float64, n)
	for i := range values {
		values[i] = value
	}
	return values
}

func (b *Backend) ints(t *backend.Tensor) []int {
	var list []int
	for _, v := range b.stored(t) {
		list = append(list, int(v))
	}
	return list
}

// control decodes step.control; nil decodes as zeros.
func (b *Backend) control(t *backend.Tensor) backend.Control {
	words := make([]int32, backend.ControlWords)
	if t != nil {
		for i, v := range b.stored(t) {
			words[i] = int32(v)
		}
	}
	return backend.ControlFrom(words)
}

// set reports whether an optional flag is present and not zero.
func (b *Backend) set(t *backend.Tensor) bool { return t != nil && b.stored(t)[0] != 0 }

// put copies values into t; they must be values of t's format.
func (b *Backend) put(t *backend.Tensor, values []float64) {
	cols, root := t.Cols(), b.data[t.Root()]
	for r := range t.Rows() {
		copy(root[t.Offset+r*t.LD:], values[r*cols:(r+1)*cols])
	}
}

// store rounds values to nearest even and stores them in t.
func (b *Backend) store(t *backend.Tensor, values []float64) {
	rounded, overflow := make([]float64, len(values)), backend.Cast{Out: t}.Overflow()
	for i, x := range values {
		rounded[i] = b.round(t.DType, b.fp32(x), overflow, fp8.Nearest, 0)
	}
	b.put(t, rounded)
}

// fp32 rounds x to FP32, except in Exact mode.
func (b *Backend) fp32(x float64) float64 {
	if b.mode == Exact {
		return x
	}
	return float64(float32(x))
}

// round rounds the FP32 value x to the format d.
func (b *Backend) round(d fp8.DType, x float64, overflow fp8.Overflow, rounding fp8.Rounding, random uint32) float64 {
	if d == fp8.I32 || b.mode == Exact && overflow == fp8.NonSaturating {
		return x
	}
	if rounding == fp8.Stochastic {
		return float64(d.Float32(d.Stochastic(float32(x), random, overflow)))
	}
	return float64(d.Float32(d.Nearest(float32(x), overflow)))
}

// maxAmax is fp8.MaxAmax in float64: NaN is larger than infinity.
func maxAmax(a, x float64) float64 {
	if math.IsNaN(a) || math.IsNaN(x) {
		return math.NaN()
	}
	return max(a, math.Abs(x))
}

// fold sets each element of t to the amax of its old value and a; t may be nil.
func (b *Backend) fold(t *backend.Tensor, a ...float64) {
	if t == nil {
		return
	}
	values := b.stored(t)
	for i := range values {
		values[i] = maxAmax(values[i], a[i])
	}
	b.store(t, values)
}

// cast stores an op's result x of cols columns with each of its casts.
func (b *Backend) cast(x []float64, cols int, casts []backend.Cast) {
	rows := len(x) / cols
	for _, c := range casts {
		scale := b.readOr(c.Scale, 1, 1)[0]
		control := b.control(c.Control)
		key := fp8.StreamKey(control.Seed, control.Step, fp8.NameKey(c.StreamName()))
		var first uint64
		if c.Tokens {
			first = control.Token * uint64(cols)
		}
		at := func(i int) int { // index in Out of element i of x
			if c.Transpose {
				return i%cols*rows + i/cols
			}
			return i
		}
		blockScale := func(int) float64 { return scale }
		if c.ScaleInv != nil {
			blockScale = b.blockScales(c, x, at)
		}
		codes, amax, overflow := make([]float64, len(x)), 0.0, c.Overflow()
		for i := range x {
			v := b.fp32(x[i])
			amax = maxAmax(amax, v)
			random := uint32(0)
			if c.Rounding == fp8.Stochastic {
				random = fp8.Random(key, first+uint64(i))
			}
			v = b.fp32(v * blockScale(at(i)))
			if c.Precision != fp8.Invalid {
				v = float64(c.Precision.Float32(c.Precision.Nearest(float32(v), fp8.NonSaturating)))
			}
			codes[at(i)] = b.round(c.Out.DType, v, overflow, c.Rounding, random)
		}
		b.put(c.Out, codes)
		b.fold(c.Amax, amax)
	}
}

func decode(d fp8.DType, raw []byte) []float64 {
	values := make([]float64, len(raw)*8/d.Format().Store)
	if d == fp8.I32 {
		for i := range values {
			values[i] = float64(int32(binary.LittleEndian.Uint32(raw[4*i:])))
		}
		return values
	}
	stored := make([]float32, len(values))
	d.Decode(stored, raw)
	for i, v := range stored {
		values[i] = float64(v)
	}
	return values
}

func encode(d fp8.DType, values []float64) []byte {
	raw := make([]byte, 0, max(len(values), d.Bytes(len(values))))
	for _, v := range values {
		var code uint32
		if kind := d.Format().Kind; kind == fp8.Index || kind == fp8.Integer { // INT8 may hold -128, which no cast gives
			code = uint32(int32(v)) & (1<<d.Format().Bits - 1)
		} else {
			// The value is exact in the format, infinity included.
			code = d.Nearest(float32(v), fp8.NonSaturating)
		}
		switch d.Format().Store {
		case 4, 8:
			raw = append(raw, byte(code))
		case 16:
			raw = binary.LittleEndian.AppendUint16(raw, uint16(code))
		default:
			raw = binary.LittleEndian.AppendUint32(raw, code)
		}
	}
	if d.Format().Store == 4 {
		fp8.Pack4(raw, raw)
		raw = raw[:d.Bytes(len(values))]
	}
	return raw
}
