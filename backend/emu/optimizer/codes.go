package optimizer

import (
	"math"
	"slices"

	"octet/backend/emu/simd"
	"octet/fp8"
)

// codes is the update of a parameter with a master in F16 and moments in E4M3 and E5M2. Its
// bounds let the first visit skip blocks. With AVX-512 it also updates from codes to codes,
// without FP32 in memory. Such an update is bound by arithmetic: in one pass, the processor
// casts while it waits for divisions and roots. The bits are those of AdamW.update and
// State.store, which handle the elements that it leaves.
type codes struct {
	state  *[3]State
	bounds bounds

	rule  simd.AdamW
	inv   [3]float32 // scale_inv; that of E4M3 times 2^8
	scale [3]float32 // multiplies the new values, lift included

	// Constants of the casts of package fp8. Stochastic rounding multiplies values by
	// lift, which maps the format's smallest normal value to 4; units converts values
	// below it to codes. lift is 1 for rounding to nearest.
	lift, units     [3]float32
	smallest, magic [3]uint32
	first, key      [3]uint32 // of fp8.Random: element 0 of a Weyl sequence, and the key mixed in

	maxFinite       uint8 // the first moment's largest finite code
	minPositive     uint8 // the smallest code of a second moment above 0
	stochastic      bool
	canRead, canRun bool // whether this run's scales are finite, and also its values
}

// SkipsBlocks reports whether AdamW skips blocks whose new values cannot be the largest, so
// that Extents matter: only with kernels for extents.
func SkipsBlocks() bool { return haveAVX2 }

// newCodes returns the codes path of a parameter, nil if its formats are not supported.
func (t *Param) newCodes() *codes {
	p, m, v := &t.States[0], &t.States[1], &t.States[2]
	moment := m.DType == fp8.E4M3 || m.DType == fp8.E4M3IEEE
	if !haveAVX2 || p.DType != fp8.F16 || !moment || v.DType != fp8.E5M2 {
		return nil
	}
	c := &codes{
		state: &t.States, maxFinite: 0x7e, stochastic: p.out.Rounding == fp8.Stochastic,
		lift: [3]float32{1, 1, 1}, units: [3]float32{0x1p24, 0x1p25, 0x1p24},
	}
	if m.DType == fp8.E4M3IEEE {
		c.maxFinite = 0x77
	}
	if v.floor {
		c.minPositive = 1
	}
	if c.stochastic {
		c.lift = [3]float32{0x1p16, 0x1p8, 0x1p16}
	}
	for i := range t.States {
		if !t.States[i].hasAmax() {
			return nil
		}
	}
	for i, f := range [...]struct {
		drop     uint32 // bits of the significand
		smallest float32
	}{1: {20, 0x1p-6}, 2: {21, 0x1p-14}} {
		c.smallest[i] = math.Float32bits(f.smallest)
		c.magic[i] = f.drop<<23 + -(c.smallest[i]>>f.drop)&0xff
	}
	return c
}

// read prepares a run's calls of amaxes.
func (c *codes) read(r *simd.AdamW) {
	if c == nil {
		return
	}
	c.rule, c.canRead = *r, true
	for i := range c.inv {
		c.inv[i] = c.state[i].Scale[0]
		if i == 1 {
			c.inv[i] *= 0x1p8
		}
		c.canRead = c.canRead && isFinite(c.inv[i])
	}
	c.bounds.begin(r, &c.inv)
}

// unbounded returns the first run of elements in [from, end) whose new values may exceed
// the maxima in bounds; if there is none, start is stop. A block must begin at from.
func (c *codes) unbounded(from, end int) (start, stop int) {
	if c == nil {
		return from, end
	}
	return c.bounds.unbounded(from, end)
}

// amaxes returns the largest magnitudes of the new values of n elements from at on; n
// is how many it can process.
func (c *codes) amaxes(at int, grad []float32) (n int, amax [3]float32) {
	if c == nil || !haveAVX512 || !c.canRead || len(grad) < 32 {
		return 0, amax
	}
	var lanes [3][16]uint32
	n = len(grad) &^ 31
	p, m, v := c.piece(at, n)
	if amaxAVX512(c, &p[0], &m[0], &v[0], &grad[0], n, &lanes) > c.maxFinite {
		return 0, amax
	}
	for i := range amax {
		amax[i] = math.Float32frombits(slices.Max(lanes[i][:]))
	}
	return n, amax
}

// write prepares a run's calls of store, for values with these amaxes. Finite amaxes
// imply that all values that were read are finite.
func (c *codes) write(amax []float32) {
	if c == nil {
		return
	}
	c.canRun = c.canRead
	for i := range c.scale {
		out := &c.state[i].out
		c.scale[i] = out.Scale * c.lift[i]
		c.canRun = c.canRun && isFinite(amax[i]) && isFinite(c.scale[i]) && c.scale[i] > 0
		c.first[i], c.key[i] = uint32(out.Key), uint32(out.Key>>32)
	}
}

// store updates n elements from at on; n is how many it can process.
func (c *codes) store(at int, grad []float32) (n int) {
	if c == nil || !haveAVX512 || !c.canRun || len(grad) < 32 {
		return 0
	}
	// Random bits come in pairs, and the key changes at element 2^33.
	first := c.state[0].out.Base + uint64(at)
	if first%2 != 0 || (first+uint64(len(grad))-1)>>33 != 0 {
		return 0
	}
	n = len(grad) &^ 31
	p, m, v := c.piece(at, n)
	if c.stochastic {
		stochasticAVX512(c, &p[0], &m[0], &v[0], &grad[0], n, uint32(first/2))
	} else {
		nearestAVX512(c, &p[0], &m[0], &v[0], &grad[0], n)
	}
	return n
}

// notes reports whether to record the extents of the stored codes: only if all values
// are finite.
func (c *codes) notes() bool { return c != nil && c.canRun && c.bounds.master != nil }

// note records the extents of n elements from at on.
func (c *codes) note(at, n int) {
	block, blocks, x := at/extentBlock, n/extentBlock, &c.bounds
	p, m, v := c.piece(at, n)
	if blocks > 0 {
		extents(p, m, v, blocks, x.master.max[block:], x.m1.max[block:], x.m2.max[block:], x.m2.min[block:])
	}
}

func (c *codes) piece(at, n int) (p []uint16, m, v []uint8) {
	return c.state[0].U16[at : at+n], c.state[1].U8[at : at+n], c.state[2].U8[at : at+n]
}

func isFinite(x float32) bool { return x-x == 0 }
