package emu

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/emu/attention"
	"octet/backend/emu/gemm"
	"octet/fp8"
)

// attentionCase is a shape of attention.
type attentionCase struct {
	batch, queries, keys, kv, perKV, dim int
	position                             int32
	documents                            []int // lengths, in every sequence; nil: one document
}

func (c attentionCase) String() string {
	text := fmt.Sprintf("%dx%d queries at %d, %d keys, %dx%d heads of %d", c.batch, c.queries, c.position, c.keys, c.kv, c.perKV, c.dim)
	if c.documents != nil {
		text += fmt.Sprintf(", documents of %d", c.documents)
	}
	return text
}

// small reports whether AMX in plain Go computes c in a short time.
func (c attentionCase) small() bool { return c.batch*c.queries*c.kv*c.perKV <= 260 }

// start returns the first key of the document of query i.
func (c attentionCase) start(i int) int {
	first := 0
	for _, n := range c.documents {
		if i < first+n {
			return first
		}
		first += n
	}
	return 0
}

// starts declares an operand Start; it returns nil without documents.
func (c attentionCase) starts(tr *trial) *backend.Tensor {
	if c.documents == nil {
		return nil
	}
	list := make([]float32, c.queries)
	for i := range list {
		list[i] = float32(c.start(i))
	}
	return tr.tensor("start", fp8.I32, list, c.batch, c.queries)
}

var attentionCases = []attentionCase{
	{1, 1, 1, 1, 1, 2, 0, nil},
	{1, 5, 5, 1, 1, 8, 0, nil},
	{2, 150, 150, 2, 1, 16, 0, nil},
	{1, 67, 67, 1, 3, 40, 0, nil},
	{2, 129, 129, 2, 2, 64, 0, nil},
	{1, 3, 3, 1, 80, 4, 0, nil},
	{1, 600, 600, 1, 1, 4, 0, nil},  // more rows than a task has
	{1, 300, 300, 1, 3, 34, 0, nil}, // blocks of queries that begin inside blocks of keys

	{1, 5, 5, 1, 1, 8, 0, []int{1, 1, 3}},
	{2, 150, 150, 2, 1, 16, 0, []int{128, 22}},
	{2, 129, 129, 2, 2, 64, 0, []int{129}},
	{1, 300, 300, 1, 3, 34, 0, []int{100, 27, 1, 64, 108}},
	{1, 3, 3, 1, 80, 4, 0, []int{2, 1}},
	{1, 600, 600, 1, 1, 4, 0, []int{1, 255, 250, 1, 93}},
	{1, 1200, 1200, 1, 1, 4, 0, []int{520, 10, 670}},
	{1, 300, 300, 2, 2, 8, 0, slices.Repeat([]int{1}, 300)},
}

var cachedCases = []attentionCase{
	{2, 1, 100, 2, 3, 20, 77, nil},
	{1, 1, 100, 1, 1, 16, 99, nil},
	{1, 70, 200, 2, 2, 32, 64, nil},
	{1, 5, 64, 1, 1, 8, 59, nil},
	{1, 40, 400, 1, 2, 8, 300, nil},
}

// attentionData declares Q, K and V as views with gaps between the rows, as a fused
// projection leaves them.
func attentionData(tr *trial, c attentionCase, dtype fp8.DType) (q, k, v *backend.Tensor) {
	gapped := func(name string, rows, cols int) *backend.Tensor {
		base := tr.tensor(name, dtype, tr.noise(rows*(cols+3)), rows, cols+3)
		return &backend.Tensor{
			Name: name + ".view", DType: dtype, Shape: []int{rows, cols},
			Class: base.Class, Base: base, Offset: 2, LD: cols + 3,
		}
	}
	q = gapped("q", c.batch*c.queries, c.kv*c.perKV*c.dim)
	k = gapped("k", c.batch*c.keys, c.kv*c.dim)
	v = gapped("v", c.batch*c.keys, c.kv*c.dim)
	return q, k, v
}

