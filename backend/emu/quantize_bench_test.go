package emu

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/emu/pool"
	"octet/fp8"
)

// castTensors declares the operands of one cast.
type castTensors struct {
	vars       *backend.Vars
	rows, cols int
	list       []*backend.Tensor
}

func (s *castTensors) add(d fp8.DType, shape ...int) *backend.Tensor {
	t := s.vars.Tensor(backend.Stash, fmt.Sprintf("t%d", len(s.list)), d, shape...)
	s.list = append(s.list, t)
	return t
}

func (s *castTensors) input() *backend.Tensor       { return s.add(fp8.BF16, s.rows, s.cols) }
func (s *castTensors) vector(n int) *backend.Tensor { return s.add(fp8.F32, n) }

// fill gives every tensor values of magnitude about 1; integers are row numbers.
func (s *castTensors) fill(d *device) {
	for _, t := range s.list {
		raw := d.memory[t]
		bits := uint32(0)
		start := raw[:min(len(raw), 1<<16)]
		for i := 0; i < len(start); i += t.DType.Size() {
			bits = bits*1664525 + 1013904223
			x := float32(int32(bits)) / (1 << 30)
			switch t.DType {
			case fp8.F32:
				binary.LittleEndian.PutUint32(start[i:], math.Float32bits(max(x, 0.5))) // may be a scale
			case fp8.BF16:
				binary.LittleEndian.PutUint16(start[i:], uint16(math.Float32bits(x)>>16))
			case fp8.I32:
				binary.LittleEndian.PutUint32(start[i:], uint32(i/4*7%s.rows))
			}
		}
		for n := len(start); n < len(raw); n *= 2 {
			copy(raw[n:], raw[:n])
		}
	}
}

// castTo declares a tensor of s.rows × s.cols, or its transpose, and the cast to it.
func (s *castTensors) castTo(d fp8.DType, rounding fp8.Rounding, transpose bool) backend.Cast {
	rows, cols := s.rows, s.cols
	if transpose {
		rows, cols = cols, rows
	}
	c := backend.Cast{Out: s.add(d, rows, cols), Transpose: transpose, Rounding: rounding}
	if d != fp8.BF16 {
		c.Out.Scale, c.Scale, c.Amax = s.vector(1), s.vector(1), s.vector(1)
	}
	if rounding == fp8.Stochastic {
		c.Control = s.add(fp8.I32, backend.ControlWords)
	}
	return c
}

// castPerBlock returns a cast to E4M3 with a scale per block of rows × cols.
func (s *castTensors) castPerBlock(scale fp8.DType, rows, cols int) backend.Op {
	c := backend.Cast{Out: s.add(fp8.E4M3, s.rows, s.cols)}
	c.Out.Block = backend.ScaleBlock{Rows: rows, Cols: cols}
	across, along := c.Out.Block.ScaleShape(s.rows, s.cols)
	c.ScaleInv = s.add(scale, across, along)
	if c.Out.Scale = c.ScaleInv; scale == fp8.F32 {
		c.Limit = 448
	}
	return &backend.Quantize{X: s.input(), Out: []backend.Cast{c}}
}

// scaledF16 declares an F16 matrix with a scale_inv.
func (s *castTensors) scaledF16() *backend.Tensor {
	t := s.add(fp8.F16, s.rows, s.cols)
	t.Scale = s.vector(1)
	return t
}

