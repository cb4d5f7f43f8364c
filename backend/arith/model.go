// Package arith models, bit for bit, how accelerators add up FP8 products: device
// models as data, and a plain definition of their sums.
//
// No matrix unit adds up FP8 products in FP32. Each takes a group of products and
// an addend, aligns them to the largest exponent among them, truncates them to a
// fixed number of bits, adds them exactly, and stores the result in its own format;
// the result is the next group's addend. A [Sum] holds the number of products, the
// number of bits and the format; a [Model] is a device's sum with its formats.
//
//	m, err := arith.Lookup("h100")
//	a, b := arith.Operand{Codes: x, DType: fp8.E4M3}, arith.Operand{Codes: y, DType: fp8.E4M3}
//	z := m.Dot(a, b, false) // codes in, FP32 out
//
// One fused sum is exact, as far as each model's Source goes, and so is a dot product
// with ascending k. Vendors do not publish how their libraries split the k of a GEMM
// over units; a library that splits it gives other bits.
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

// Model describes the FP8 matrix arithmetic of one accelerator.
type Model struct {
	Name    string // "h100"
	Summary string
	Source  string // the model's source, and how certain it is

	E4M3  fp8.DType      // E4M3, or E4M3IEEE with its maximum of 240
	Pairs [][2]fp8.DType // operand formats that Sum adds up, with any scales
	// GEMMs are the operands that the GEMMs of the vendor's library take; scales that the
	// library lacks are computed as backend.MatMul says. Recipes are resolved for them.
	GEMMs [][2]fp8.Encoding
	// Library are the operands with the scales that the vendor's library has.
	Library [][2]fp8.Encoding
	Sum     Sum // of a group of products in the matrix unit
	// Promote is the number of products after which backend.Promoted adds the partial
	// sum to an FP32 total, rounded to nearest; 0: never.
	Promote int
	// Scaled are the sums of operands in other formats. They need the block scales that are
	// given with the formats. The first entry that has two operands computes them.
	Scaled []ScaledSum
}

// ScaledSum is a sum of operands with block scales, and the operands.
type ScaledSum struct {
	Sum
	Pairs [][2]fp8.Encoding
}

// Sum is a fused sum of products of values of up to eight bits and an addend.
type Sum struct {
	Group int // number of products
	// Exact is the number of products that the unit first adds up exactly. With their two
	// block scales they make one term, which has the exponent of the scales, whatever the
	// sum. 0: each product is a term, which has its own exponent.
	Exact int
	Bits  int // fraction bits kept below the largest exponent; terms are truncated toward zero
	// AddendLast says that the addend is not aligned with the products: it is added to
	// their sum, with one rounding to nearest even, and FP32 subnormals count as zeros.
	AddendLast bool
	Kept       int // fraction bits of a result, toward zero; with AddendLast 23, to nearest even
	// MX says that the unit multiplies the E8M0 scales of blocks of Group codes of both
	// operands into their products, exactly, before it aligns them. Units without MX add
	// up codes; sums are multiplied by their scales and added in FP32, as backend.MatMul
	// specifies. No unit has both MX and AddendLast. With Exact, the scales always multiply
	// the exact sums.
	MX bool
	// MinExpE4M3 and MinExpE5M2 are the minimum exponents with which the unit aligns an
	// operand, subnormal ones included. They affect alignment, never a value.
	MinExpE4M3, MinExpE5M2 int
}

// MinPower returns 2 to the minimum exponent with which operands, or scales, of format d are
// aligned: that of the smallest normal value in formats other than E4M3 and E5M2.
func (s *Sum) MinPower(d fp8.DType) float32 {
	switch d {
	case fp8.E5M2:
		return power(s.MinExpE5M2)
	case fp8.E4M3, fp8.E4M3IEEE:
		return power(s.MinExpE4M3)
	case fp8.E8M0:
		return d.Smallest()
	}
	return power(1 - d.Format().Bias)
}