// probabilities returns the softmax of one query's scores, and their log-sum-exp. Keys
// after its position, and of other documents, are masked.
func (c attentionCase) probabilities(q, k []float64, seq, head, i int) (p []float64, lse float64) {
	qCols, kCols := c.kv*c.perKV*c.dim, c.kv*c.dim
	p = make([]float64, int(c.position)+i+1)
	top, sum := math.Inf(-1), 0.0
	for j := range p {
		for d := range c.dim {
			p[j] += q[(seq*c.queries+i)*qCols+head*c.dim+d] * k[(seq*c.keys+j)*kCols+head/c.perKV*c.dim+d]
		}
		if p[j] /= math.Sqrt(float64(c.dim)); j < c.start(i) {
			p[j] = math.Inf(-1)
		}
		top = max(top, p[j])
	}
	for j := range p {
		p[j] = math.Exp(p[j] - top)
		sum += p[j]
	}
	for j := range p {
		p[j] /= sum
	}
	return p, top + math.Log(sum)
}

// forward computes attention in float64.
func (c attentionCase) forward(q, k, v []float64) (out, lse []float64) {
	heads := c.kv * c.perKV
	out = make([]float64, c.batch*c.queries*heads*c.dim)
	for seq := range c.batch {
		for head := range heads {
			for i := range c.queries {
				p, l := c.probabilities(q, k, seq, head, i)
				lse = append(lse, l)
				for j, w := range p {
					for d := range c.dim {
						out[(seq*c.queries+i)*heads*c.dim+head*c.dim+d] += w * v[(seq*c.keys+j)*c.kv*c.dim+head/c.perKV*c.dim+d]
					}
				}
			}
		}
	}
	return out, lse
}

// attentionUnits are the formats of operands in which tests compute attention, the device
// models, and the errors that follow: with AMX weights are rounded to BF16.
var attentionUnits = []struct {
	dtype     fp8.DType
	model     string
	tolerance float64
}{{fp8.F32, "", 1e-6}, {fp8.BF16, "", 1e-6}, {fp8.BF16, modelAMX, 4e-3}}

func TestAttention(t *testing.T) {
	for _, unit := range attentionUnits {
		for _, c := range append(attentionCases, cachedCases...) {
			if unit.model != "" && !c.small() {
				continue
			}
			t.Run(fmt.Sprint(unit.dtype, unit.model, " ", c), func(t *testing.T) {
				tr := newTrial(t)
				tr.model = unit.model
				q, k, v := attentionData(tr, c, unit.dtype)
				out := tr.tensor("out", fp8.F32, nil, q.Shape...)
				lse := tr.tensor("lse", fp8.F32, nil, c.batch*c.kv*c.perKV, c.queries)
				op := &backend.Attention{Q: q, K: k, V: v, Out: []backend.Cast{{Out: out}}, LSE: lse, Start: c.starts(tr), Batch: c.batch, HeadDim: c.dim}
				if c.position > 0 {
					op.Control = tr.control(backend.Control{Position: c.position})
				}
				tr.program.Add(op)
				d := tr.run()
				wantOut, wantLSE := c.forward(d.values(q), d.values(k), d.values(v))
				near(t, wantOut, d.values(out), unit.tolerance, "out")
				near(t, wantLSE, d.values(lse), 1e-6, "lse")
				if unit.model != "" {
					return
				}
				for _, kernel := range gemm.Kernels() {
					require.NoError(t, d.Write(out, make([]byte, out.Bytes())))
					b := &binder{device: d}
					attention.New(d.pool, attention.FP32(kernel), b.attentionOperands(op))()
					near(t, wantOut, d.values(out), 1e-6, kernel.Name)
				}
			})
		}
	}
}

// Prefill and decoding give a token the same bits: its result depends neither on the
// tokens computed with it nor on the rest of the cache.
func TestAttentionDecodeIsPrefill(t *testing.T) {
	for _, model := range []string{"", modelAMX} {
		testAttentionDecodeIsPrefill(t, model)
	}
}

