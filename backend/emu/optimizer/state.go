package optimizer

import (
	"octet/backend"
	"octet/backend/emu/cast"
	"octet/backend/emu/memory"
	"octet/backend/emu/pool"
	"octet/fp8"
)

// State is one of the three stored tensors of a parameter. Runs replace its elements and
// its scales.
type State struct {
	memory.Matrix          // without gaps; Scale is nil for F32 and BF16, else one scale_inv per block
	Block         int      // elements of a row that share a scale; 0: all share one
	Expand        bool     // Scale has s, k and c of each block
	Stream        uint64   // fp8.NameKey of the tensor: the stream of stochastic rounding
	Extents       *Extents // nil if the tensor has none

	out   cast.Encoder
	limit float32 // the format's largest value
	pow2  bool
	floor bool // store a positive value as the smallest code above 0, not as 0
}

// hasAmax reports whether the first visit must find the state's amax.
func (s *State) hasAmax() bool { return s.Scale != nil && s.Block == 0 }

// prepare sets the scale and the random stream of the new codes; first is the random
// index of the first element.
func (s *State) prepare(amax float32, ctl backend.Control, first uint64) {
	s.out.Scale = 1
	if s.hasAmax() {
		s.out.Scale = s.scaleFor(amax, s.Scale[0])
	}
	s.out.Key, s.out.Base = fp8.StreamKey(ctl.Seed, ctl.Step, s.Stream), first
}

// scaleFor returns the scale for values with this amax; if the amax gives none, the old
// scale.
func (s *State) scaleFor(amax, oldInv float32) float32 {
	scale, ok := fp8.ScaleFor(amax, s.limit, s.pow2)
	if !ok && oldInv != 0 {
		scale = 1 / oldInv
	}
	return scale
}

// record stores the scale_inv of a scale from scaleFor. An amax that gives no scale
// leaves a scale_inv other than 0 as it is.
func (s *State) record(scaleInv *float32, amax, scale float32) {
	if _, ok := fp8.ScaleFor(amax, s.limit, s.pow2); ok || *scaleInv == 0 {
		*scaleInv = 1 / scale
	}
}

// writeScale records the scale of the new codes. Call it after all old codes are read.
func (s *State) writeScale(amax float32) {
	if s.hasAmax() {
		s.record(&s.Scale[0], amax, s.out.Scale)
	}
}

// store casts x, which begins at element at.
func (s *State) store(out *cast.Encoder, x []float32, at int) {
	end := at + len(x)
	switch s.DType {
	case fp8.F32:
		return
	case fp8.F16, fp8.BF16:
		out.Encode16(s.U16[at:end], x, uint64(at))
		if s.floor {
			floorCodes(s.U16[at:end], x)
		}
	default:
		out.Encode8(s.U8[at:end], x, uint64(at), cast.Streams(&s.Matrix))
		if s.floor {
			n := floorBytes(s.U8[at:end], x)
			floorCodes(s.U8[at+n:end], x[n:])
		}
	}
}

// floorCodes replaces code 0 by code 1, in every format the smallest positive value,
// where x is positive.
func floorCodes[C uint8 | uint16](codes []C, x []float32) {
	for i, c := range codes {
		if c == 0 && x[i] > 0 {
			codes[i] = 1
		}
	}
}

// blocks calls f for each part [from, to) of a span whose elements share a scale, or an
// expansion.
func (s *State) blocks(sp *span, cols int, f func(scaleInv []float32, from, to int)) {
	first, size := sp.row*pool.CeilDiv(cols, s.Block), 1
	if s.Expand {
		size = fp8.ExpansionElems
	}
	for from := 0; from < sp.n; from += s.Block {
		f(s.Scale[(first+(sp.col+from)/s.Block)*size:][:size], from, min(from+s.Block, sp.n))
	}
}

func (s *State) loadBlocks(x []float32, sp *span, at, cols int) {
	in := s.Matrix
	s.blocks(sp, cols, func(scaleInv []float32, from, to int) {
		in.Scale = scaleInv
		if s.Expand {
			in.Scale = nil
		}
		in.Load(x[from:to], 0, at+from)
		if s.Expand {
			fp8.Expansion(scaleInv).Expand(x[from:to])
		}
	})
}

func (s *State) storeBlocks(x []float32, sp *span, at, cols int) {
	out := s.out
	s.blocks(sp, cols, func(scaleInv []float32, from, to int) {
		if s.Expand {
			s.expand(x[from:to], scaleInv)
			out.Scale = 1
			s.store(&out, x[from:to], at+from)
			return
		}
		amax := fp8.Amax(x[from:to])
		out.Scale = s.scaleFor(amax, scaleInv[0])
		s.store(&out, x[from:to], at+from)
		s.record(&scaleInv[0], amax, out.Scale)
	})
}

// expand replaces the values x of a block by those to cast, and writes the block's expansion.
// A block that is not finite keeps the old one.
func (s *State) expand(x, expansion []float32) {
	if e, ok := fp8.ExpansionOf(x, s.limit); ok {
		copy(expansion, e[:])
	}
	fp8.Expansion(expansion).Compress(x)
}
