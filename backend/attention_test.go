package backend_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
)

// Start has an element per query, without gaps, and excludes a cache.
func TestStartOfAttention(t *testing.T) {
	forward := func(start func(m *maker) *backend.Tensor, keys int) func(m *maker) backend.Op {
		return func(m *maker) backend.Op {
			return &backend.Attention{Q: m.f(4, 6), K: m.f(keys, 6), V: m.f(keys, 6), Out: to(m.f(4, 6)), Start: start(m), Batch: 2, HeadDim: 3}
		}
	}
	backward := func(start func(m *maker) *backend.Tensor) func(m *maker) backend.Op {
		return func(m *maker) backend.Op {
			return &backend.AttentionGrad{
				DOut: m.f(4, 6), Q: m.f(4, 6), K: m.f(4, 6), V: m.f(4, 6), O: m.f(4, 6), LSE: m.f(8), Start: start(m),
				DQ: to(m.f(4, 6)), DK: to(m.f(4, 6)), DV: to(m.f(4, 6)), Batch: 2, HeadDim: 3,
			}
		}
	}
	ints := func(shape ...int) func(m *maker) *backend.Tensor {
		return func(m *maker) *backend.Tensor { return m.i(shape...) }
	}
	gaps := func(m *maker) *backend.Tensor { return m.i(4, 2).Columns("start", 0, 1) }
	for _, c := range []struct {
		want string
		make func(m *maker) backend.Op
	}{
		{"", forward(ints(2, 2), 4)},
		{"", forward(ints(4), 4)},
		{"", backward(ints(4))},
		{"i32[3], expected i32[4]", forward(ints(3), 4)},
		{"i32[5], expected i32[4]", backward(ints(5))},
		{"Start is start:i32[4, 1] with gaps between its rows: make it a tensor of its own", forward(gaps, 4)},
		{"Start is start:i32[4, 1] with gaps between its rows: make it a tensor of its own", backward(gaps)},
		{"fp32[8, 6]: Start, for documents, takes neither step.control nor a cache of keys", forward(ints(4), 8)},
		{"fp32[4, 6]: Start, for documents, takes neither step.control nor a cache of keys", func(m *maker) backend.Op {
			op := forward(ints(4), 4)(m).(*backend.Attention)
			op.Control = m.control()
			return op
		}},
	} {
		m := &maker{vars: backend.NewVars()}
		p := m.vars.Program("p")
		if p.Add(c.make(m)); c.want == "" {
			require.NoError(t, p.Err())
		} else {
			require.ErrorContains(t, p.Err(), c.want)
		}
	}
}
