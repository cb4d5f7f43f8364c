package gaudi

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// interpret loads a program in the interpreter, and returns its device and a run of it.
func interpret(t *testing.T, p *backend.Program) (d backend.Backend, run func()) {
	t.Helper()
	d, err := interpreterDriver("gaudi2").Open("", backend.Options{})
	require.NoError(t, err)
	list, err := d.Load(p)
	require.NoError(t, err)
	return d, func() { require.NoError(t, list[0].Run(t.Context())) }
}

func readRaw(t *testing.T, d backend.Backend, x *backend.Tensor) []byte {
	t.Helper()
	raw := make([]byte, x.Bytes())
	require.NoError(t, d.Read(x, raw))
	return raw
}

func readFloats(t *testing.T, d backend.Backend, x *backend.Tensor) []float32 {
	t.Helper()
	list := make([]float32, x.Elems())
	fp8.F32.Decode(list, readRaw(t, d, x))
	return list
}

// The graph computes the part of every rank.
func TestPartOfARank(t *testing.T) {
	for _, split := range []backend.Group{{Size: 1, Stride: 1}, {Size: 2, Stride: 1}, {Size: 7, Stride: 3}, {Size: 8, Stride: 127}, {Size: 3, Stride: 49}} {
		v := backend.NewVars()
		control := v.Tensor(backend.Input, "step.control", fp8.I32, backend.ControlWords)
		table, ids := v.Tensor(backend.Stash, "table", fp8.F32, 1, 1), v.Tensor(backend.Stash, "ids", fp8.I32, split.Size)
		out := v.Tensor(backend.Stash, "out", fp8.F32, split.Size, 1)
		p := v.Program("p")
		p.Add(&backend.Embed{Table: table, IDs: ids, Control: control, Out: []backend.Cast{{Out: out}}, Split: split})
		d, run := interpret(t, p)
		all := make([]byte, ids.Bytes())
		for i := range split.Size {
			all[4*i] = byte(i)
		}
		require.NoError(t, d.Write(ids, all))
		require.NoError(t, d.Write(table, floats(1)))
		for rank := 0; rank < 2100; rank += 1 + rank/7 {
			require.NoError(t, d.Write(control, backend.Control{Rank: int32(rank)}.AppendTo(nil)))
			run()
			want := make([]float32, split.Size)
			want[split.Index(rank)] = 1
			require.Equal(t, want, readFloats(t, d, out), "rank %d of %s", rank, split)
		}
	}
}

// The loss of two parts is that of the whole, also of rows with infinities and NaN, although
// the interpreter's maxima lose NaN. Padding does not count.
func TestLossOfParts(t *testing.T) {
	const cols = 5
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, c := range []struct {
		valid int
		rows  [][]float32
	}{
		{2 * cols, [][]float32{
			{1, 2, 3, 4, 5, 6, 7, 8, 9, 10},
			{1, 2, 3, 4, 5, 5, 4, 3, 2, 1},
			{1, nan, 3, 4, 5, 6, 7, 8, 9, 10},
			{1, 2, 3, 4, 5, 6, nan, 8, 9, 1},
			{1, 2, inf, 4, 5, 6, 7, 8, 9, 10},
			{-inf, -inf, 1, -inf, -inf, 6, 7, 8, 9, 10},
			{6, 7, 8, 9, 10, -inf, -inf, -inf, -inf, 1e30},
		}},
		{cols + 2, [][]float32{{1, 2, 3, 4, 5, 6, 7, 100, nan, inf}, {1, nan, 3, 4, 5, 6, 7, 8, 9, 10}, {7, 2, 3, 4, 5, 6, 7, 8, 9, 10}}},
		{cols, [][]float32{{1, 2, 3, 4, 5, 6, 7, 100, nan, inf}, {1, 2, 3, 4, nan, 1, 1, 1, 1, 1}}},
		{2, [][]float32{{1, 2, inf, nan, 5, 6, 7, 100, nan, inf}, {2, 2, 0, 0, 0, 1, 1, 1, 1, 1}}},
	} {
		for target := -1; target < c.valid; target++ {
			v, n, split := backend.NewVars(), len(c.rows), backend.Group{Size: 2, Stride: 1}
			f32 := func(name string, shape ...int) *backend.Tensor {
				return v.Tensor(backend.Stash, name, fp8.F32, shape...)
			}
			targets := v.Tensor(backend.Stash, "targets", fp8.I32, n)
			logits, stats := f32("logits", n, 2*cols), f32("stats", 2, n, backend.SoftmaxWords)
			controls := [2]*backend.Tensor{v.Tensor(backend.Input, "step.control", fp8.I32, backend.ControlWords), v.Tensor(backend.Input, "control.1", fp8.I32, backend.ControlWords)}
			op := func(suffix string, logits *backend.Tensor, control *backend.Tensor) *backend.CrossEntropy {
				return &backend.CrossEntropy{
					Logits: logits, Targets: targets, Control: control, Valid: c.valid,
					Loss: f32("loss"+suffix, n), DLogits: f32("dlogits"+suffix, n, logits.Cols()), Correct: v.Tensor(backend.Stash, "correct"+suffix, fp8.I32, n),
				}
			}
			p := v.Program("p")
			want := op("", logits, controls[0])
			p.Add(want)
			var got [2]*backend.CrossEntropy
			for i, name := range []string{".0", ".1"} {
				part := logits.Columns("part"+name, i*cols, cols)
				p.Add(&backend.SoftmaxStats{
					Logits: part, Targets: targets, Control: controls[i], Valid: c.valid, Split: split,
					Out: stats.Slice("stats"+name, i*n*backend.SoftmaxWords, n*backend.SoftmaxWords),
				})
				got[i] = op(name, part, controls[i])
				got[i].Stats, got[i].Split = stats, split
			}
			p.Add(got[0])
			p.Add(got[1])
			d, run := interpret(t, p)
			var all []float32
			ids := make([]byte, 0, 4*n)
			for _, row := range c.rows {
				all = append(all, row...)
				ids = append(ids, byte(target), byte(target>>8), byte(target>>8), byte(target>>8))
			}
			require.NoError(t, d.Write(logits, floats(all...)))
			require.NoError(t, d.Write(targets, ids))
			for i, control := range controls {
				require.NoError(t, d.Write(control, backend.Control{Rank: int32(i), InvTokens: 0.25}.AppendTo(nil)))
			}
			run()
			gradient := readFloats(t, d, want.DLogits)
			for i, o := range got {
				requireNear(t, readFloats(t, d, want.Loss), readFloats(t, d, o.Loss))
				require.Equal(t, readRaw(t, d, want.Correct), readRaw(t, d, o.Correct))
				part := readFloats(t, d, o.DLogits)
				for row := range n {
					requireNear(t, gradient[(2*row+i)*cols:][:cols], part[row*cols:][:cols])
				}
			}
		}
	}
}

// requireNear requires equal values up to rounding; NaN equals NaN.
func requireNear(t *testing.T, want, got []float32) {
	t.Helper()
	for i, x := range want {
		if x != got[i] && !(x != x && got[i] != got[i]) {
			require.InDelta(t, x, got[i], 1e-5, "%v, want %v", got, want)
		}
	}
}
