package serve

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"octet/backend"
	"octet/fp8"
	"octet/internal/gemm"
)

// multiplyRequest asks for A·Bᵀ, the dot products of the rows of two matrices of codes. It has four
// buffers: the codes of A, one in a byte, the scales of A, the codes of B, the scales of B. The reply
// has one, the result [A.Rows, B.Rows].
type multiplyRequest struct {
	Device string `json:"device"`
	A      matrix `json:"a"`
	B      matrix `json:"b"`
	Fast   bool   `json:"fast"` // accumulate in the matrix unit, see backend.Fast
	Out    string `json:"out"`  // fp32, bf16 or fp16
}

// matrix describes codes with scales. A value is code · scale_inv · outer.
type matrix struct {
	Format string  `json:"format"`
	Rows   int64   `json:"rows"`
	Cols   int64   `json:"cols"`
	Block  string  `json:"block"` // elements that share a scale: tensor, 1x*, 1x32
	Scale  string  `json:"scale"` // format of the scales: fp32, or codes of e8m0 or e4m3
	Outer  float32 `json:"outer"` // default: none
}

// maxResult is the number of elements that a result may have: 4 GiB of float32.
const maxResult = 1 << 30

func multiply(ctx context.Context, s *server, q *request) (reply, error) {
	var m multiplyRequest
	if err := q.fields(&m); err != nil {
		return reply{}, valueError{err}
	}
	to, err := sourceOf(m.Out)
	if err != nil {
		return reply{}, err
	}
	a, err := m.A.on(m.Device)
	if err != nil {
		return reply{}, fmt.Errorf("a: %w", err)
	}
	b, err := m.B.on(m.Device)
	if err != nil {
		return reply{}, fmt.Errorf("b: %w", err)
	}
	switch {
	case a.Cols != b.Cols:
		return reply{}, wrong("a has %d columns and b %d rows: expected the same number, K", a.Cols, b.Cols)
	case int64(a.Rows)*int64(b.Rows) > maxResult:
		return reply{}, wrong("a result of %d×%d: expected at most %d elements", a.Rows, b.Rows, maxResult)
	}
	if err := q.sized(sizes(a, b)...); err != nil {
		return reply{}, valueError{err}
	}
	for _, o := range []*gemm.Operand{&a, &b} {
		if err := readOperand(q, o); err != nil {
			return reply{}, err
		}
	}
	accum := backend.Promoted
	if m.Fast {
		accum = backend.Fast
	}
	loaded, done, err := s.multiplier(m, a, b, accum)
	if err != nil {
		return reply{}, err
	}
	raw, err := loaded.Run(ctx, a, b)
	if err = errors.Join(err, done()); err != nil {
		return reply{}, err
	}
	return reply{nil, [][]byte{rounded(raw, to)}}, nil
}

// on returns the operand on a device, without codes and scales.
func (o matrix) on(device string) (g gemm.Operand, err error) {
	if g.DType, err = formatOn(device, o.Format); err != nil {
		return g, err
	}
	if !g.DType.IsQuantized() {
		return g, wrong("format %s: expected one of up to eight bits, such as e4m3", o.Format)
	}
	if g.ScaleDType, err = fp8.ParseDType(o.Scale); err != nil {
		return g, valueError{err}
	}
	if s := g.ScaleDType; s != fp8.F32 && !s.IsForScales() && (!s.IsQuantized() || !s.IsFloat()) {
		return g, wrong("scales in %s: expected fp32, e8m0 or e4m3", o.Scale)
	}
	if g.Block, err = backend.ParseScaleBlock(o.Block); err != nil {
		return g, valueError{err}
	}
	if err := checkMatrix(o.Rows, o.Cols); err != nil {
		return g, err
	}
	if g.DType.Size() == 0 && o.Cols%2 == 1 {
		return g, wrong("K of %d: a byte holds two codes of %s, so K must be even", o.Cols, g.DType)
	}
	g.Rows, g.Cols, g.Outer = int(o.Rows), int(o.Cols), o.Outer
	g.ScaleRows, g.ScaleCols = g.Block.ScaleShape(g.Rows, g.Cols)
	return g, nil
}

