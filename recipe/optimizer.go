package recipe

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"octet/fp8"
)

// Optimizer gives the formats of the optimizer state for the matrices of the decoder
// layers; the state of all other parameters is F32, but for moments that Scope includes. F16
// and FP8 have scales, BF16 has none.
type Optimizer struct {
	Master, M1, M2 fp8.DType // M1 may be an integer format, which is for Muon's momentum only
	Rounding       fp8.Rounding
	Pow2           bool // scales are powers of two, else limit/amax
	Block          int  // elements of a row that share a scale of the moments: one of MomentBlocks, or 0 for one scale per tensor
	Expand         bool // blocks of FP8 moments are expanded, see fp8.Expansion
	Flat           bool // blocks continue over the ends of rows
	// FloorV rounds a positive second moment that would become 0 up to the format's
	// smallest value: with v = 0 the update m/(√v+ε) explodes.
	FloorV bool
	Scope  StateScope
	// Grad is the format of the weight gradients of linear layers between micro-batches, and until
	// the update: F32, BF16, or FP8 with one scale, a power of two. Each micro-batch adds in FP32
	// and rounds the sum to nearest. Invalid: F32.
	Grad fp8.DType
}

// GradFormat returns the format of the weight gradients, F32 if none is given.
func (o Optimizer) GradFormat() fp8.DType { return cmp.Or(o.Grad, fp8.F32) }

// CheckGrad reports a format in which weight gradients are not stored.
func CheckGrad(d fp8.DType) error {
	if d == fp8.F32 || d == fp8.BF16 || d.Size() == 1 && d.HoldsMoments() {
		return nil
	}
	return fmt.Errorf("weight gradients in %s are not supported (use fp32, bf16, or a floating-point format of five to eight bits that has NaN, such as e4m3)", d)
}

// MaxAccumulate is the largest number of micro-batches whose sum FP8 gradients hold with at most
// 2.5 times the error of one cast: beyond it, micro-batches are too small beside the sum, and rounding to
// nearest loses them. Measured by TestAccumulationInFP8 of package nn.
const MaxAccumulate = 16

// StateScope says which matrices beside those of the decoder layers have moments in the
// formats M1 and M2. The second moments of embedding and head span 9 to 12 decades, since most
// tokens are rare; those of the layers span 3. A table that embedding and head share is both.
type StateScope uint8

const (
	LayersOnly StateScope = iota
	WithHead
	WithEmbedding
	AllMatrices
)

var scopeNames = []string{"layers", "head", "embedding", "all"}

func (s StateScope) String() string { return scopeNames[s] }

// ParseStateScope is the inverse of String.
func ParseStateScope(s string) (StateScope, error) {
	if i := slices.Index(scopeNames, s); i >= 0 {
		return StateScope(i), nil
	}
	return 0, fmt.Errorf("unknown scope %q (known: %s)", s, strings.Join(scopeNames, ", "))
}

// Includes reports whether the moments of a matrix have the formats M1 and M2. A matrix that
// is neither an embedding's nor a head's is a layer's.
func (s StateScope) Includes(embedding, head bool) bool {
	switch {
	case !embedding && !head:
		return true
	case s == WithHead:
		return head
	case s == WithEmbedding:
		return embedding
	}
	return s == AllMatrices
}

// MomentBlocks are the supported block sizes, see Optimizer.Block: COAT's, torchao's and that of
// 8-bit Muon.
var MomentBlocks = []int{128, 256, 2048}

// Scaled reports whether optimizer state in format d has a scale.
func Scaled(d fp8.DType) bool { return d != fp8.F32 && d != fp8.BF16 }

// Validate reports formats that the optimizer state does not support.
func (o Optimizer) Validate() error {
	if !slices.Contains([]fp8.DType{fp8.F32, fp8.F16, fp8.BF16}, o.Master) {
		return fmt.Errorf("master weights in %s would lose small updates (use fp32, fp16 or bf16)", o.Master)
	}
	for i, m := range []fp8.DType{o.M1, o.M2} {
		if !m.HoldsMoments() && (i > 0 || !m.HoldsMomentum()) {
			return fmt.Errorf("moments in %s are not supported: it is no floating-point format with NaN (use fp32, fp16, bf16, e4m3 or e5m2)", m)
		}
	}
	if err := CheckGrad(o.GradFormat()); err != nil {
		return err
	}
	if o.Block != 0 && !slices.Contains(MomentBlocks, o.Block) {
		return fmt.Errorf("one moment scale per %d elements is not supported (use 128, 256 or 2048, or 0 for one scale per tensor)", o.Block)
	}
	if o.Block == 0 && (o.Expand || o.Flat) {
		return fmt.Errorf("state_expand and state_flat belong to blocks (give state_block: 128, 256 or 2048)")
	}
	if o.Expand && !o.M1.IsQuantized() && !o.M2.IsQuantized() {
		return fmt.Errorf("moments in %s and %s cannot be expanded (state_expand needs m1 or m2 in FP8)", o.M1, o.M2)
	}
	return nil
}

// String returns one line: the formats and, unless all are FP32, scales and rounding, without
// blocks.
func (o Optimizer) String() string {
	s := fmt.Sprintf("master %s, m1 %s, m2 %s", o.Master, o.M1, o.M2)
	if o.Master == fp8.F32 && o.M1 == fp8.F32 && o.M2 == fp8.F32 {
		return s
	}
	if Scaled(o.Master) || Scaled(o.M1) || Scaled(o.M2) {
		s += "; scaled"
		if o.Pow2 {
			s += " by 2^n"
		}
	}
	return s + ", " + o.Rounding.String()
}

// describeBlocks returns the blocks of the moments as a line; empty if there are none.
func (o Optimizer) describeBlocks() string {
	if o.Block == 0 {
		return ""
	}
	s := fmt.Sprintf("m1 and m2 scaled in blocks of %d", o.Block)
	if o.Flat {
		s += ", across the ends of rows"
	}
	if o.Expand {
		s += ", expanded to FP8's range"
	}
	return s
}
