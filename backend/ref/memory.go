package ref

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"octet/backend"
	"octet/fp8"
)

// Write implements backend.Backend.
func (b *Backend) Write(t *backend.Tensor, raw []byte) error {
	if err := errors.Join(b.own(t), t.FitsBuffer(len(raw))); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	b.put(t, decode(t.DType, raw))
	return nil
}

// Read implements backend.Backend.
func (b *Backend) Read(t *backend.Tensor, raw []byte) error {
	if err := errors.Join(b.own(t), t.FitsBuffer(len(raw))); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	copy(raw, encode(t.DType, b.stored(t)))
	return nil
}

// Values returns what t holds, row-major, without its scale: for F32 and BF16
// in Exact mode numbers that no Read could return.
func (b *Backend) Values(t *backend.Tensor) ([]float64, error) {
	if err := b.own(t); err != nil {
		return nil, fmt.Errorf("values: %w", err)
	}
	return b.stored(t), nil
}

// SetValues is the inverse of Values; what the format cannot hold is rounded.
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
		return fmt.Errorf("tensor %s is not bound to this backend", t)
	}
	return nil
}

// observed is what an observer sees.
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

// poison makes reads of unwritten temps visible.
func (b *Backend) poison(temps []*backend.Tensor) {
	for _, t := range temps {
		data := b.data[t]
		for i := range data {
			data[i] = math.NaN()
		}
	}
}

// stored copies t's values out, row-major without gaps, scale not applied.
func (b *Backend) stored(t *backend.Tensor) []float64 {
	rows, cols, root := t.Rows(), t.Cols(), b.data[t.Root()]
	values := make([]float64, 0, rows*cols)
	for r := range rows {
		from := t.Offset + r*t.LD
		values = append(values, root[from:from+cols]...)
	}
	return values
}

// read is stored with the scale applied: the tensor's values in the sense of
// every op's equation.
func (b *Backend) read(t *backend.Tensor) []float64 {
	values := b.stored(t)
	if t.Scale == nil {
		return values
	}
	factors := b.stored(t.Scale)
	for i := range values {
		values[i] *= factors[t.ScaleIndex(i)]
	}
	return values
}

// readOr is read of an optional operand: n times value where there is none.
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

// control decodes step.control; all zero where there is none.
func (b *Backend) control(t *backend.Tensor) backend.Control {
	words := make([]int32, backend.ControlWords)
	if t != nil {
		for i, v := range b.stored(t) {
			words[i] = int32(v)
		}
	}
	return backend.ControlFrom(words)
}

// set reports whether an optional flag is given and not zero.
func (b *Backend) set(t *backend.Tensor) bool { return t != nil && b.stored(t)[0] != 0 }

// put copies values, which t's format can hold, into t.
func (b *Backend) put(t *backend.Tensor, values []float64) {
	cols, root := t.Cols(), b.data[t.Root()]
	for r := range t.Rows() {
		copy(root[t.Offset+r*t.LD:], values[r*cols:(r+1)*cols])
	}
}

// store rounds values to nearest into t.
func (b *Backend) store(t *backend.Tensor, values []float64) {
	rounded := make([]float64, len(values))
	for i, x := range values {
		rounded[i] = b.round(t.DType, b.fp32(x), fp8.Nearest, 0)
	}
	b.put(t, rounded)
}

// fp32 is the FP32 result of an op or of one operation in it.
func (b *Backend) fp32(x float64) float64 {
	if b.mode == Exact {
		return x
	}
	return float64(float32(x))
}

// round is the last rounding, from FP32 to the format d.
func (b *Backend) round(d fp8.DType, x float64, rounding fp8.Rounding, random uint32) float64 {
	if d == fp8.I32 || b.mode == Exact && (d == fp8.F32 || d == fp8.BF16) {
		return x
	}
	overflow := fp8.Saturate
	if d == fp8.F32 || d == fp8.BF16 {
		overflow = fp8.NonSaturating
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

// fold makes *t the amax of its old value and a, if t is given.
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

// cast stores an op's result x, of cols columns, through its casts.
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
		at := func(i int) int { // where element i of x is in Out
			if c.Transpose {
				return i%cols*rows + i/cols
			}
			return i
		}
		blockScale := func(int) float64 { return scale }
		if c.ScaleInv != nil {
			blockScale = b.blockScales(c, x, at)
		}
		codes, amax := make([]float64, len(x)), 0.0
		for i := range x {
			v := b.fp32(x[i])
			amax = maxAmax(amax, v)
			random := uint32(0)
			if c.Rounding == fp8.Stochastic {
				random = fp8.Random(key, first+uint64(i))
			}
			codes[at(i)] = b.round(c.Out.DType, b.fp32(v*blockScale(at(i))), c.Rounding, random)
		}
		b.put(c.Out, codes)
		b.fold(c.Amax, amax)
	}
}

func decode(d fp8.DType, raw []byte) []float64 {
	values := make([]float64, len(raw)/d.Size())
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
	raw := make([]byte, 0, len(values)*d.Size())
	for _, v := range values {
		var code uint32
		if d == fp8.I32 {
			code = uint32(int32(v))
		} else {
			// The value is in the format already, infinity included.
			code = d.Nearest(float32(v), fp8.NonSaturating)
		}
		switch d.Size() {
		case 1:
			raw = append(raw, byte(code))
		case 2:
			raw = binary.LittleEndian.AppendUint16(raw, uint16(code))
		default:
			raw = binary.LittleEndian.AppendUint32(raw, code)
		}
	}
	return raw
}
