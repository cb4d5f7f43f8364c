// Package arith is what accelerators compute when they multiply FP8 matrices, bit
// for bit: device models as values, and the plain definition of their sums.
//
// No matrix unit adds up FP8 products in FP32. Each takes a group of products and
// an addend, aligns all of them to the largest exponent among them, cuts off what
// is below some bits, adds what is left exactly, and stores a result of its own
// format, which is the next group's addend. How many products, how many bits and
// which format is a [Sum]; a [Model] is a device's sum with its formats.
//
//	m, err := arith.Lookup("h100")
//	a, b := arith.Operand{Codes: x, DType: fp8.E4M3}, arith.Operand{Codes: y, DType: fp8.E4M3}
//	z := m.Dot(a, b, false) // codes in, FP32 out
//
// What is exact: one fused sum, as far as each model's Source goes, and a dot
// product whose k ascends. In which order a vendor's library splits the k of a
// whole product over its units is not published; a library that splits it gives
// other bits.
package arith

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"octet/fp8"
	"octet/internal/spelling"
)

// Model is what the products of one accelerator are.
type Model struct {
	Name    string // "h100"
	Summary string
	Source  string // where from, and how sure

	E4M3  fp8.DType      // E4M3, or E4M3IEEE with its maximum of 240
	Pairs [][2]fp8.DType // operand formats that the matrix unit multiplies
	// GEMMPairs are those of Pairs that the GEMM of the vendor's library takes, which
	// recipes are resolved for.
	GEMMPairs [][2]fp8.DType
	Sum       Sum // what the matrix unit does with a group of products
	// Promote is after how many products a partial sum joins another in FP32,
	// rounded to nearest, where that is asked for (backend.Promoted); 0: never.
	Promote int
}

// Sum is a fused sum of products of FP8 values and an addend.
type Sum struct {
	Group int // products
	Bits  int // fraction bits below the largest exponent that are kept, toward zero
	// Apart says that the addend is not aligned with the products but joins their
	// sum in one rounding to nearest, even. FP32 subnormals are zeros there.
	Apart bool
	Kept  int // fraction bits of a result, toward zero; with Apart 23, to nearest
	// MX says that the unit multiplies the E8M0 scales of blocks of Group codes of both
	// operands into their products, exactly, before it aligns them. Others add up
	// codes, and sums join with their scales in FP32, as backend.MatMul says. No unit
	// has both MX and Apart.
	MX bool
	// LeastE4M3 and LeastE5M2 are the smallest exponents of operands: that of a
	// subnormal one is not below. They decide what is aligned, no value.
	LeastE4M3, LeastE5M2 int
}

// Least is the smallest power of two that an operand's format counts with.
func (s *Sum) Least(d fp8.DType) float32 {
	if d == fp8.E5M2 {
		return power(s.LeastE5M2)
	}
	return power(s.LeastE4M3)
}

// Tensor cores multiply every pair (PTX ISA: wgmma, mma and tcgen05.mma take e4m3 and
// e5m2 for either operand). cuBLASLt takes every pair but E5M2 by E5M2 (its
// documentation, section cublasLtMatmul).
var (
	nvidiaPairs   = allPairs(fp8.E4M3)
	cublasLtPairs = [][2]fp8.DType{{fp8.E4M3, fp8.E4M3}, {fp8.E4M3, fp8.E5M2}, {fp8.E5M2, fp8.E4M3}}
	gaudi2Pairs   = [][2]fp8.DType{{fp8.E4M3IEEE, fp8.E4M3IEEE}, {fp8.E5M2, fp8.E5M2}}
)

