package ref

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
)

// load loads the program on one rank.
func load(t *testing.T, mode Mode, p *backend.Program) (*Backend, backend.Executable) {
	b := Open(nil, mode)
	list, err := b.Load(p)
	require.NoError(t, err)
	return b, list[0]
}

func TestCodesSurviveWriteAndRead(t *testing.T) {
	for d := fp8.F32; d <= fp8.I32; d++ {
		vars := backend.NewVars()
		x := vars.Tensor(backend.Stash, "x", d, 1<<8, 1<<4)
		b, _ := load(t, Rounded, vars.Program("p"))
		raw := make([]byte, x.Bytes())
		for i := range raw {
			raw[i] = byte(i*7 + i/256*31) // every byte value in every place
		}
		require.NoError(t, b.Write(x, raw))
		read := make([]byte, len(raw))
		require.NoError(t, b.Read(x, read))
		values := decode(d, read)
		for i, want := range decode(d, raw) {
			got := values[i]
			require.True(t, math.Float64bits(want) == math.Float64bits(got) || math.IsNaN(want) && math.IsNaN(got), "%s: %v became %v", d, want, got)
		}
		require.ErrorContains(t, b.Write(x, raw[1:]), "got a buffer of")
		require.ErrorContains(t, b.Read(x, read[1:]), "got a buffer of")
		require.ErrorContains(t, b.Read(x.RowRange(256, 1), read[:x.Bytes()/256]), "reaches outside")
	}
}

func TestRoundingOfStores(t *testing.T) {
	vars := backend.NewVars()
	wide, narrow := vars.Tensor(backend.Stash, "wide", fp8.F32, 3), vars.Tensor(backend.Stash, "narrow", fp8.BF16, 3)
	code, half := vars.Tensor(backend.Stash, "code", fp8.E4M3, 3), vars.Tensor(backend.Stash, "half", fp8.F16, 3)
	values := []float64{1. / 3, 1e5, 1e300}
	for mode, want := range map[Mode]map[*backend.Tensor][]float64{
		Rounded: {
			wide: {float64(float32(1. / 3)), 1e5, math.Inf(1)}, narrow: {0.333984375, 99840, math.Inf(1)},
			code: {0.34375, 448, 448}, half: {0.333251953125, math.Inf(1), math.Inf(1)},
		},
		Exact: {wide: values, narrow: values, code: {0.34375, 448, 448}, half: values},
	} {
		b := Open(nil, mode)
		_, err := b.Load(vars.Program("none"))
		require.NoError(t, err)
		for tensor, expected := range want {
			require.NoError(t, b.SetValues(tensor, values))
			got, err := b.Values(tensor)
			require.NoError(t, err)
			require.Equal(t, expected, got, "%s in mode %d", tensor, mode)
		}
	}
}

// One scale per 128 columns of a row.
func TestBlockScales(t *testing.T) {
	vars := backend.NewVars()
	a := vars.Tensor(backend.Stash, "a", fp8.E4M3, 2, 130)
	a.Scale, a.Block = vars.Tensor(backend.Stash, "a.scale_inv", fp8.F32, 2, 2), backend.Block1x128
	one := vars.Tensor(backend.Stash, "one", fp8.E4M3, 130, 1)
	one.Scale = vars.Tensor(backend.Stash, "one.scale_inv", fp8.F32, 1)
	out := vars.Tensor(backend.Stash, "out", fp8.F32, 2, 1)
	p := vars.Program("p")
	p.Add(&backend.MatMul{A: a, B: one, Out: out})
	b, run := load(t, Rounded, p)
	ones := make([]float64, 260)
	for i := range ones {
		ones[i] = 1
	}
	require.NoError(t, b.SetValues(a, ones))
	require.NoError(t, b.SetValues(one, ones[:130]))
	require.NoError(t, b.SetValues(a.Scale, []float64{1, 10, 100, 1000}))
	require.NoError(t, b.SetValues(one.Scale, []float64{0.5}))
	require.NoError(t, run.Run(t.Context()))
	got, err := b.Values(out)
	require.NoError(t, err)
	require.Equal(t, []float64{(128 + 2*10) * 0.5, (128*100 + 2*1000) * 0.5}, got)
}

