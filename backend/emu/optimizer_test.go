package emu

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/emu/optimizer"
	"octet/fp8"
)

// boundedTrial declares AdamW over parameters of many blocks, of one, and with a partial
// block; if apart, as the two ops of a sharded update. Program norm computes the
// gradient's norm.
func boundedTrial(t *testing.T, rounding fp8.Rounding, apart bool) (tr *trial, op *backend.AdamW, norm *backend.Program) {
	tr = newTrial(t)
	op = &backend.AdamW{
		Control: tr.control(backend.Control{Seed: 5, Step: 9, LR: 0.01}),
		Step:    tr.tensor("step", fp8.I32, []float32{3}, 1),
		Coef:    tr.tensor("coef", fp8.F32, []float32{0.5}, 1),
		Skip:    tr.tensor("skip", fp8.I32, nil, 1),
		Beta1:   0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, Rounding: rounding,
	}
	for i, n := range []int{7*1024 + 256, 256, 700, 100} {
		one := func(name string, d fp8.DType) *backend.Tensor {
			x := tr.tensor(fmt.Sprint(name, i), d, tr.noise(n), n)
			if d != fp8.F32 {
				tr.scaled(x, 1)
			}
			return x
		}
		op.Grad, op.Master = append(op.Grad, one("grad", fp8.F32)), append(op.Master, one("master", fp8.F16))
		op.M1, op.M2 = append(op.M1, one("m1.", fp8.E4M3)), append(op.M2, one("m2.", fp8.E5M2))
		for k, code := range tr.data[op.M2[i]] { // second moments have no sign
			tr.data[op.M2[i]][k] = code &^ 0x80
		}
		op.MasterScale = append(op.MasterScale, op.Master[i].Scale)
		op.M1Scale, op.M2Scale = append(op.M1Scale, op.M1[i].Scale), append(op.M2Scale, op.M2[i].Scale)
	}
	op.Amaxes = tr.tensor("amaxes", fp8.F32, nil, 3*len(op.Grad))
	if apart {
		first := *op
		first.AmaxOnly, op.AmaxGiven = true, true
		tr.program.Add(&first)
	}
	tr.program.Add(op)
	norm = tr.vars.Program("norm")
	norm.Add(&backend.SumSquares{X: op.Grad, Out: tr.tensor("norm", fp8.F32, nil, 1)})
	return tr, op, norm
}

// AdamW leaves the same states with extents as without, whatever is written between and
// within steps.
func TestAdamWBounds(t *testing.T) {
	if !optimizer.SkipsBlocks() {
		t.Skip("AdamW skips no blocks on this machine")
	}
	const steps = 600
	for _, apart := range []bool{false, true} {
		for _, rounding := range []fp8.Rounding{fp8.Nearest, fp8.Stochastic} {
			t.Run(fmt.Sprintf("%s apart=%v", rounding, apart), func(t *testing.T) {
				run := func(forget bool) (states [][]byte) {
					tr, op, norm := boundedTrial(t, rounding, apart)
					fill := tr.vars.Program("fill")
					fill.Add(&backend.Fill{Out: op.Grad[0].Slice("some", 2000, 300), Value: 100})
					d, update := tr.load(2)
					list, err := d.Load(norm, fill)
					require.NoError(t, err)
					write := func(x *backend.Tensor, raw []byte) { require.NoError(t, d.Write(x, raw)) }
					random := rand.New(rand.NewPCG(3, 4))
					floats := func(n int, size float64) (raw []byte) {
						for range n {
							raw = fp8.AppendFloats(raw, float32(size*random.NormFloat64()))
						}
						return raw
					}
					for step := range steps {
						i := max(0, random.IntN(6)-3) // mostly the largest parameter
						n := op.Grad[i].Elems()
						one := func(small, large uint32) (codes []uint32) { // a large one among small ones
							for range n {
								codes = append(codes, small-random.Uint32N(small/4))
							}
							codes[random.IntN(n)] = large
							return codes
						}
						bytes := func(codes []uint32) (raw []byte) {
							for _, c := range codes {
								raw = append(raw, byte(c))
							}
							return raw
						}
						fp16 := func(codes []uint32) (raw []byte) {
							for _, c := range codes {
								raw = binary.LittleEndian.AppendUint16(raw, uint16(c))
							}
							return raw
						}
						gradient := func() (raw []byte) {
							for _, c := range one(0x3a000000, 0x3f000000+random.Uint32N(1<<27)) {
								raw = binary.LittleEndian.AppendUint32(raw, c)
							}
							return raw
						}
						between := func(backend.Memory) error { return nil }
						filled := false
						switch action := random.IntN(13); action {
						case 0: // another batch
							write(op.Grad[i], floats(n, 1))
						case 1: // a spike
							write(op.Grad[i], gradient())
						case 2: // an op between the norm and the update
							filled = true
						case 3: // an observer's write between them
							raw := gradient()
							between = func(m backend.Memory) error { return m.Write(op.Grad[i], raw) }
						case 4, 5, 6: // a checkpoint
							write(op.Master[i], fp16(one(0x5000, 0x7b00)))
							if action == 4 {
								break
							}
							write(op.M1[i], bytes(one(0x60, 0x7e)))
							if action == 5 {
								break
							}
							write(op.M2[i], bytes(one(0x60, 0x7b)))
						case 7:
							write(op.M1[i], bytes(one(0x60, 0x7e)))
						case 8:
							write(op.M2[i], bytes(one(0x60, 0x7b)))
						case 9: // one code
							write(op.M2[i].Slice("one", random.IntN(n), 1), []byte{byte(random.IntN(0x7c))})
						case 10:
							write(op.Coef, floats(1, 1))
						case 11:
							write(op.M1[i].Scale, floats(1, 1))
						case 12:
							c := backend.Control{Seed: 5, Step: random.Uint64() >> 40, LR: float32(random.NormFloat64() * 1e-3)}
							write(op.Control, append(c.AppendTo(nil), make([]byte, 64)...)[:op.Control.Bytes()])
						}
						switch step % 30 {
						case 28: // the following states are NaN
							write(op.Grad[i].Slice("one", random.IntN(n), 1), []byte{0, 0, 0xc0, 0x7f})
						case 0: // until the data is restored
							for x, raw := range tr.data {
								write(x, raw)
							}
						}
						require.NoError(t, list[0].RunObserved(t.Context(), func(_ *backend.Node, m backend.Memory) error { return between(m) }))
						if filled {
							require.NoError(t, list[1].Run(t.Context()))
						}
						if forget {
							for _, e := range d.extents {
								e.Forget()
							}
						}
						require.NoError(t, update.Run(t.Context()))
						states = append(states, stateOf(d))
					}
					return states
				}
				want, got := run(true), run(false)
				for i := range want {
					require.Equal(t, want[i], got[i], "step %d", i)
				}
			})
		}
	}
}