var models = []Model{
	{
		Name:    "h100",
		Summary: "Hopper: 32 products and the addend, 13 bits",
		Source: "wgmma: recorded answers of an H100 and an H200 without addend (Khattak and Mikaitis, arXiv 2512.07004); " +
			"the addend's part from MMA-Sim (arXiv 2511.10909); promotion as CUTLASS does, cuBLASLt's interval is not published",
		E4M3: fp8.E4M3, Pairs: nvidiaPairs, GEMMPairs: cublasLtPairs, Promote: 128,
		Sum: Sum{Group: 32, Bits: 13, Kept: 13, LeastE4M3: -6, LeastE5M2: -14},
	},
	{
		Name:    "ada",
		Summary: "Ada: 16 products and the addend, 13 bits",
		Source:  "mma.sync: recorded answers of an RTX of the Ada generation and of an L40S, addend included (arXiv 2512.07004); promotion as on Hopper, unconfirmed",
		E4M3:    fp8.E4M3, Pairs: nvidiaPairs, GEMMPairs: cublasLtPairs, Promote: 128,
		Sum: Sum{Group: 16, Bits: 13, Kept: 13, LeastE4M3: -6, LeastE5M2: -14},
	},
	{
		Name:    "b200",
		Summary: "Blackwell: 32 products and the addend, 25 bits, toward zero; MX scales inside",
		Source:  "tcgen05, also its kind mxf8f6f4: a published model (MMA-Sim, arXiv 2511.10909), no recorded answers (those of a B200 are of mma.sync)",
		E4M3:    fp8.E4M3, Pairs: nvidiaPairs, GEMMPairs: cublasLtPairs,
		Sum: Sum{Group: 32, Bits: 25, Kept: 23, MX: true, LeastE4M3: -6, LeastE5M2: -14},
	},
	{
		Name:    "gaudi2",
		Summary: "Gaudi2: 16 products, 24 bits, the addend apart, to nearest; E4M3 to 240",
		Source:  "Intel's published reference of its RTL (Intel_Gaudi3_Software, coral-sim)",
		E4M3:    fp8.E4M3IEEE, Pairs: gaudi2Pairs, GEMMPairs: gaudi2Pairs,
		Sum: Sum{Group: 16, Bits: 24, Apart: true, Kept: 23, LeastE4M3: -14, LeastE5M2: -14},
	},
	{
		Name:    "gaudi3",
		Summary: "Gaudi3: 8 products and the addend, 24 bits, toward zero",
		Source:  "Intel's published reference of its RTL (Intel_Gaudi3_Software, coral-sim); E4M3's maximum is configuration: e4m3=240",
		E4M3:    fp8.E4M3, Pairs: allPairs(fp8.E4M3), GEMMPairs: allPairs(fp8.E4M3),
		Sum: Sum{Group: 8, Bits: 24, Kept: 23, LeastE4M3: -9, LeastE5M2: -16},
	},
}

func allPairs(e4m3 fp8.DType) (pairs [][2]fp8.DType) {
	for _, a := range []fp8.DType{e4m3, fp8.E5M2} {
		for _, b := range []fp8.DType{e4m3, fp8.E5M2} {
			pairs = append(pairs, [2]fp8.DType{a, b})
		}
	}
	return pairs
}

// Models lists the models.
func Models() []Model { return slices.Clone(models) }

// Names lists their names.
func Names() (names []string) {
	for _, m := range models {
		names = append(names, m.Name)
	}
	return names
}

// Lookup returns a model by name, changed by options behind it: "h100,fast" never
// promotes, "h100,promote=64" does so after 64 products, and "gaudi3,e4m3=240" has
// E4M3 with infinities.
func Lookup(text string) (Model, error) {
	name, options, _ := strings.Cut(text, ",")
	i := slices.IndexFunc(models, func(m Model) bool { return m.Name == name })
	if i < 0 {
		return Model{}, fmt.Errorf("unknown device model %q%s (known: %s)", name, spelling.DidYouMean(name, Names()), strings.Join(Names(), ", "))
	}
	m := models[i]
	if options == "" {
		return m, nil
	}
	for option := range strings.SplitSeq(options, ",") {
		key, value, _ := strings.Cut(option, "=")
		switch {
		case option == "fast" && m.Promote > 0:
			m.Promote = 0
		case key == "promote" && m.Promote > 0:
			n, err := strconv.Atoi(value)
			if err != nil || n < m.Sum.Group || n%m.Sum.Group != 0 || n > maxPromote {
				return Model{}, fmt.Errorf("device model %s: promote=%s is no multiple of the %d products of a fused sum, up to %d", m.Name, value, m.Sum.Group, maxPromote)
			}
			m.Promote = n
		case option == "e4m3=240" && m.Name == "gaudi3":
			m.E4M3, m.Pairs = fp8.E4M3IEEE, allPairs(fp8.E4M3IEEE)
			m.GEMMPairs = m.Pairs
		case option == "e4m3=448" && m.Name == "gaudi3":
		default:
			return Model{}, fmt.Errorf("device model %s has no option %q (%s)", m.Name, option, cmp.Or(models[i].options(), "it has none"))
		}
	}
	return m, nil
}

// maxPromote is far above any interval that makes sense.
const maxPromote = 1024

// options is a text that lists those of a model as it is named.
func (m *Model) options() string {
	switch {
	case m.Promote > 0:
		return "it has fast, promote=N"
	case m.Name == "gaudi3":
		return "it has e4m3=240, e4m3=448"
	}
	return ""
}