func TestUnwrittenTempsAreNaN(t *testing.T) {
	vars := backend.NewVars()
	out := vars.Tensor(backend.Stash, "out", fp8.F32, 2)
	p := vars.Program("p")
	temp := p.Temp("temp", fp8.F32, 2)
	p.Add(&backend.Fill{Out: temp.Slice("half", 0, 1), Value: 3})
	p.Add(&backend.Quantize{X: temp, Out: cast(out)})
	b, run := load(t, Rounded, p)
	for range 2 {
		require.NoError(t, run.Run(t.Context()))
		got, err := b.Values(out)
		require.NoError(t, err)
		require.Equal(t, 3., got[0])
		require.True(t, math.IsNaN(got[1]))
	}
}

func TestInvalidData(t *testing.T) {
	vars := backend.NewVars()
	ids, x := vars.Tensor(backend.Input, "ids", fp8.I32, 2), vars.Tensor(backend.Stash, "x", fp8.F32, 2, 3)
	loss, control := vars.Tensor(backend.Stash, "loss", fp8.F32, 2), vars.Tensor(backend.Input, "step.control", fp8.I32, backend.ControlWords)
	out, wide := vars.Tensor(backend.Stash, "out", fp8.F32, 2, 3), vars.Tensor(backend.Stash, "wide", fp8.F32, 2, 8)
	for message, op := range map[string]backend.Op{
		"embed: token 1 has the id 7, outside x":                &backend.Embed{Table: x, IDs: ids, Out: cast(out)},
		"embedgrad: token 1 has the id 7":                       &backend.EmbedGrad{IDs: ids, DOut: x, DTable: out},
		"token 1 has the target 7, outside the vocabulary of 3": &backend.CrossEntropy{Logits: x, Targets: ids, Loss: loss, Valid: 3},
		"token 1 has the target 7, outside the vocabulary of 7": &backend.CrossEntropy{Logits: wide, Targets: ids, Loss: loss, Valid: 7},
		"2 rows from position 1 do not fit the 2 rows of":       &backend.CacheWrite{X: x, Control: control, Cache: out, Batch: 1},
	} {
		p := vars.Program("p")
		p.Add(op)
		b, run := load(t, Rounded, p)
		require.NoError(t, b.SetValues(ids, []float64{1, 7}))
		require.NoError(t, b.SetValues(control, []float64{8: 1, 15: 0}))
		require.ErrorContains(t, run.Run(t.Context()), message)
	}
}

func TestRunObservedShowsResults(t *testing.T) {
	vars := backend.NewVars()
	p := vars.Program("p").Scope("layer")
	temp := p.Temp("temp", fp8.F32, 1)
	p.Add(&backend.Fill{Out: temp, Value: 3})
	p.Add(&backend.Quantize{X: temp, Out: cast(vars.Tensor(backend.Stash, "out", fp8.F32, 1))})
	_, run := load(t, Rounded, p)
	var seen []string
	require.NoError(t, run.RunObserved(t.Context(), func(n *backend.Node, m backend.Memory) error {
		raw, err := m.Read(temp)
		require.Equal(t, float32(3), math.Float32frombits(binary.LittleEndian.Uint32(raw)))
		seen = append(seen, n.Path())
		return err
	}))
	require.Equal(t, []string{"layer: fill", "layer: quantize"}, seen)
	stop := errors.New("enough")
	require.ErrorIs(t, run.RunObserved(t.Context(), func(*backend.Node, backend.Memory) error { return stop }), stop)
	require.NoError(t, run.Run(t.Context()), "one rank can run again after its observer failed")
}

// An operand may have gaps between its rows; an observer's bytes have none.
func TestObserverWritesViews(t *testing.T) {
	vars := backend.NewVars()
	p, wide := vars.Program("p"), vars.Tensor(backend.Stash, "wide", fp8.F32, 2, 3)
	p.Add(&backend.Fill{Out: wide.Columns("left", 0, 2), Value: 3})
	b, run := load(t, Rounded, p)
	require.NoError(t, run.RunObserved(t.Context(), func(n *backend.Node, m backend.Memory) error {
		left := n.Op.(*backend.Fill).Out
		require.ErrorContains(t, m.Write(left, make([]byte, 24)), "takes 16 bytes, got 24")
		return m.Write(left, fp8.AppendFloats(nil, 1, 2, 4, 5))
	}))
	got, err := b.Values(wide)
	require.NoError(t, err)
	require.Equal(t, []float64{1, 2, 0, 4, 5, 0}, got)
}

