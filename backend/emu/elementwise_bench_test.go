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

// elementwiseOps makes the ops of a step that read each element a few times, on BF16
// tensors of rows × cols.
var elementwiseOps = []struct {
	name string
	op   func(s *elementwiseTensors) backend.Op
}{
	{"SwiGLU", func(s *elementwiseTensors) backend.Op {
		return &backend.SwiGLU{Up: s.input(), Gate: s.input(), Out: s.fp8()}
	}},
	{"SwiGLUSmooth", func(s *elementwiseTensors) backend.Op {
		return &backend.SwiGLU{Up: s.input(), Gate: s.input(), InvC: s.vector(s.cols), Out: s.fp8()}
	}},
	{"SwiGLUPerToken", func(s *elementwiseTensors) backend.Op {
		return &backend.SwiGLU{Up: s.input(), Gate: s.input(), TokenScale: s.vector(s.rows), Out: s.fp8()}
	}},
	{"SwiGLUAmax", func(s *elementwiseTensors) backend.Op {
		return &backend.SwiGLUAmax{Up: s.input(), Gate: s.input(), Out: s.vector(s.cols)}
	}},
	{"SwiGLUGrad", func(s *elementwiseTensors) backend.Op {
		return &backend.SwiGLUGrad{DOut: s.input(), Up: s.input(), Gate: s.input(), DUp: s.bf16(), DGate: s.bf16()}
	}},
	{"RMSNorm", func(s *elementwiseTensors) backend.Op {
		return &backend.RMSNorm{X: s.input(), Gain: s.vector(s.cols), Out: s.fp8(), InvRMS: s.vector(s.rows), Eps: 1e-5}
	}},
	{"RMSNormGrad", func(s *elementwiseTensors) backend.Op {
		return &backend.RMSNormGrad{
			DOut: s.input(), X: s.input(), Gain: s.vector(s.cols), InvRMS: s.vector(s.rows), Residual: s.input(),
			DX: s.bf16(), DGain: s.vector(s.cols),
		}
	}},
	{"Rope", func(s *elementwiseTensors) backend.Op {
		return &backend.Rope{X: s.input(), Out: s.bf16(), Seq: 256, HeadDim: 64, Theta: 1e4}
	}},
	{"CrossEntropy", func(s *elementwiseTensors) backend.Op {
		return &backend.CrossEntropy{
			Logits: s.input(), Targets: s.targets(), Control: s.add(fp8.I32, backend.ControlWords),
			Loss: s.vector(s.rows), DLogits: s.input(), Valid: s.cols,
		}
	}},
	{"GELU", func(s *elementwiseTensors) backend.Op {
		return &backend.Activation{X: s.input(), Out: s.bf16(), Kind: backend.GELU}
	}},
	{"GELUGrad", func(s *elementwiseTensors) backend.Op {
		return &backend.ActivationGrad{X: s.input(), DOut: s.input(), DX: s.bf16(), Kind: backend.GELU}
	}},
	{"ReLUGrad", func(s *elementwiseTensors) backend.Op {
		return &backend.ActivationGrad{X: s.input(), DOut: s.input(), DX: s.bf16(), Kind: backend.ReLU}
	}},
	{"Add", func(s *elementwiseTensors) backend.Op {
		return &backend.Add{A: s.input(), B: s.input(), Out: s.bf16()}
	}},
	{"Embed", func(s *elementwiseTensors) backend.Op {
		return &backend.Embed{Table: s.input(), IDs: s.targets(), Out: s.bf16()}
	}},
	{"EmbedGrad", func(s *elementwiseTensors) backend.Op {
		return &backend.EmbedGrad{IDs: s.targets(), DOut: s.input(), DTable: s.add(fp8.F32, s.rows, s.cols), Accumulate: true}
	}},
}

// elementwiseTensors declares the operands of one op.
type elementwiseTensors struct {
	vars       *backend.Vars
	rows, cols int
	list       []*backend.Tensor
}

func (s *elementwiseTensors) add(d fp8.DType, shape ...int) *backend.Tensor {
	t := s.vars.Tensor(backend.Stash, fmt.Sprintf("t%d", len(s.list)), d, shape...)
	s.list = append(s.list, t)
	return t
}

func (s *elementwiseTensors) input() *backend.Tensor       { return s.add(fp8.BF16, s.rows, s.cols) }
func (s *elementwiseTensors) vector(n int) *backend.Tensor { return s.add(fp8.F32, n) }
func (s *elementwiseTensors) targets() *backend.Tensor     { return s.add(fp8.I32, s.rows) }
func (s *elementwiseTensors) bf16() []backend.Cast         { return []backend.Cast{{Out: s.input()}} }

func (s *elementwiseTensors) fp8() []backend.Cast {
	out := s.add(fp8.E4M3, s.rows, s.cols)
	out.Scale = s.vector(1)
	return []backend.Cast{{Out: out, Scale: s.vector(1), Amax: s.vector(1)}}
}

// fill gives every tensor values of magnitude about 1; integers are row numbers.
func (s *elementwiseTensors) fill(d *device) {
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

// BenchmarkElementwise alternates each op with a copy of as many bytes on as many
// threads. It reports the best of each in GB/s (bytes read and written, each operand
// once) and the op's share of the copy bandwidth.
func BenchmarkElementwise(b *testing.B) {
	for _, shape := range [][2]int{{1024, 1024}, {64, 50304}, {1 << 15, 1 << 11}} {
		for _, c := range elementwiseOps {
			for _, threads := range []int{1, 2} {
				b.Run(fmt.Sprintf("%s/%dx%d/%d", c.name, shape[0], shape[1], threads), func(b *testing.B) {
					benchmarkElementwise(b, shape[0], shape[1], threads, c.op)
				})
			}
		}
	}
}

func benchmarkElementwise(b *testing.B, rows, cols, threads int, op func(s *elementwiseTensors) backend.Op) {
	s := &elementwiseTensors{vars: backend.NewVars(), rows: rows, cols: cols}
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
