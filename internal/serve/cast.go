package serve

import (
	"context"

	"octet/fp8"
)

// castRequest asks for codes of Count values, each multiplied by Scale and then cast. It has one
// buffer, the values. The reply has one buffer: one code per value, in one byte, or two for BF16 and
// FP16.
type castRequest struct {
	Count    int64   `json:"count"`
	Source   string  `json:"source"` // fp32, bf16 or fp16
	Format   string  `json:"format"`
	Device   string  `json:"device"` // selects the variant of e4m3
	Scale    float32 `json:"scale"`  // default: 1
	Rounding string  `json:"rounding"`
	Seed     uint64  `json:"seed"`
	Saturate bool    `json:"saturate"` // otherwise overflow is infinity or NaN
}

// castReply names the format of the codes.
type castReply struct {
	Format string `json:"format"`
}

// caster casts pieces of an array.
type caster struct {
	format   fp8.DType
	scale    float32
	rounding fp8.Rounding
	overflow fp8.Overflow
	key      uint64 // of the random bits
}

func cast(_ context.Context, _ *server, q *request) (reply, error) {
	c := castRequest{Scale: 1}
	if err := q.fields(&c); err != nil {
		return reply{}, valueError{err}
	}
	from, err := sourceOf(c.Source)
	if err != nil {
		return reply{}, err
	}
	k := caster{scale: c.Scale, key: fp8.StreamKey(c.Seed, 0, fp8.NameKey("cast")), overflow: fp8.NonSaturating}
	if c.Saturate {
		k.overflow = fp8.Saturate
	}
	if k.format, err = formatOn(c.Device, c.Format); err != nil {
		return reply{}, err
	}
	if !k.format.IsQuantized() && k.format != fp8.BF16 && k.format != fp8.F16 {
		return reply{}, wrong("format %s: expected one of up to eight bits, such as e4m3 and int8, or bf16 or fp16", c.Format)
	}
	if k.rounding, err = fp8.ParseRounding(c.Rounding); err != nil {
		return reply{}, valueError{err}
	}
	if err := checkCount(c.Count); err != nil {
		return reply{}, err
	}
	if err := q.sized(c.Count * int64(from.Size())); err != nil {
		return reply{}, valueError{err}
	}
	codes, err := k.castAll(q, from, int(c.Count))
	return reply{castReply{k.format.String()}, [][]byte{codes}}, err
}

// piece is the number of elements that castAll reads at a time: 1 MiB of float32, which stay in the
// L2 cache.
const piece = 1 << 18

// castAll casts the values of a request's buffer. A second goroutine casts a piece while
// castAll reads the next one.
func (k caster) castAll(q *request, from fp8.DType, count int) ([]byte, error) {
	width := k.width()
	codes := make([]byte, count*width)
	type part struct {
		raw []byte
		at  int
	}
	full, empty, done := make(chan part, 2), make(chan []byte, 2), make(chan struct{})
	for range cap(empty) {
		empty <- make([]byte, min(piece, count)*from.Size())
	}
	go func() {
		defer close(done)
		values := make([]float32, min(piece, count))
		for p := range full {
			n := len(p.raw) / from.Size()
			from.Decode(values[:n], p.raw)
			k.cast(codes[p.at*width:][:n*width], values[:n], p.at)
			empty <- p.raw[:cap(p.raw)]
		}
	}()
	var err error
	for at := 0; at < count && err == nil; at += piece {
		raw := (<-empty)[:min(piece, count-at)*from.Size()]
		if err = q.fill(raw); err == nil {
			full <- part{raw, at}
		}
	}
	close(full)
	<-done
	return codes, err
}

// width returns the bytes of a code.
func (k caster) width() int {
	if k.format.IsQuantized() {
		return 1
	}
	return k.format.Size()
}

// cast casts values, whose first one has the index at in the array.
func (k caster) cast(codes []byte, values []float32, at int) {
	if k.format.IsQuantized() && k.overflow == fp8.Saturate {
		if k.rounding == fp8.Stochastic {
			fp8.Quantize8Stochastic(codes, values, k.format, k.scale, k.key, uint64(at), false)
		} else {
			fp8.Quantize8(codes, values, k.format, k.scale, false)
		}
		return
	}
	width := k.width()
	for i, v := range values {
		var code uint32
		if k.rounding == fp8.Stochastic {
			code = k.format.Stochastic(v*k.scale, fp8.Random(k.key, uint64(at+i)), k.overflow)
		} else {
			code = k.format.Nearest(v*k.scale, k.overflow)
		}
		codes[i*width] = byte(code)
		if width == 2 {
			codes[i*width+1] = byte(code >> 8)
		}
	}
}

// decodeRequest asks for the float32 values of Count codes, each multiplied by ScaleInv. It has one
// buffer, the codes, one in a byte, and is answered with one.
type decodeRequest struct {
	Count    int64   `json:"count"`
	Format   string  `json:"format"`
	ScaleInv float32 `json:"scale_inv"` // default: 1
}

func decode(_ context.Context, _ *server, q *request) (reply, error) {
	d := decodeRequest{ScaleInv: 1}
	if err := q.fields(&d); err != nil {
		return reply{}, valueError{err}
	}
	format, err := formatOn("", d.Format)
	if err != nil {
		return reply{}, err
	}
	if !format.IsQuantized() && !format.IsForScales() {
		return reply{}, wrong("format %s: expected one of up to eight bits, such as e4m3, int8 and e8m0", d.Format)
	}
	if err := checkCount(d.Count); err != nil {
		return reply{}, err
	}
	if err := q.sized(d.Count); err != nil {
		return reply{}, valueError{err}
	}
	codes, err := q.read(d.Count)
	if err != nil {
		return reply{}, err
	}
	raw := make([]byte, 4*len(codes))
	values := make([]float32, min(piece, len(codes)))
	for at := 0; at < len(codes); at += piece {
		part := codes[at:min(at+piece, len(codes))]
		fp8.Dequantize8(values[:len(part)], part, format.InBytes(), d.ScaleInv)
		fp8.AppendFloats(raw[:4*at], values[:len(part)]...)
	}
	return reply{nil, [][]byte{raw}}, nil
}
