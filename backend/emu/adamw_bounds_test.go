package emu

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/emu/simd"
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
	for i, n := range []int{7*adamSpan + extentBlock, extentBlock, 700, 100} {
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
	if !haveAdamCodes {
		t.Skip("no AVX-512")
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
								e.known = false
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

// AdamW does not read a block without large values: a NaN written there directly does
// not reach the amaxes.
func TestAdamWSkipsBlocks(t *testing.T) {
	if !haveAdamCodes {
		t.Skip("no AVX-512")
	}
	tr, op, norm := boundedTrial(t, fp8.Nearest, false)
	d, update := tr.load(2)
	list, err := d.Load(norm)
	require.NoError(t, err)
	run := func() {
		require.NoError(t, list[0].Run(t.Context()))
		require.NoError(t, update.Run(t.Context()))
	}
	b := &binder{device: d}
	master := slice[uint16](b, op.Master[0])
	const quiet = 2*adamSpan + extentBlock
	clear(master[quiet:][:extentBlock])
	clear(b.f32(op.Grad[0])[quiet:][:extentBlock])
	run()

	master[quiet+7] = 0x7e00
	run()
	require.True(t, isFinite(b.f32(op.Amaxes)[0]))

	master[quiet+7] = 0x7e00
	d.changed(op.Master[0])
	run()
	require.False(t, isFinite(b.f32(op.Amaxes)[0]))
	require.False(t, d.extents[op.M1[0]].known, "NaN codes have no extents")
}

func TestAdamWExtents(t *testing.T) {
	if !haveAdamCodes {
		t.Skip("no AVX-512")
	}
	const blocks = 40
	random := rand.New(rand.NewPCG(5, 6))
	p, m, v := make([]uint16, blocks*extentBlock), make([]uint8, blocks*extentBlock), make([]uint8, blocks*extentBlock)
	for i := range p {
		p[i], m[i], v[i] = uint16(random.Uint32()), uint8(random.Uint32()), uint8(random.Uint32N(0x7c))
		p[i] = p[i]&0x8000 | min(p[i]&0x7fff, 0x7bff)
		m[i] = m[i]&0x80 | min(m[i]&0x7f, 0x7e)
		if block := i / extentBlock; block%2 == 1 { // p and m small, v large, except one code of each
			p[i], m[i], v[i] = p[i]&0x83ff, m[i]&0x87, min(v[i]|0x40, 0x7b)
		}
	}
	for block := 1; block < blocks; block += 2 {
		at := block*extentBlock + random.IntN(extentBlock)
		p[at], m[at], v[at] = 0xf000, 0xf0, 1
	}
	want, got := [4][]float32{}, [4][]float32{}
	for block := range blocks {
		largest, minV := [3]float32{}, float32(math.Inf(1))
		for i := block * extentBlock; i < (block+1)*extentBlock; i++ {
			for j, x := range []float32{fp8.F16.Float32(uint32(p[i])), fp8.E4M3.Float32(uint32(m[i])) / 256, fp8.E5M2.Float32(uint32(v[i]))} {
				largest[j] = fp8.MaxAmax(largest[j], x)
			}
			minV = min(minV, fp8.E5M2.Float32(uint32(v[i])))
		}
		for j, x := range []float32{largest[0], largest[1], largest[2], minV} {
			want[j], got[j] = append(want[j], x), append(got[j], -1)
		}
	}
	adamExtentsAVX512(&p[0], &m[0], &v[0], blocks, &got[0][0], &got[1][0], &got[2][0], &got[3][0])
	require.Equal(t, want, got)
}

// Maxima with an infinity bound nothing: new values may be NaN.
func TestAdamWBoundsAreFinite(t *testing.T) {
	var a adamBounds
	a.begin(&simd.AdamW{}, &[3]float32{})
	before := a.top
	a.found([3]float32{1, float32(math.Inf(1)), 1})
	require.Equal(t, before, a.top)
}

// Bounds are not used if a coefficient or a scale_inv is negative or NaN.
func TestAdamWBoundsNeedMonotonicUpdates(t *testing.T) {
	known := &extents{known: true}
	a := adamBounds{master: known, m1: known, m2: known, grad: known}
	usable := func(edit func(r *simd.AdamW, inv *[3]float32)) bool {
		r, inv := simd.AdamW{Coef: 1, Beta1: 1, Rest1: 1, Beta2: 1, Rest2: 1, Decay: 1, Rate: 1, RootScale: 1, Epsilon: 1}, [3]float32{1, 1, 1}
		edit(&r, &inv)
		a.begin(&r, &inv)
		return a.usable
	}
	require.True(t, usable(func(*simd.AdamW, *[3]float32) {}))
	for _, x := range []float32{-1, float32(math.NaN())} {
		require.False(t, usable(func(r *simd.AdamW, _ *[3]float32) { r.Coef = x }))
		require.False(t, usable(func(r *simd.AdamW, _ *[3]float32) { r.Decay = x }))
		require.False(t, usable(func(r *simd.AdamW, _ *[3]float32) { r.Rate = x }))
		for i := range 3 {
			require.False(t, usable(func(_ *simd.AdamW, inv *[3]float32) { inv[i] = x }))
		}
	}
}