var castOps = []struct {
	name string
	op   func(s *castTensors) backend.Op
}{
	{"f32-e4m3", func(s *castTensors) backend.Op {
		return &backend.Quantize{X: s.add(fp8.F32, s.rows, s.cols), Out: []backend.Cast{s.castTo(fp8.E4M3, fp8.Nearest, false)}}
	}},
	{"bf16-e4m3", func(s *castTensors) backend.Op {
		return &backend.Quantize{X: s.input(), Out: []backend.Cast{s.castTo(fp8.E4M3, fp8.Nearest, false)}}
	}},
	{"bf16-e4m3-columns", func(s *castTensors) backend.Op {
		return &backend.Quantize{X: s.input(), ColScale: s.vector(s.cols), Out: []backend.Cast{s.castTo(fp8.E4M3, fp8.Nearest, false)}}
	}},
	{"f16-e4m3", func(s *castTensors) backend.Op {
		return &backend.Quantize{X: s.scaledF16(), Out: []backend.Cast{s.castTo(fp8.E4M3, fp8.Nearest, false)}}
	}},
	{"f32-e4m3-stochastic", func(s *castTensors) backend.Op {
		return &backend.Quantize{X: s.add(fp8.F32, s.rows, s.cols), Out: []backend.Cast{s.castTo(fp8.E4M3, fp8.Stochastic, false)}}
	}},
	{"bf16-e4m3-stochastic", func(s *castTensors) backend.Op {
		return &backend.Quantize{X: s.input(), Out: []backend.Cast{s.castTo(fp8.E4M3, fp8.Stochastic, false)}}
	}},
	{"f32-bf16", func(s *castTensors) backend.Op {
		return &backend.Quantize{X: s.add(fp8.F32, s.rows, s.cols), Out: []backend.Cast{s.castTo(fp8.BF16, fp8.Nearest, false)}}
	}},
	{"f32-e4m3-transposed", func(s *castTensors) backend.Op {
		return &backend.Quantize{X: s.add(fp8.F32, s.rows, s.cols), Out: []backend.Cast{s.castTo(fp8.E4M3, fp8.Nearest, true)}}
	}},
	{"f32-e4m3+e5m2-both", func(s *castTensors) backend.Op {
		return &backend.Quantize{X: s.add(fp8.F32, s.rows, s.cols), Out: []backend.Cast{
			s.castTo(fp8.E4M3, fp8.Nearest, false), s.castTo(fp8.E4M3, fp8.Nearest, true),
			s.castTo(fp8.E5M2, fp8.Nearest, false), s.castTo(fp8.E5M2, fp8.Nearest, true),
		}}
	}},
	{"bf16-e4m3-per-row", func(s *castTensors) backend.Op { return s.castPerBlock(fp8.F32, 1, 0) }},
	{"bf16-e4m3-per-column", func(s *castTensors) backend.Op { return s.castPerBlock(fp8.F32, 0, 1) }},
	{"bf16-e4m3-1x128", func(s *castTensors) backend.Op { return s.castPerBlock(fp8.F32, 1, 128) }},
	{"bf16-e4m3-128x1", func(s *castTensors) backend.Op { return s.castPerBlock(fp8.F32, 128, 1) }},
	{"bf16-e4m3-128x128", func(s *castTensors) backend.Op { return s.castPerBlock(fp8.F32, 128, 128) }},
	{"bf16-e4m3-1x32", func(s *castTensors) backend.Op { return s.castPerBlock(fp8.E8M0, 1, 32) }},
	{"bf16-e4m3-32x1", func(s *castTensors) backend.Op { return s.castPerBlock(fp8.E8M0, 32, 1) }},
	{"f32-bf16-transposed", func(s *castTensors) backend.Op {
		return &backend.Quantize{X: s.add(fp8.F32, s.rows, s.cols), Out: []backend.Cast{s.castTo(fp8.BF16, fp8.Nearest, true)}}
	}},
	{"bf16-amax", func(s *castTensors) backend.Op {
		return &backend.Amax{X: s.input(), Out: s.vector(1)}
	}},
	{"bf16-amax-columns", func(s *castTensors) backend.Op {
		return &backend.Amax{X: s.input(), Out: s.vector(s.cols)}
	}},
}

// BenchmarkCasts alternates each cast with a copy of as many bytes on as many threads, for tensors
// that fit the caches and for much larger ones. It reports the best of each in GB/s (bytes read and
// written, each operand once) and the cast's share of the copy bandwidth.
func BenchmarkCasts(b *testing.B) {
	for _, shape := range [][2]int{{1024, 1024}, {1 << 15, 1 << 11}} {
		for _, c := range castOps {
			for _, threads := range []int{1, 2} {
				b.Run(fmt.Sprintf("%s/%dx%d/%d", c.name, shape[0], shape[1], threads), func(b *testing.B) {
					benchmarkCast(b, shape[0], shape[1], threads, c.op)
				})
			}
		}
	}
}

func benchmarkCast(b *testing.B, rows, cols, threads int, op func(s *castTensors) backend.Op) {
	s := &castTensors{vars: backend.NewVars(), rows: rows, cols: cols}
	p := s.vars.Program("bench")
	p.Add(op(s))
	require.NoError(b, p.Err())
	dev, err := Open("", backend.Options{Threads: threads})
	require.NoError(b, err)
	d := dev.(*device)
	defer d.Close()
	x, err := d.Load(p)
	require.NoError(b, err)
	s.fill(d)

	bytes := p.Nodes()[0].Cost().Bytes
	src, dst := pool.Bytes(bytes/2), pool.Bytes(bytes/2)
	for i := range src {
		src[i], dst[i] = 1, 1
	}
	const piece = 1 << 16
	transfer := func(_, task int) {
		from := task * piece
		to := min(from+piece, len(src))
		copy(dst[from:to], src[from:to])
	}
	var own, peer []float64
	for b.Loop() {
		start := time.Now()
		require.NoError(b, x[0].Run(context.Background()))
		middle := time.Now()
		d.pool.Run(pool.CeilDiv(len(src), piece), transfer)
		own = append(own, middle.Sub(start).Seconds())
		peer = append(peer, time.Since(middle).Seconds())
	}
	t, c := slices.Min(own), slices.Min(peer)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(t*1e9/float64(rows*cols), "ns/element")
	b.ReportMetric(float64(bytes)/1e9/t, "GB/s")
	b.ReportMetric(float64(bytes)/1e9/c, "copyGB/s")
	b.ReportMetric(100*c/t, "%copy")
}