func TestDriver(t *testing.T) {
	d, device, err := backend.Find("ref:exact")
	require.NoError(t, err)
	require.Equal(t, "exact", device)
	b, err := d.Open(device, backend.Options{})
	require.NoError(t, err)
	require.Equal(t, Exact, b.(*Backend).mode)
	for device, what := range map[string]string{"": "float64", "exact": "float64, F32, BF16 and F16 not rounded"} {
		spec, err := d.Spec(device)
		require.NoError(t, err)
		require.Equal(t, what, spec.Device)
		b, err := d.Open(device, backend.Options{})
		require.NoError(t, err)
		require.Equal(t, spec, b.Spec())
	}
	_, err = d.Spec("fast")
	require.ErrorContains(t, err, "known: exact")
	_, err = d.Open("fast", backend.Options{})
	require.Error(t, err)
}

func TestLoadRefuses(t *testing.T) {
	vars := backend.NewVars()
	x := vars.Tensor(backend.Stash, "x", fp8.F32, 4)
	b := openRanks(2)[0]
	_, err := b.Load(vars.Program("first"))
	require.NoError(t, err)
	_, err = b.Load(backend.NewVars().Program("other"))
	require.ErrorContains(t, err, "program other: its variables are not those of the programs loaded before")
	for message, op := range map[string]backend.Op{
		"allgather: there are 2 ranks, X is x:fp32[4] and Out is x:fp32[4]":     &backend.AllGather{X: x, Out: x},
		"reducescatter: there are 2 ranks, X is x:fp32[4] and Out is x:fp32[4]": &backend.ReduceScatter{X: x, Out: x},
	} {
		p := vars.Program("p")
		p.Add(op)
		_, err := b.Load(p)
		require.ErrorContains(t, err, message)
	}
	broken := vars.Program("broken")
	broken.Add(&backend.Fill{})
	_, err = b.Load(broken)
	require.ErrorContains(t, err, "program broken: fill: operand Out is missing")
}

// side builds one rank's program and runs it in a goroutine.
func side(t *testing.T, ctx context.Context, b *Backend, build func(p *backend.Program, x *backend.Tensor)) chan error {
	vars := backend.NewVars()
	x := vars.Tensor(backend.Stash, "x", fp8.F32, 4)
	p := vars.Program("p")
	build(p, x)
	list, err := b.Load(p)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- list[0].Run(ctx) }()
	return done
}

func TestRanksThatDisagree(t *testing.T) {
	ranks := openRanks(2)
	first := side(t, t.Context(), ranks[0], func(p *backend.Program, x *backend.Tensor) { p.Add(&backend.AllReduce{X: x}) })
	second := side(t, t.Context(), ranks[1], func(p *backend.Program, x *backend.Tensor) {
		p.Add(&backend.AllReduce{X: x.Slice("part", 0, 2)})
	})
	for _, err := range []error{<-first, <-second} {
		require.ErrorContains(t, err, "the ranks run different programs: rank 0 is in *backend.AllReduce of 4 elements")
	}
}

func TestFailureOfOneRankEndsTheCollectives(t *testing.T) {
	ranks := openRanks(3)
	waiting := side(t, t.Context(), ranks[0], func(p *backend.Program, x *backend.Tensor) { p.Add(&backend.AllReduce{X: x}) })
	receiving := side(t, t.Context(), ranks[1], func(p *backend.Program, x *backend.Tensor) { p.Add(&backend.AllReduce{X: x}) })
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	failing := side(t, cancelled, ranks[2], func(p *backend.Program, x *backend.Tensor) { p.Add(&backend.Fill{Out: x}) })
	require.ErrorIs(t, <-failing, context.Canceled)
	require.ErrorContains(t, <-waiting, "rank 2: ")
	require.ErrorContains(t, <-receiving, "rank 2: ")
}

func TestCancelledRank(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	waiting := side(t, ctx, openRanks(2)[0], func(p *backend.Program, x *backend.Tensor) { p.Add(&backend.AllReduce{X: x}) })
	cancel()
	require.ErrorIs(t, <-waiting, context.Canceled)
}