// stateOf returns all persistent memory of a device.
func stateOf(d *device) (all []byte) {
	for x := range d.vars.All() {
		all = append(all, d.memory[x]...)
	}
	return all
}

// AdamW itself renews the extents of a tensor that it writes whole, but not those of the
// tensor of a view.
func TestAdamWKeepsExtents(t *testing.T) {
	tr, op, _ := boundedTrial(t, fp8.Nearest, false)
	parts := *op
	parts.Grad, parts.Master, parts.M1, parts.M2 = slices.Clone(op.Grad), slices.Clone(op.Master), slices.Clone(op.M1), slices.Clone(op.M2)
	for _, list := range [][]*backend.Tensor{parts.Grad, parts.Master, parts.M1, parts.M2} {
		list[0] = list[0].Slice("part", 256, 512)
	}
	tr.program.Add(&parts)
	d, _ := tr.load(1)
	b, run := &binder{device: d}, kernel(func(context.Context) error { return nil })
	wrapped := func(node int) bool {
		k := b.invalidating(run, tr.program.Nodes()[node])
		return reflect.ValueOf(k).Pointer() != reflect.ValueOf(run).Pointer()
	}
	require.False(t, wrapped(0))
	require.True(t, wrapped(1))
}

func TestStepGate(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, c := range []struct {
		sum, clip  float32
		amax       []float32
		skip       float64
		norm, coef float64
	}{
		{sum: 16, norm: 4, coef: 1},
		{sum: 16, clip: 8, norm: 4, coef: 1},
		{sum: 16, clip: 1, norm: 4, coef: 0.25},
		{sum: 0, clip: 1, norm: 0, coef: 1},
		{sum: 16, amax: []float32{0, 3, math.MaxFloat32}, norm: 4, coef: 1},
		{sum: 16, amax: []float32{0, inf, 1}, norm: 4, coef: 1, skip: 1},
		{sum: 16, amax: []float32{0, 1, nan}, norm: 4, coef: 1, skip: 1},
		{sum: inf, norm: math.Inf(1), coef: 1, skip: 1},
		{sum: nan, norm: math.NaN(), coef: 1, skip: 1},
	} {
		tr := newTrial(t)
		op := &backend.StepGate{
			SumSquares: tr.tensor("sum", fp8.F32, []float32{c.sum}, 1),
			Step:       tr.tensor("step", fp8.I32, []float32{41}, 1),
			GradNorm:   tr.tensor("norm", fp8.F32, nil, 1),
			Coef:       tr.tensor("coef", fp8.F32, nil, 1),
			Skip:       tr.tensor("skip", fp8.I32, []float32{7}, 1),
			Clip:       c.clip,
		}
		if c.amax != nil {
			op.Amax = tr.tensor("amax", fp8.F32, c.amax, len(c.amax))
		}
		tr.program.Add(op)
		d := tr.run()
		require.Equal(t, c.skip, d.values(op.Skip)[0], "%+v", c)
		require.Equal(t, 42-c.skip, d.values(op.Step)[0])
		require.InDelta(t, c.coef, d.values(op.Coef)[0], 1e-6)
		if math.IsNaN(c.norm) {
			require.True(t, math.IsNaN(d.values(op.GradNorm)[0]))
		} else {
			require.Equal(t, c.norm, d.values(op.GradNorm)[0])
		}
	}
}

// The ops bind the extents of the tensors: a block without large values is not read again,
// so that a NaN in it, written behind the device's back, does not show.
func TestAdamWSkipsBlocks(t *testing.T) {
	if !optimizer.SkipsBlocks() {
		t.Skip("AdamW skips no blocks on this machine")
	}
	tr, op, norm := boundedTrial(t, fp8.Nearest, false)
	d, update := tr.load(2)
	list, err := d.Load(norm)
	require.NoError(t, err)
	run := func() {
		require.NoError(t, list[0].Run(t.Context()))
		require.NoError(t, update.Run(t.Context()))
	}
	finite := func() bool { return d.values(op.Amaxes)[0] < math.Inf(1) }
	b := &binder{device: d}
	master := slice[uint16](b, op.Master[0])
	const quiet, n = 2304, 256 // whole blocks
	clear(master[quiet:][:n])
	clear(b.f32(op.Grad[0])[quiet:][:n])
	run()

	master[quiet+7] = 0x7e00
	run()
	require.True(t, finite())

	master[quiet+7] = 0x7e00
	d.changed(op.Master[0])
	run()
	require.False(t, finite())
}
