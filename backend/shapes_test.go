package backend_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// TestShapeErrors breaks one rule per op. The error is one sentence that names the
// operand, its format and shape, and what was expected.
func TestShapeErrors(t *testing.T) {
	cases := []struct {
		want string
		make func(m *maker) backend.Op
	}{
		{"matmul: K differs: A is t1:fp32[2, 3], B is t2:fp32[4, 5]", func(m *maker) backend.Op {
			return &backend.MatMul{A: m.f(2, 3), B: m.f(4, 5), Out: m.f(2, 5)}
		}},
		{"matmul: K differs: A is t1:fp32[2, 3] (transposed), B is t2:fp32[3, 5]", func(m *maker) backend.Op {
			return &backend.MatMul{A: m.f(2, 3), TransA: true, B: m.f(3, 5), Out: m.f(3, 5)}
		}},
		{"matmul: Out is t3:fp32[5, 2], expected [2, 5]", func(m *maker) backend.Op {
			return &backend.MatMul{A: m.f(2, 3), B: m.f(3, 5), Out: m.f(5, 2)}
		}},
		{"A is t1:e4m3[2, 3] and B is t3:bf16[3, 5]: both must have up to eight bits or neither", func(m *maker) backend.Op {
			return &backend.MatMul{A: m.q(2, 3), B: m.b(3, 5), Out: m.f(2, 5)}
		}},
		{"A is t1:fp32[2, 3] and B is t2:bf16[3, 5]: the formats must be equal", func(m *maker) backend.Op {
			return &backend.MatMul{A: m.f(2, 3), B: m.b(3, 5), Out: m.f(2, 5)}
		}},
		{"A is t1:int8[2, 3] and B is t3:e4m3[3, 5]: an integer format multiplies only integer formats", func(m *maker) backend.Op {
			return &backend.MatMul{A: m.of(fp8.INT8, 2, 3), B: m.q(3, 5), Out: m.f(2, 5)}
		}},
		{"K is 133145, A is t1:int8[2, 133145] and B is t3:int8[133145, 5]: sums of products of integers fit I32 up to K = 133144", func(m *maker) backend.Op {
			return &backend.MatMul{A: m.of(fp8.INT8, 2, 133145), B: m.of(fp8.INT8, 133145, 5), Out: m.f(2, 5)}
		}},
		{"A is t1:e8m0[2, 3], expected fp32, bf16, fp16 or a format of up to eight bits", func(m *maker) backend.Op {
			return &backend.MatMul{A: m.tensor(fp8.E8M0, 2, 3), B: m.h(3, 5), Out: m.f(2, 5)}
		}},
		{"Out is t3:e2m1[2, 6], of which a byte holds two elements: store it in bf16 and add a Quantize", func(m *maker) backend.Op {
			return &backend.MatMul{A: m.f(2, 3), B: m.f(3, 6), Out: m.of(fp8.E2M1, 2, 6)}
		}},
		{"A: t1[1:3]:e4m3[2, 3] has no scale", func(m *maker) backend.Op {
			return &backend.MatMul{A: m.blocked(backend.ScaleBlock{Rows: 2, Cols: 1}, 4, 3).RowRange(1, 2), B: m.q(3, 5), Out: m.f(2, 5)}
		}},
		{"RowScale is t4:fp32[5], expected fp32[2]", func(m *maker) backend.Op {
			return &backend.MatMul{A: m.f(2, 3), B: m.f(3, 5), Out: m.f(2, 5), RowScale: m.f(5)}
		}},
		{"Residual and Accumulate exclude each other", func(m *maker) backend.Op {
			return &backend.MatMul{A: m.f(2, 3), B: m.f(3, 5), Out: m.f(2, 5), Residual: m.f(2, 5), Accumulate: true}
		}},
		{"an FP8 Out cannot accumulate", func(m *maker) backend.Op {
			return &backend.MatMul{A: m.f(2, 3), B: m.f(3, 5), Out: m.q(2, 5), Accumulate: true}
		}},
		{"OutScale and Amax belong to an FP8 Out", func(m *maker) backend.Op {
			return &backend.MatMul{A: m.f(2, 3), B: m.f(3, 5), Out: m.f(2, 5), Amax: m.f(1)}
		}},
		{"along k, A has blocks of 128 and B of 48: one must divide the other", func(m *maker) backend.Op {
			return &backend.MatMul{
				A: m.blocked(backend.Block1x128, 2, 3), B: m.blocked(backend.ScaleBlock{Rows: 48, Cols: 1}, 3, 5), Out: m.f(2, 5),
			}
		}},
		{"along k, A has blocks of 128 and B of 48: one must divide the other", func(m *maker) backend.Op {
			return &backend.MatMul{
				A: m.blocked(backend.ScaleBlock{Rows: 128, Cols: 7}, 3, 2), TransA: true,
				B: m.blocked(backend.ScaleBlock{Rows: 7, Cols: 48}, 5, 3), TransB: true, Out: m.f(2, 5),
			}
		}},
		{"has gaps between its rows", func(m *maker) backend.Op {
			a := m.blocked(backend.PerRow, 2, 3)
			a.Scale = m.f(2, 4).Columns("gaps", 1, 1)
			return &backend.MatMul{A: a, B: m.q(3, 5), Out: m.f(2, 5)}
		}},
		{"with blocks of 1x* but no scale", func(m *maker) backend.Op {
			b := m.f(3, 5)
			b.Block = backend.PerRow
			return &backend.MatMul{A: m.f(2, 3), B: b, Out: m.f(2, 5)}
		}},
		{"the output of a GEMM takes one scale", func(m *maker) backend.Op {
			return &backend.MatMul{A: m.q(2, 3), B: m.q(3, 5), Out: m.blocked(backend.PerRow, 2, 5)}
		}},
		{"t1:e4m3[2, 3] has no scale", func(m *maker) backend.Op {
			return &backend.MatMul{A: m.tensor(fp8.E4M3, 2, 3), B: m.q(3, 5), Out: m.f(2, 5)}
		}},
		{"A: the scale t2:fp32[2] of t1:e4m3[2, 3] must have 1 elements (block tensor)", func(m *maker) backend.Op {
			a := m.tensor(fp8.E4M3, 2, 3)
			a.Scale = m.f(2)
			return &backend.MatMul{A: a, B: m.q(3, 5), Out: m.f(2, 5)}
		}},
		{"epilogue: X is t1:bf16[2, 5], expected one of [fp32]", func(m *maker) backend.Op {
			return &backend.Epilogue{X: m.b(2, 5), Out: m.f(2, 5)}
		}},
		{"epilogue: X is t1:fp32[2, 5] with a scale, which this op does not read", func(m *maker) backend.Op {
			x := m.f(2, 5)
			x.Scale = m.f(1)
			return &backend.Epilogue{X: x, Out: m.f(2, 5)}
		}},
		{"epilogue: ColScale is t3:fp32[2], expected fp32[5]", func(m *maker) backend.Op {
			return &backend.Epilogue{X: m.f(2, 5), Out: m.f(2, 5), ColScale: m.f(2)}
		}},
		{"epilogue: Out is t2:e4m3[2, 5] with blocks of 1x*: the output of a GEMM takes one scale", func(m *maker) backend.Op {
			return &backend.Epilogue{X: m.f(2, 5), Out: m.blocked(backend.PerRow, 2, 5)}
		}},
		{"hadamard: Size is 12, expected a power of two from 4 to 128", func(m *maker) backend.Op {
			return &backend.Hadamard{X: m.f(2, 12), Out: to(m.f(2, 12)), Size: 12}
		}},
		{"hadamard: Size is 256, expected", func(m *maker) backend.Op {
			return &backend.Hadamard{X: m.f(2, 256), Out: to(m.f(2, 256)), Size: 256}
		}},
		{"hadamard: X is t1:fp32[8, 12], whose 12 columns are not a multiple of Size, 8", func(m *maker) backend.Op {
			return &backend.Hadamard{X: m.f(8, 12), Out: to(m.f(8, 12)), Size: 8}
		}},
		{"hadamard: X is t1:fp32[12, 8], whose 12 rows are not a multiple of Size, 8", func(m *maker) backend.Op {
			return &backend.Hadamard{X: m.f(12, 8), Out: to(m.f(12, 8)), Size: 8, Columns: true}
		}},
		{"hadamard: Signs is 0xd7e8, but with Control the signs come from the seed", func(m *maker) backend.Op {
			return &backend.Hadamard{X: m.f(2, 8), Control: m.i(backend.ControlWords), Out: to(m.f(2, 8)), Size: 8, Signs: 0xd7e8}
		}},
		{"hadamard: X is t1:e4m3[2, 8], expected fp32, bf16 or fp16", func(m *maker) backend.Op {
			return &backend.Hadamard{X: m.q(2, 8), Out: to(m.f(2, 8)), Size: 8}
		}},
		{`Stream is "u", but the rounding of t2:e4m3[2, 3] draws no random bits`, func(m *maker) backend.Op {
			return &backend.Quantize{X: m.f(2, 3), Out: []backend.Cast{{Out: m.q(2, 3), Stream: "u"}}}
		}},
		{"quantize: Out has no cast: the result would be lost", func(m *maker) backend.Op { return &backend.Quantize{X: m.f(2, 3)} }},
		{"quantize: Out[0]: Out is t2:fp32[3, 2], expected [2, 3]", func(m *maker) backend.Op {
			return &backend.Quantize{X: m.f(2, 3), Out: to(m.f(3, 2))}
		}},
		{"Out[0]: Out is t2:fp32[2, 3], expected [3, 2]", func(m *maker) backend.Op {
			return &backend.Quantize{X: m.f(2, 3), Out: []backend.Cast{{Out: m.f(2, 3), Transpose: true}}}
		}},
		{"a stochastic cast needs step.control", func(m *maker) backend.Op {
			return &backend.Quantize{X: m.f(2, 3), Out: []backend.Cast{{Out: m.q(2, 3), Rounding: fp8.Stochastic}}}
		}},
		{"Out is t2:bf16[2, 3], which takes no scale", func(m *maker) backend.Op {
			return &backend.Quantize{X: m.f(2, 3), Out: []backend.Cast{{Out: m.b(2, 3), Scale: m.f(1)}}}
		}},
		{"Out is t2:e8m0[2, 3], a format for scales only", func(m *maker) backend.Op {
			return &backend.Quantize{X: m.f(2, 3), Out: to(m.tensor(fp8.E8M0, 2, 3))}
		}},
		{"Out is t2:i32[2, 3], expected a float format", func(m *maker) backend.Op {
			return &backend.Quantize{X: m.f(2, 3), Out: to(m.i(2, 3))}
		}},
		{"ColScale is t3:fp32[2], expected fp32[3]", func(m *maker) backend.Op {
			return &backend.Quantize{X: m.f(2, 3), Out: to(m.f(2, 3)), ColScale: m.f(2)}
		}},
		{"RowScale is t3:fp32[3], expected fp32[2]", func(m *maker) backend.Op {
			return &backend.Quantize{X: m.f(2, 3), Out: to(m.f(2, 3)), RowScale: m.f(3)}
		}},
		{"rmsnorm: Out[0]: Out is t3:e4m3[2, 3] with blocks of 1x*: only Quantize computes block scales", func(m *maker) backend.Op {
			return &backend.RMSNorm{X: m.f(2, 3), Gain: m.f(3), Out: []backend.Cast{m.byBlock(backend.PerRow, 2, 3)}}
		}},
		{"quantize: Out[0]: Out is t2:bf16[2, 3] with blocks of 1x*: only formats of up to eight bits take block scales", func(m *maker) backend.Op {
			x, out := m.f(2, 3), m.b(2, 3)
			out.Block, out.Scale = backend.PerRow, m.f(2, 1)
			return &backend.Quantize{X: x, Out: []backend.Cast{{Out: out, ScaleInv: out.Scale, Limit: 1}}}
		}},
		{"ScaleInv must be the scale of Out, t2:e4m3[2, 3], which has blocks of 1x*", spoiled(func(m *maker, c *backend.Cast) { c.ScaleInv = nil })},
		{"ScaleInv must be the scale of Out, t2:e4m3[2, 3], which has blocks of 1x*", spoiled(func(m *maker, c *backend.Cast) { c.ScaleInv = m.f(2, 1) })},
		{"whose scales come from its elements: Amax must be nil", spoiled(func(m *maker, c *backend.Cast) { c.Amax = m.f(1) })},
		{"Limit is 0, expected a positive number", spoiled(func(m *maker, c *backend.Cast) { c.Limit = 0 })},
		{"Rule is exact, which gives no scales in the format of ScaleInv, t4:e8m0[2, 1]", spoiled(func(m *maker, c *backend.Cast) {
			c.ScaleInv = m.tensor(fp8.E8M0, 2, 1)
			c.Out.Scale = c.ScaleInv
		})},
		{"Limit belongs to scales in fp32, ScaleInv is t4:e8m0[2, 1]", spoiled(func(m *maker, c *backend.Cast) {
			c.Rule = fp8.RoundUp
			c.ScaleInv = m.tensor(fp8.E8M0, 2, 1)
			c.Out.Scale = c.ScaleInv
		})},
		{"ScaleInv is gaps:fp32[2, 1], which has gaps between its rows", spoiled(func(m *maker, c *backend.Cast) {
			c.ScaleInv = m.f(2, 4).Columns("gaps", 1, 1)
			c.Out.Scale = c.ScaleInv
		})},
		{"the scale t3:fp32[2, 1] of t2:e4m3[2, 3] must have 3 elements (block *x1)", spoiled(func(m *maker, c *backend.Cast) { c.Out.Block = backend.PerColumn })},
		{"Out is t2:e4m3[3, 3] with blocks of -1x-1, expected sizes of 0 (the whole extent) or more", func(m *maker) backend.Op {
			x, c := m.f(3, 3), m.byBlock(backend.ScaleBlock{Rows: 3, Cols: 3}, 3, 3)
			c.Out.Block = backend.ScaleBlock{Rows: -1, Cols: -1}
			return &backend.Quantize{X: x, Out: []backend.Cast{c}}
		}},
		{"ScaleInv, Out.Outer, Limit and Rule belong to block scales, Out is t2:e4m3[2, 3] with one scale", func(m *maker) backend.Op {
			return &backend.Quantize{X: m.f(2, 3), Out: []backend.Cast{{Out: m.q(2, 3), Limit: 448}}}
		}},
		{"Scale belongs to an outer scale; give both or neither", spoiled(func(m *maker, c *backend.Cast) { c.Scale = m.f(1) })},
		{"Scale belongs to an outer scale; give both or neither", spoiled(func(m *maker, c *backend.Cast) { c.Out.Outer = m.f(1) })},
		{"Out is t2:e4m3[2, 3] with an outer scale, but ScaleInv is t3:fp32[2, 1]: its range needs none", spoiled(func(m *maker, c *backend.Cast) {
			c.Scale, c.Out.Outer = m.f(1), m.f(1)
		})},
		{"the scale t4:e2m1[2, 2] of t2:e4m3[2, 3] must have 2 elements", spoiled(func(m *maker, c *backend.Cast) {
			c.ScaleInv = m.tensor(fp8.E2M1, 2, 2)
			c.Out.Scale = c.ScaleInv
		})},
		{"the scale t4:e3m2[2, 1] of t2:e4m3[2, 3] must be fp32, e8m0 or another format of five to eight bits that has NaN", spoiled(func(m *maker, c *backend.Cast) {
			c.ScaleInv, c.Rule, c.Limit = m.tensor(fp8.E3M2, 2, 1), fp8.Quotient, 0
			c.Out.Scale = c.ScaleInv
		})},
		{"amax: Out is t2:fp32[2], expected fp32[3]", func(m *maker) backend.Op { return &backend.Amax{X: m.f(2, 3), Out: m.f(2)} }},
		{"updatescale: History is t3:fp32[5], expected fp32[window, 4]", func(m *maker) backend.Op {
			return &backend.UpdateScale{Scale: m.f(4), ScaleInv: m.f(4), History: m.f(5), Limit: 448}
		}},
		{"updatescale: History is t3:fp32[3, 5], expected fp32[window, 1]", func(m *maker) backend.Op {
			return &backend.UpdateScale{Scale: m.f(1), ScaleInv: m.f(1), History: m.f(3, 5), Limit: 448}
		}},
		{"updatescale: History is t3:fp32[3, 4] with a scale, which this op does not read", func(m *maker) backend.Op {
			return &backend.UpdateScale{Scale: m.f(4), ScaleInv: m.f(4), History: m.scaled(3, 4), Limit: 448}
		}},
		{"pushhistory: History is t1:fp32[3, 4] with a scale", func(m *maker) backend.Op {
			return &backend.PushHistory{History: m.scaled(3, 4), Value: m.f(4)}
		}},
		{"matmul: Out is t3:fp32[2, 4] with a scale", func(m *maker) backend.Op {
			return &backend.MatMul{A: m.f(2, 3), B: m.f(3, 4), Out: m.scaled(2, 4), Accumulate: true}
		}},
		{"crossentropy: Targets is t3:i32[2] with a scale", func(m *maker) backend.Op {
			logits, scale := m.f(2, 4), m.f(1)
			targets := m.i(2)
			targets.Scale = scale
			return &backend.CrossEntropy{Logits: logits, Targets: targets, Loss: m.f(2), Valid: 4}
		}},
		{"sum: X is t1:fp32[3] with a scale", func(m *maker) backend.Op { return &backend.Sum{X: m.scaled(3), Out: m.f(1)} }},
		{"sumsquares: X is t1:fp32[3]: F32 and BF16 take no scale", func(m *maker) backend.Op {
			return &backend.SumSquares{X: []*backend.Tensor{m.scaled(3)}, Out: m.f(1)}
		}},
		{"fill: Out is t1:fp32[3] with a scale", func(m *maker) backend.Op { return &backend.Fill{Out: m.scaled(3)} }},
		{"embedgrad: DTable is t3:fp32[9, 4] with a scale", func(m *maker) backend.Op {
			return &backend.EmbedGrad{IDs: m.i(3), DOut: m.f(3, 4), DTable: m.scaled(9, 4)}
		}},
		{"rowcosine: Out is t3:fp32[3, 2] with a scale", func(m *maker) backend.Op {
			return &backend.RowCosine{A: m.f(2, 4), B: m.f(2, 4), Out: m.scaled(3, 2)}
		}},
		{"smoothscale: Margin is 65, expected 64 at most", func(m *maker) backend.Op { return m.smoothScale(65) }},
		{"smoothscale: Margin is -65, expected 64 at most", func(m *maker) backend.Op { return m.smoothScale(-65) }},
		{"smoothscale: Margin is 1099511627776, expected 64 at most", func(m *maker) backend.Op { return m.smoothScale(1 << 40) }},
		{"matmul: unknown accumulation 2", func(m *maker) backend.Op {
			return &backend.MatMul{A: m.f(2, 3), B: m.f(3, 4), Out: m.f(2, 4), Accum: 2}
		}},
		{"quantize: Out[0]: unknown rounding 2", func(m *maker) backend.Op {
			return &backend.Quantize{X: m.f(2, 3), Out: []backend.Cast{{Out: m.f(2, 3), Rounding: 2}}}
		}},
		{"adamw: unknown rounding 2", func(m *maker) backend.Op { o := m.adamW(); o.Rounding = 2; return o }},
		{"adamw: betas are -1 and 0.95, expected [0, 1)", func(m *maker) backend.Op { o := m.adamW(); o.Beta1 = -1; return o }},
		{"adamw: betas are 1 and 0.95, expected [0, 1)", func(m *maker) backend.Op { o := m.adamW(); o.Beta1 = 1; return o }},
		{"adamw: betas are 0.9 and -1, expected [0, 1)", func(m *maker) backend.Op { o := m.adamW(); o.Beta2 = -1; return o }},
		{"adamw: betas are 0.9 and 1, expected [0, 1)", func(m *maker) backend.Op { o := m.adamW(); o.Beta2 = 1; return o }},
		{"adamw: unknown form of eps 2", func(m *maker) backend.Op { o := m.adamW(); o.EpsForm = 2; return o }},
		{"smoothscale: SmoothMax is t1:fp32[2, 6], expected fp32[window, 3]", func(m *maker) backend.Op {
			return &backend.SmoothScale{SmoothMax: m.f(2, 6), ChannelMax: m.f(3), WeightMax: m.f(3), C: m.f(3), InvC: m.f(3)}
		}},
		{"smoothscale: ChannelMax is t2:fp32[3] with a scale", func(m *maker) backend.Op {
			return &backend.SmoothScale{SmoothMax: m.f(3), ChannelMax: m.scaled(3), WeightMax: m.f(3), C: m.f(3), InvC: m.f(3)}
		}},
		{"adamw: Grad is t1:fp32[6]: F32 and BF16 take no scale", func(m *maker) backend.Op {
			g := m.scaled(6)
			o := m.adamW()
			o.Grad[0] = g
			return o
		}},
		{"Skip without Keep would leave the scale unwritten", func(m *maker) backend.Op {
			return &backend.UpdateScale{Scale: m.f(4), ScaleInv: m.f(4), History: m.f(4), Skip: m.i(1), Limit: 448}
		}},
		{"Limit is 0, expected a positive number", func(m *maker) backend.Op {
			return &backend.UpdateScale{Scale: m.f(4), ScaleInv: m.f(4), History: m.f(4)}
		}},
		{"pushhistory: History is t1:fp32[3, 5], expected fp32[window, 4]", func(m *maker) backend.Op {
			return &backend.PushHistory{History: m.f(3, 5), Value: m.f(4)}
		}},
		{"fill: Out is t1:i32[2], expected fp32, bf16 or fp16", func(m *maker) backend.Op { return &backend.Fill{Out: m.i(2)} }},
		{"embed: Out[0]: Out is t3:fp32[2, 4], expected [3, 4]", func(m *maker) backend.Op {
			return &backend.Embed{Table: m.f(9, 4), IDs: m.i(3), Out: to(m.f(2, 4))}
		}},
		{"embedgrad: DTable is t3:fp32[9, 5], DOut is t2:fp32[3, 4]: widths differ", func(m *maker) backend.Op {
			return &backend.EmbedGrad{IDs: m.i(3), DOut: m.f(3, 4), DTable: m.f(9, 5)}
		}},
		{"add: B is t2:fp32[3, 2], expected [2, 3]", func(m *maker) backend.Op {
			return &backend.Add{A: m.f(2, 3), B: m.f(3, 2), Out: to(m.f(2, 3))}
		}},
		{"rmsnorm: Gain is t2:fp32[2], expected fp32[3]", func(m *maker) backend.Op {
			return &backend.RMSNorm{X: m.f(2, 3), Gain: m.f(2), Out: to(m.f(2, 3))}
		}},
		{"rmsnormgrad: InvRMS is t4:fp32[3], expected fp32[2]", func(m *maker) backend.Op {
			return &backend.RMSNormGrad{X: m.f(2, 3), DOut: m.f(2, 3), Gain: m.f(3), InvRMS: m.f(3), DX: to(m.f(2, 3)), DGain: m.f(3)}
		}},
		{"rope: X is t1:fp32[5, 8]: rows are not a multiple of the sequence length 2", func(m *maker) backend.Op {
			return &backend.Rope{X: m.f(5, 8), Out: to(m.f(5, 8)), Seq: 2, HeadDim: 4, Theta: 10}
		}},
		{"rope: X is t1:fp32[4, 8]: rows are not a multiple of the sequence length 0", func(m *maker) backend.Op {
			return &backend.Rope{X: m.f(4, 8), Out: to(m.f(4, 8)), HeadDim: 4, Theta: 10}
		}},
		{"rope: X is t1:fp32[4, 8]: columns are not a multiple of an even head size (0)", func(m *maker) backend.Op {
			return &backend.Rope{X: m.f(4, 8), Out: to(m.f(4, 8)), Seq: 2, Theta: 10}
		}},
		{"rope: Theta is 1, expected more than 1", func(m *maker) backend.Op {
			return &backend.Rope{X: m.f(4, 8), Out: to(m.f(4, 8)), Seq: 2, HeadDim: 4, Theta: 1}
		}},
		{"X is t1:fp32[4, 9]: columns are not a multiple of an even head size (3)", func(m *maker) backend.Op {
			return &backend.Rope{X: m.f(4, 9), Out: to(m.f(4, 9)), Seq: 2, HeadDim: 3, Theta: 10}
		}},
		{"attention: Q is t1:fp32[4, 9], K is t2:fp32[4, 6]: query heads are not a multiple of key heads", func(m *maker) backend.Op {
			return &backend.Attention{Q: m.f(4, 9), K: m.f(4, 6), V: m.f(4, 6), Out: to(m.f(4, 9)), Batch: 2, HeadDim: 3}
		}},
		{"rows are not a multiple of the 3 sequences", func(m *maker) backend.Op {
			return &backend.Attention{Q: m.f(4, 6), K: m.f(4, 6), V: m.f(4, 6), Out: to(m.f(4, 6)), Batch: 3, HeadDim: 3}
		}},
		{"attention: Q is t1:fp32[4, 6], K is t2:fp32[4, 6]: rows are not a multiple of the 0 sequences", func(m *maker) backend.Op {
			return &backend.Attention{Q: m.f(4, 6), K: m.f(4, 6), V: m.f(4, 6), Out: to(m.f(4, 6)), HeadDim: 3}
		}},
		{"attention: Q is t1:fp32[4, 6], K is t2:fp32[4, 6]: columns are not a multiple of the head size 0", func(m *maker) backend.Op {
			return &backend.Attention{Q: m.f(4, 6), K: m.f(4, 6), V: m.f(4, 6), Out: to(m.f(4, 6)), LSE: m.f(8), Batch: 2}
		}},
		{"attentiongrad: Q is t2:fp32[4, 6], K is t3:fp32[4, 6]: columns are not a multiple of the head size 0", func(m *maker) backend.Op {
			return &backend.AttentionGrad{
				DOut: m.f(4, 6), Q: m.f(4, 6), K: m.f(4, 6), V: m.f(4, 6), O: m.f(4, 6), LSE: m.f(8),
				DQ: to(m.f(4, 6)), DK: to(m.f(4, 6)), DV: to(m.f(4, 6)), Batch: 2,
			}
		}},
		{"LSE is t5:fp32[3], expected fp32[8]", func(m *maker) backend.Op {
			return &backend.Attention{Q: m.f(4, 6), K: m.f(4, 6), V: m.f(4, 6), Out: to(m.f(4, 6)), LSE: m.f(3), Batch: 2, HeadDim: 3}
		}},
		{"attentiongrad: Q is t2:fp32[4, 6], K is t3:fp32[8, 6]: the backward needs as many queries as keys", func(m *maker) backend.Op {
			return &backend.AttentionGrad{
				DOut: m.f(4, 6), Q: m.f(4, 6), K: m.f(8, 6), V: m.f(8, 6), O: m.f(4, 6), LSE: m.f(8),
				DQ: to(m.f(4, 6)), DK: to(m.f(8, 6)), DV: to(m.f(8, 6)), Batch: 2, HeadDim: 3,
			}
		}},
		{"cachewrite: X is t1:fp32[4, 6], Cache is t3:bf16[8, 6]: they differ in width or format", func(m *maker) backend.Op {
			return &backend.CacheWrite{X: m.f(4, 6), Control: m.control(), Cache: m.b(8, 6), Batch: 2}
		}},
		{"cachewrite: X is t1:fp32[4, 6], Cache is t3:fp32[8, 6]: rows are not a multiple of the 0 sequences", func(m *maker) backend.Op {
			return &backend.CacheWrite{X: m.f(4, 6), Control: m.control(), Cache: m.f(8, 6)}
		}},
		{"X is t1:fp32[8, 6], Cache is t3:fp32[4, 6]: the cache is too short", func(m *maker) backend.Op {
			return &backend.CacheWrite{X: m.f(8, 6), Control: m.control(), Cache: m.f(4, 6), Batch: 2}
		}},
		{"swiglu: Gate is t2:fp32[3, 2], expected [2, 3]", func(m *maker) backend.Op {
			return &backend.SwiGLU{Up: m.f(2, 3), Gate: m.f(3, 2), Out: to(m.f(2, 3))}
		}},
		{"swigluamax: Out is t3:fp32[2], expected fp32[3]", func(m *maker) backend.Op {
			return &backend.SwiGLUAmax{Up: m.f(2, 3), Gate: m.f(2, 3), Out: m.f(2)}
		}},
		{"swiglugrad: DGate[0]: Out is t5:fp32[3, 2], expected [2, 3]", func(m *maker) backend.Op {
			return &backend.SwiGLUGrad{DOut: m.f(2, 3), Up: m.f(2, 3), Gate: m.f(2, 3), DUp: to(m.f(2, 3)), DGate: to(m.f(3, 2))}
		}},
		{"smoothscale: ChannelMax is t2:fp32[2, 5], expected fp32[window, 4]", func(m *maker) backend.Op {
			return &backend.SmoothScale{SmoothMax: m.f(3, 4), ChannelMax: m.f(2, 5), WeightMax: m.f(4), C: m.f(4), InvC: m.f(4)}
		}},
		{"smoothscale: HScale and HScaleInv go together", func(m *maker) backend.Op {
			return &backend.SmoothScale{SmoothMax: m.f(4), ChannelMax: m.f(4), WeightMax: m.f(4), C: m.f(4), InvC: m.f(4), HScale: m.f(1), HLimit: 448}
		}},
		{"smoothscale: WLimit is 0, expected a positive number", func(m *maker) backend.Op {
			return &backend.SmoothScale{SmoothMax: m.f(4), ChannelMax: m.f(4), WeightMax: m.f(4), C: m.f(4), InvC: m.f(4), WScale: m.f(1), WScaleInv: m.f(1)}
		}},
		{"swiglu: TokenScale is t3:fp32[3], expected fp32[2]", func(m *maker) backend.Op {
			return &backend.SwiGLU{Up: m.f(2, 3), Gate: m.f(2, 3), TokenScale: m.f(3), Out: to(m.f(2, 3))}
		}},
		{"swiglu: InvC and TokenScale exclude each other", func(m *maker) backend.Op {
			return &backend.SwiGLU{Up: m.f(2, 3), Gate: m.f(2, 3), InvC: m.f(3), TokenScale: m.f(2), Out: to(m.f(2, 3))}
		}},
		{"swiglu: ScaleOfUp and Exact belong to a TokenScale", func(m *maker) backend.Op {
			return &backend.SwiGLU{Up: m.f(2, 3), Gate: m.f(2, 3), Exact: true, Out: to(m.f(2, 3))}
		}},
		{"swigluamax: UpSeen without UpOut", func(m *maker) backend.Op {
			return &backend.SwiGLUAmax{Up: m.f(2, 3), Gate: m.f(2, 3), Out: m.f(3), UpSeen: m.f(3)}
		}},
		{"swiglugrad: InvC and TokenScale exclude each other", func(m *maker) backend.Op {
			return &backend.SwiGLUGrad{
				DOut: m.f(2, 3), Up: m.f(2, 3), Gate: m.f(2, 3), InvC: m.f(3), TokenScale: m.f(2),
				DUp: to(m.f(2, 3)), DGate: to(m.f(2, 3)),
			}
		}},
		{"activation: unknown activation 9", func(m *maker) backend.Op {
			return &backend.Activation{X: m.f(2, 3), Out: to(m.f(2, 3)), Kind: 9}
		}},
		{"activationgrad: DOut is t1:fp32[3, 2], expected [2, 3]", func(m *maker) backend.Op {
			return &backend.ActivationGrad{DOut: m.f(3, 2), X: m.f(2, 3), DX: to(m.f(2, 3))}
		}},
		{"crossentropy: Valid is 9, Logits is t1:fp32[2, 8]", func(m *maker) backend.Op {
			return &backend.CrossEntropy{Logits: m.f(2, 8), Targets: m.i(2), Loss: m.f(2), Valid: 9}
		}},
		{"crossentropy: Valid is 0, Logits is t1:fp32[2, 8]", func(m *maker) backend.Op {
			return &backend.CrossEntropy{Logits: m.f(2, 8), Targets: m.i(2), Loss: m.f(2)}
		}},
		{"DLogits needs step.control", func(m *maker) backend.Op {
			return &backend.CrossEntropy{Logits: m.f(2, 8), Targets: m.i(2), Loss: m.f(2), DLogits: m.f(2, 8), Valid: 8}
		}},
		{"sum: Out is t2:fp32[2], expected fp32[1]", func(m *maker) backend.Op { return &backend.Sum{X: m.f(2), Out: m.f(2)} }},
		{"sumsquares: X is t1:i32[2], expected a floating-point format", func(m *maker) backend.Op {
			return &backend.SumSquares{X: []*backend.Tensor{m.i(2)}, Out: m.f(1)}
		}},
		{"stepgate: Clip is -1, expected 0 (off) or more", func(m *maker) backend.Op {
			return &backend.StepGate{SumSquares: m.f(1), Step: m.i(1), GradNorm: m.f(1), Coef: m.f(1), Skip: m.i(1), Clip: -1}
		}},
		{"adamw: M1 is t13:fp32[5], Grad is t1:fp32[6]", func(m *maker) backend.Op {
			op := m.adamW()
			for m.n < 12 {
				m.f(1)
			}
			op.M1 = []*backend.Tensor{m.f(5)}
			return op
		}},
		{"its scale must be listed as M2Scale", func(m *maker) backend.Op {
			op := m.adamW()
			op.M2 = []*backend.Tensor{m.q(6)}
			return op
		}},
		{"adamw: M1Scale has 0 tensors, Grad has 1", func(m *maker) backend.Op {
			op := m.adamW()
			op.M1Scale, op.M2Scale = nil, nil
			return op
		}},
		{"Master is t2:fp32[6] with blocks of 1x3: only moments take block scales", func(m *maker) backend.Op {
			op := m.adamW()
			op.Master[0].Block = backend.ScaleBlock{Rows: 1, Cols: 3}
			return op
		}},
		{"M1 is t3:fp32[6] with blocks of 1x3, but has no scale", func(m *maker) backend.Op {
			op := m.adamW()
			op.M1[0].Block = backend.ScaleBlock{Rows: 1, Cols: 3}
			return op
		}},
		{"with blocks of 1x*, expected blocks within a row (1xN)", func(m *maker) backend.Op {
			op := m.adamW()
			op.M1[0] = m.blocked(backend.PerRow, 2, 3)
			op.M1Scale[0] = op.M1[0].Scale
			return op
		}},
		{"with blocks of 1x3, Grad has rows of another length: t1:fp32[6]", func(m *maker) backend.Op {
			op := m.adamW()
			op.M2[0] = m.blocked(backend.ScaleBlock{Rows: 1, Cols: 3}, 2, 3)
			op.M2Scale[0] = op.M2[0].Scale
			return op
		}},
		{"adamw: Grad is t13:e8m0[6], expected a floating-point format that has NaN", func(m *maker) backend.Op {
			op := m.adamW()
			op.Grad[0] = m.vars.Tensor(backend.Stash, "t13", fp8.E8M0, 6)
			return op
		}},
		{"with blocks of 1x3: a gradient takes one scale", func(m *maker) backend.Op {
			op := m.adamW()
			op.Grad[0] = m.blocked(backend.ScaleBlock{Rows: 1, Cols: 3}, 2, 3)
			return op
		}},
		{"Amaxes is", func(m *maker) backend.Op {
			op := m.adamW()
			op.Amaxes = m.f(1)
			return op
		}},
		{"AmaxOnly and AmaxGiven are both set", func(m *maker) backend.Op {
			op := m.adamW()
			op.AmaxOnly, op.AmaxGiven = true, true
			return op
		}},
		{"allreduce: X is t1:bf16[4], expected fp32[4]", func(m *maker) backend.Op { return &backend.AllReduce{X: m.b(4)} }},
		{"reducescatter: X is t1:fp32[5], Out is t2:fp32[2]: the parts are not equal", func(m *maker) backend.Op {
			return &backend.ReduceScatter{X: m.f(5), Out: m.f(2)}
		}},
		{"allgather: X is t1:fp32[2], Out is t2:bf16[4]", func(m *maker) backend.Op { return &backend.AllGather{X: m.f(2), Out: m.b(4)} }},
	}
	for _, c := range cases {
		m := &maker{vars: backend.NewVars()}
		p := m.vars.Program("p").Scope("layers.3")
		p.Add(c.make(m))
		require.ErrorContains(t, p.Err(), c.want, c.want)
		require.Regexp(t, "^layers.3: [a-z]+: ", p.Err().Error())
		require.Empty(t, p.Nodes())
	}
}