// sizes returns the sizes of the buffers of two operands.
func sizes(operands ...gemm.Operand) (list []int64) {
	for _, o := range operands {
		list = append(list, int64(o.Rows)*int64(o.Cols), int64(o.ScaleRows)*int64(o.ScaleCols)*int64(o.ScaleDType.Size()))
	}
	return list
}

// readOperand reads the codes and scales of an operand.
func readOperand(q *request, o *gemm.Operand) (err error) {
	if o.Codes, err = q.read(int64(o.Rows) * int64(o.Cols)); err != nil {
		return err
	}
	if o.DType.Size() == 0 {
		packed := make([]byte, o.DType.Bytes(len(o.Codes)))
		fp8.Pack4(packed, o.Codes)
		o.Codes = packed
	}
	o.Scale, err = q.read(int64(o.ScaleRows) * int64(o.ScaleCols) * int64(o.ScaleDType.Size()))
	return err
}

// rounded returns FP32 values in another format, rounded to nearest. Overflow is infinity.
func rounded(raw []byte, to fp8.DType) []byte {
	if to == fp8.F32 {
		return raw
	}
	values := make([]float32, len(raw)/4)
	fp8.F32.Decode(values, raw)
	codes := make([]uint16, len(values))
	if to == fp8.BF16 {
		fp8.EncodeBF16(codes, values)
	} else {
		for i, v := range values {
			codes[i] = uint16(fp8.F16.Nearest(v, fp8.NonSaturating))
		}
	}
	raw = raw[:0]
	for _, c := range codes {
		raw = append(raw, byte(c), byte(c>>8))
	}
	return raw
}

// cache keeps the most recently used GEMMs loaded, because loading a small one takes longer than
// running it. It evicts the least recently used.
type cache struct {
	entries []entry // the most recently used first
}

type entry struct {
	key    multiplyRequest
	dev    backend.Backend
	loaded *gemm.Multiplier
}

// The cache holds this many GEMMs, each of at most this many elements of operands and result.
const (
	cachedGEMMs    = 8
	cachedElements = 1 << 22
)

// multiplier returns the loaded GEMM of a request, and a function to call after its run.
func (s *server) multiplier(m multiplyRequest, a, b gemm.Operand, accum backend.Accum) (loaded *gemm.Multiplier, done func() error, err error) {
	m.Out = "" // not part of the program, in which an outer scale is a variable
	for _, outer := range []*float32{&m.A.Outer, &m.B.Outer} {
		if *outer != 0 {
			*outer = 1
		}
	}
	c := &s.loaded
	done = func() error { return nil }
	if i := slices.IndexFunc(c.entries, func(e entry) bool { return e.key == m }); i >= 0 {
		e := c.entries[i]
		copy(c.entries[1:i+1], c.entries[:i])
		c.entries[0] = e
		return e.loaded, done, nil
	}
	on, err := backendOf(m.Device)
	if err != nil {
		return nil, nil, err
	}
	dev, err := backend.Open(on, backend.Options{Threads: s.threads})
	if err != nil {
		return nil, nil, err
	}
	if loaded, err = gemm.Load(dev, a, b, accum); err != nil {
		return nil, nil, errors.Join(err, dev.Close())
	}
	if int64(a.Rows)*int64(a.Cols)+int64(b.Rows)*int64(b.Cols)+int64(a.Rows)*int64(b.Rows) > cachedElements {
		return loaded, dev.Close, nil
	}
	c.entries = slices.Insert(c.entries, 0, entry{m, dev, loaded})
	return loaded, done, c.trim(cachedGEMMs)
}

// trim closes all but the first n entries.
func (c *cache) trim(n int) (err error) {
	for len(c.entries) > n {
		last := len(c.entries) - 1
		err = errors.Join(err, c.entries[last].dev.Close())
		c.entries = c.entries[:last]
	}
	return err
}