func testAttentionDecodeIsPrefill(t *testing.T, model string) {
	c := attentionCase{1, 140, 140, 2, 2, 24, 0, nil}
	tr := newTrial(t)
	tr.model = model
	q, k, v := attentionData(tr, c, fp8.BF16)
	out := tr.tensor("out", fp8.F32, nil, q.Shape...)
	tr.program.Add(&backend.Attention{Q: q, K: k, V: v, Out: []backend.Cast{{Out: out}}, Batch: 1, HeadDim: c.dim})
	all := tr.run().values(out)

	for _, at := range []int{0, 1, 13, 14, 127, 128, 139} {
		cached := newTrial(t)
		cached.model = model
		q, k, v := attentionData(cached, c, fp8.BF16)
		q.Offset += at * q.LD
		q.Shape = []int{1, q.Cols()}
		for _, x := range []*backend.Tensor{k, v} {
			raw := cached.data[x.Base]
			for i := 2 * (x.Offset + (at+1)*x.LD); i < len(raw); i++ {
				raw[i] = 0xff
			}
		}
		out := cached.tensor("out", fp8.F32, nil, q.Shape...)
		cached.program.Add(&backend.Attention{
			Q: q, K: k, V: v, Control: cached.control(backend.Control{Position: int32(at)}),
			Out: []backend.Cast{{Out: out}}, Batch: 1, HeadDim: c.dim,
		})
		require.Equal(t, all[at*q.Cols():(at+1)*q.Cols()], cached.run().values(out), "query %d", at)
	}
}

// Large scores do not overflow the exponential. A key that is not finite affects the
// tokens that see it, and no others.
func TestAttentionExtremes(t *testing.T) {
	c := attentionCase{1, 140, 140, 1, 1, 16, 0, nil}
	n := 140 * 16
	for _, bad := range []float64{0, math.NaN(), math.Inf(1), math.Inf(-1)} {
		tr := newTrial(t)
		queries, keys := tr.noise(n), tr.noise(n)
		for i := range queries {
			queries[i] *= 100
		}
		if bad != 0 {
			keys[131*16] = float32(bad)
		}
		q, k := tr.tensor("q", fp8.F32, queries, 140, 16), tr.tensor("k", fp8.F32, keys, 140, 16)
		v := tr.tensor("v", fp8.F32, tr.noise(n), 140, 16)
		out := tr.tensor("out", fp8.F32, nil, 140, 16)
		tr.program.Add(&backend.Attention{Q: q, K: k, V: v, Out: []backend.Cast{{Out: out}}, Batch: 1, HeadDim: 16})
		d := tr.run()
		got := d.values(out)
		want, _ := c.forward(d.values(q), d.values(k), d.values(v))
		near(t, want[:131*16], got[:131*16], 2e-5, "scores of some hundreds")
		if bad == 0 {
			continue
		}
		nans := 0
		for _, x := range got[131*16:] {
			if math.IsNaN(x) {
				nans++
			}
		}
		if math.IsNaN(bad) {
			require.Equal(t, 9*16, nans)
		} else {
			require.Positive(t, nans, "a score of +Inf")
		}
	}
}

// A later block of keys may have scores so large that exponentials relative to earlier
// maxima would overflow.
func TestAttentionRescales(t *testing.T) {
	c := attentionCase{1, 300, 300, 1, 1, 16, 0, nil}
	tr := newTrial(t)
	keys := tr.noise(300 * 16)
	for i := range keys {
		keys[i] += float32(i / (128 * 16) * 50)
	}
	q, k := tr.tensor("q", fp8.F32, []float32{1}, 300, 16), tr.tensor("k", fp8.F32, keys, 300, 16)
	v := tr.tensor("v", fp8.F32, tr.noise(300*16), 300, 16)
	out, lse := tr.tensor("out", fp8.F32, nil, 300, 16), tr.tensor("lse", fp8.F32, nil, 1, 300)
	tr.program.Add(&backend.Attention{Q: q, K: k, V: v, Out: []backend.Cast{{Out: out}}, LSE: lse, Batch: 1, HeadDim: 16})
	d := tr.run()
	wantOut, wantLSE := c.forward(d.values(q), d.values(k), d.values(v))
	near(t, wantOut, d.values(out), 2e-5, "out")
	near(t, wantLSE, d.values(lse), 1e-6, "lse")
}