// TestShapesAtTheBounds accepts ops just inside the limits of TestShapeErrors.
func TestShapesAtTheBounds(t *testing.T) {
	for name, makeOp := range map[string]func(m *maker) backend.Op{
		"AdamW":               func(m *maker) backend.Op { return m.adamW() },
		"the largest margin":  func(m *maker) backend.Op { return m.smoothScale(64) },
		"the smallest margin": func(m *maker) backend.Op { return m.smoothScale(-64) },
		"one valid column": func(m *maker) backend.Op {
			return &backend.CrossEntropy{Logits: m.f(2, 8), Targets: m.i(2), Loss: m.f(2), Valid: 1}
		},
		"all columns valid": func(m *maker) backend.Op {
			return &backend.CrossEntropy{Logits: m.f(2, 8), Targets: m.i(2), Loss: m.f(2), Valid: 8}
		},
		"heads of 1": func(m *maker) backend.Op {
			return &backend.Attention{Q: m.f(4, 6), K: m.f(4, 6), V: m.f(4, 6), Out: to(m.f(4, 6)), Batch: 1, HeadDim: 1}
		},
		"a sequence of 1 in heads of 2": func(m *maker) backend.Op {
			return &backend.Rope{X: m.f(4, 8), Out: to(m.f(4, 8)), Seq: 1, HeadDim: 2, Theta: 1.5}
		},
		"a cache as long as X": func(m *maker) backend.Op {
			return &backend.CacheWrite{X: m.f(4, 6), Control: m.control(), Cache: m.f(4, 6), Batch: 1}
		},
	} {
		m := &maker{vars: backend.NewVars()}
		p := m.vars.Program("p")
		p.Add(makeOp(m))
		require.NoError(t, p.Err(), name)
		require.Len(t, p.Nodes(), 1, name)
	}
}
