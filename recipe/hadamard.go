package recipe

import (
	"fmt"
	"math/bits"
	"slices"
)

// Hadamard rotates an operand along K before its cast: groups of Size elements, with these
// signs (backend.Hadamard has the equations). An outlier spreads over its group. The GEMM
// keeps its result only if both operands are rotated alike, so a recipe rotates both
// operands of wgrad or none. Weights are never rotated: fprop and dgrad, which sum over
// different dimensions, share one copy.
type Hadamard struct {
	Size  int // a power of two from 4 to 128; 1: no rotation; 0: not given
	Signs Signs
}

// Signs are the signs of a group's elements, which multiply them before the rotation.
type Signs uint8

const (
	NoSigns   Signs = iota // all are 1
	TESigns                // the 16 of Transformer Engine (common/hadamard_transform)
	SeedSigns              // random, from the seed of the run, the same in every step
)

var signNames = []string{"", "te", "seed"}

func (s Signs) String() string { return signNames[s] }

// ParseSigns is the inverse of String; an empty string is the zero value.
func ParseSigns(s string) (Signs, error) { return parse[Signs]("signs", signNames, s) }

// On reports whether h rotates.
func (h Hadamard) On() bool { return h.Size > 1 }

// Mask returns fixed signs as bits: bit i of the mask is set if element i is multiplied
// by -1.
func (h Hadamard) Mask() uint16 {
	if h.Signs == TESigns {
		return 0xd7e8
	}
	return 0
}

// String returns "none", or "hadamard 16" and the signs, unless all are 1.
func (h Hadamard) String() string {
	if !h.On() {
		return "none"
	}
	s := fmt.Sprintf("hadamard %d", h.Size)
	if h.Signs != NoSigns {
		s += " signs " + h.Signs.String()
	}
	return s
}

// Validate reports a size without a transform, and signs of another size.
func (h Hadamard) Validate() error {
	switch {
	case h == Hadamard{} || h == Hadamard{Size: 1}:
	case h.Size == 0 || h.Size == 1:
		return fmt.Errorf("signs %q of hadamard = %d: there is nothing to rotate (use hadamard = 16, or drop the signs)", h.Signs, h.Size)
	case h.Size < 4 || h.Size > 128 || bits.OnesCount(uint(h.Size)) != 1:
		return fmt.Errorf("hadamard = %d is not a power of two from 4 to 128 (use 16, or 1 for no rotation)", h.Size)
	case h.Signs == TESigns && h.Size != 16:
		return fmt.Errorf("signs %q of hadamard = %d: Transformer Engine has 16 (use hadamard = 16, or signs %q)", h.Signs, h.Size, SeedSigns)
	}
	return nil
}

// Hadamards lists the different rotations of a model's GEMM operands.
func (r Recipe) Hadamards(layers []Layer) (list []Hadamard) {
	for _, c := range r.Casts(layers) {
		if c.Hadamard.On() && !slices.Contains(list, c.Hadamard) {
			list = append(list, c.Hadamard)
		}
	}
	return list
}