// SumOf returns the sum of operands that are stored as a and b, or nil if the matrix unit
// does not multiply them.
func (m *Model) SumOf(a, b fp8.Encoding) *Sum {
	if slices.Contains(m.Pairs, [2]fp8.DType{a.DType, b.DType}) {
		return &m.Sum
	}
	for i := range m.Scaled {
		if fp8.Multiplies(m.Scaled[i].Pairs, a, b) {
			return &m.Scaled[i].Sum
		}
	}
	return nil
}

// Tensor cores multiply every pair (PTX ISA: wgmma, mma and tcgen05.mma take e4m3 and
// e5m2 for either operand). cuBLASLt takes every pair but E5M2 by E5M2 (its
// documentation, section cublasLtMatmul).
var (
	nvidiaPairs   = allPairs(fp8.E4M3)
	cublasLtGEMMs = anyScales(cublasLtFP8)
	gaudi2Pairs   = [][2]fp8.DType{{fp8.E4M3IEEE, fp8.E4M3IEEE}, {fp8.E5M2, fp8.E5M2}}
)

// The sums of tcgen05.mma and their operands with block scales (PTX ISA): kind mxf8f6f4, and
// kind mxf4nvf4, which takes E2M1 alone.
var (
	tcgen05  = Sum{Group: 32, Bits: 25, Kept: 23, MX: true, MinExpE4M3: -6, MinExpE5M2: -14}
	mxf4nvf4 = Sum{Group: 64, Exact: 16, Bits: 35, Kept: 23, MX: true, MinExpE4M3: -6, MinExpE5M2: -14}

	mxPairs       = pairsOf(fp8.E8M0, 32, fp8.E4M3, fp8.E5M2, fp8.E2M3, fp8.E3M2, fp8.E2M1)
	mxf4nvf4Pairs = slices.Concat(withOuter(pairsOf(fp8.E4M3, 16, fp8.E2M1)), pairsOf(fp8.E4M3, 16, fp8.E2M1),
		pairsOf(fp8.E8M0, 32, fp8.E2M1), pairsOf(fp8.E8M0, 16, fp8.E2M1))
)

// pairsOf returns all pairs of operands in the formats, with a scale for each block of
// elements along K.
func pairsOf(scale fp8.DType, block int, formats ...fp8.DType) (pairs [][2]fp8.Encoding) {
	for _, a := range formats {
		for _, b := range formats {
			e := fp8.Encoding{DType: a, Across: 1, Along: block, Scale: scale}
			f := e
			f.DType = b
			pairs = append(pairs, [2]fp8.Encoding{e, f})
		}
	}
	return pairs
}

// withOuter returns the pairs with a factor for each tensor, which multiplies the result.
func withOuter(pairs [][2]fp8.Encoding) [][2]fp8.Encoding {
	for i := range pairs {
		pairs[i][0].Outer, pairs[i][1].Outer = true, true
	}
	return pairs
}

