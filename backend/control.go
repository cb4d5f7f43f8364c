package backend

import (
	"encoding/binary"
	"math"
)

// Control holds everything that changes from step to step. The host writes it before
// a program runs, so nothing inside a program depends on the host, and a captured
// graph runs unchanged. It is the Input tensor "step.control", I32[ControlWords], with
// these words:
type Control struct {
	Seed      uint64  // words 0, 1: low half first
	Step      uint64  // words 2, 3: counts optimizer steps; part of the random stream
	Token     uint64  // words 4, 5: global index of the micro-batch's first token
	LR        float32 // word 6, float bits
	InvTokens float32 // word 7, float bits: 1 / valid tokens of the global batch
	Position  int32   // word 8: sequence position of the first row (decoding)
	Rank      int32   // word 9: index of this rank
}

// ControlWords is the length of the step.control tensor.
const ControlWords = 16

// AppendTo appends the words in little-endian order, the layout of I32 tensors.
func (c Control) AppendTo(b []byte) []byte {
	words := [ControlWords]uint32{
		uint32(c.Seed), uint32(c.Seed >> 32),
		uint32(c.Step), uint32(c.Step >> 32),
		uint32(c.Token), uint32(c.Token >> 32),
		math.Float32bits(c.LR), math.Float32bits(c.InvTokens),
		uint32(c.Position),
		uint32(c.Rank),
	}
	for _, w := range words {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	return b
}

// ControlFrom decodes the words, for kernels on the host; nil gives zeros.
func ControlFrom(words []int32) Control {
	if words == nil {
		return Control{}
	}
	u64 := func(i int) uint64 { return uint64(uint32(words[i])) | uint64(uint32(words[i+1]))<<32 }
	return Control{
		Seed: u64(0), Step: u64(2), Token: u64(4),
		LR:        math.Float32frombits(uint32(words[6])),
		InvTokens: math.Float32frombits(uint32(words[7])),
		Position:  words[8],
		Rank:      words[9],
	}
}
