package serve

import (
	"context"
	"strings"

	"octet/backend"
	"octet/backend/arith"
	"octet/fp8"
	"octet/internal/gemm"
)

// castRequest asks for codes of Count values, each multiplied by Scale and then cast. It has
// one buffer, the values, and is answered with one, a code for each in one byte, or two of
// formats of 16 bits.
type castRequest struct {
	Count    int64   `json:"count"`
	Source   string  `json:"source"` // fp32, bf16 or fp16
	Format   string  `json:"format"`
	Device   string  `json:"device"` // selects the variant of e4m3
	Scale    float32 `json:"scale"`
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
	var c castRequest
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

// piece is the number of elements that castAll reads at a time: 1 MiB of float32, which stay
// in a cache of the second level.
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

// decodeRequest asks for the float32 values of Count codes, each multiplied by ScaleInv.
type decodeRequest struct {
	Count    int64   `json:"count"`
	Format   string  `json:"format"`
	ScaleInv float32 `json:"scale_inv"`
}

func decode(_ context.Context, _ *server, q *request) (reply, error) {
	var d decodeRequest
	if err := q.fields(&d); err != nil {
		return reply{}, valueError{err}
	}
	format, err := fp8.ParseDType(d.Format)
	if err != nil {
		return reply{}, valueError{err}
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
	values := make([]float32, len(codes))
	if format.IsQuantized() {
		fp8.Dequantize8(values, codes, format.InBytes(), d.ScaleInv)
	} else {
		for i, code := range codes {
			values[i] = format.Float32(uint32(code)) * d.ScaleInv
		}
	}
	return reply{nil, [][]byte{fp8.AppendFloats(nil, values...)}}, nil
}

// maxCount is the number of elements that an array may have: 16 GiB of float32.
const maxCount = 1 << 32

func checkCount(n int64) error {
	if n < 0 || n > maxCount {
		return wrong("an array of %d elements: expected 0 to %d", n, int64(maxCount))
	}
	return nil
}

// sourceOf returns the format of values that a client sends.
func sourceOf(name string) (fp8.DType, error) {
	d, err := fp8.ParseDType(name)
	if err == nil && d != fp8.F32 && d != fp8.BF16 && d != fp8.F16 {
		err = wrong("values in %s: expected fp32, bf16 or fp16", name)
	}
	if err != nil {
		return d, valueError{err}
	}
	return d, nil
}

// backendOf returns the backend that a client calls device: a name as --backend takes it, or
// that of a device model alone.
func backendOf(device string) string {
	switch _, err := arith.Lookup(device); {
	case device == "":
		return "emu"
	case err == nil && !strings.Contains(device, ":"):
		return "emu:" + device
	}
	return device
}

// formatOn returns the format that a device has for a name: e4m3 is the device's variant.
func formatOn(device, name string) (fp8.DType, error) {
	spec, err := backend.SpecOf(backendOf(device))
	if err != nil {
		return fp8.Invalid, valueError{err}
	}
	d, err := gemm.Format(&spec, name)
	if err != nil {
		return d, valueError{err}
	}
	return d, nil
}