var models = []Model{
	{
		Name:    "h100",
		Summary: "Hopper: 32 products and the addend, 13 bits",
		Source: "wgmma: recorded answers of an H100 and an H200 without addend (Khattak and Mikaitis, arXiv 2512.07004); " +
			"the addend's part from MMA-Sim (arXiv 2511.10909); promotion as CUTLASS does, cuBLASLt's interval is not published",
		E4M3: fp8.E4M3, Pairs: nvidiaPairs, GEMMs: cublasLtGEMMs, Library: CublasLt(90, NewestCublasLt), Promote: 128,
		Sum: Sum{Group: 32, Bits: 13, Kept: 13, MinExpE4M3: -6, MinExpE5M2: -14},
	},
	{
		Name:    "ada",
		Summary: "Ada: 16 products and the addend, 13 bits",
		Source:  "mma.sync: recorded answers of an RTX of the Ada generation and of an L40S, addend included (arXiv 2512.07004); promotion as on Hopper, unconfirmed",
		E4M3:    fp8.E4M3, Pairs: nvidiaPairs, GEMMs: cublasLtGEMMs, Library: CublasLt(89, NewestCublasLt), Promote: 128,
		Sum: Sum{Group: 16, Bits: 13, Kept: 13, MinExpE4M3: -6, MinExpE5M2: -14},
	},
	{
		Name:    "b200",
		Summary: "Blackwell: 32 products and the addend, 25 bits, toward zero; MX scales inside",
		Source: "tcgen05, also its kinds mxf8f6f4 and mxf4nvf4: a published model (MMA-Sim, arXiv 2511.10909), no recorded answers (those of a B200 are of mma.sync); " +
			"extrapolated: FP6, and FP4 by a wider format, have FP8's sum; an FP4 by FP4 GEMM of MX runs as mxf4nvf4, whose addend of 0 is aligned as in mxf8f6f4",
		E4M3: fp8.E4M3, Pairs: nvidiaPairs,
		// cuBLASLt has NVFP4, and MX of FP8; CUTLASS has all pairs of MX.
		GEMMs:   slices.Concat(cublasLtGEMMs, mxf4nvf4Pairs, mxPairs),
		Library: CublasLt(100, NewestCublasLt),
		Sum:     tcgen05,
		Scaled:  []ScaledSum{{mxf4nvf4, mxf4nvf4Pairs}, {tcgen05, mxPairs}},
	},
	{
		Name:    "gaudi2",
		Summary: "Gaudi2: 16 products, 24 bits, the addend last, to nearest; E4M3 to 240",
		Source:  "Intel's published reference of its RTL (Intel_Gaudi3_Software, coral-sim)",
		E4M3:    fp8.E4M3IEEE, Pairs: gaudi2Pairs, GEMMs: anyScales(gaudi2Pairs), Library: fp8.PerTensor(gaudi2Pairs...),
		Sum: Sum{Group: 16, Bits: 24, AddendLast: true, Kept: 23, MinExpE4M3: -14, MinExpE5M2: -14},
	},
	{
		Name:    "gaudi3",
		Summary: "Gaudi3: 8 products and the addend, 24 bits, toward zero",
		Source:  "Intel's published reference of its RTL (Intel_Gaudi3_Software, coral-sim); E4M3's maximum is configuration: e4m3=240",
		E4M3:    fp8.E4M3, Pairs: allPairs(fp8.E4M3), GEMMs: anyScales(allPairs(fp8.E4M3)), Library: fp8.PerTensor(allPairs(fp8.E4M3)...),
		Sum: Sum{Group: 8, Bits: 24, Kept: 23, MinExpE4M3: -9, MinExpE5M2: -16},
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

// anyScales returns pairs of formats with any scales.
func anyScales(formats [][2]fp8.DType) (pairs [][2]fp8.Encoding) {
	for _, f := range formats {
		pairs = append(pairs, [2]fp8.Encoding{{DType: f[0]}, {DType: f[1]}})
	}
	return pairs
}

// Models returns all models.
func Models() []Model { return slices.Clone(models) }

// Names returns the names of all models.
func Names() (names []string) {
	for _, m := range models {
		names = append(names, m.Name)
	}
	return names
}

// Lookup returns the model that text names, changed by the options after the name:
// "h100,fast" never promotes, "h100,promote=64" promotes every 64 products, and
// "gaudi3,e4m3=240" has the E4M3 with infinities and a maximum of 240.
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
				return Model{}, fmt.Errorf("device model %s: promote=%s must be a multiple of %d, the products of a fused sum, up to %d", m.Name, value, m.Sum.Group, maxPromote)
			}
			m.Promote = n
		case option == "e4m3=240" && m.Name == "gaudi3":
			m.E4M3, m.Pairs = fp8.E4M3IEEE, allPairs(fp8.E4M3IEEE)
			m.GEMMs, m.Library = anyScales(m.Pairs), fp8.PerTensor(m.Pairs...)
		case option == "e4m3=448" && m.Name == "gaudi3":
		default:
			return Model{}, fmt.Errorf("device model %s has no option %q (%s)", m.Name, option, cmp.Or(models[i].options(), "it has none"))
		}
	}
	return m, nil
}

// maxPromote is far above any useful interval.
const maxPromote = 1024

// options returns a text that lists the options of the model.
func (m *Model) options() string {
	switch {
	case m.Promote > 0:
		return "it has fast, promote=N"
	case m.Name == "gaudi3":
		return "it has e4m3=240, e4m3=448"
	}
	return ""
}
