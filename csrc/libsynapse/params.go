package libsynapse

import (
	"encoding/binary"
	"math"
)

// A kernel takes its parameters as a C structure, whose size tells SynapseAI
// which version of it is meant. The functions below make the bytes of those
// that Octet uses, little-endian, as synapse_common_types.hpp and
// perf_lib_layer_params.h lay them out; fields that are not named are 0.
// Dimensions are counted as in Tensor.Sizes: 0 is the fastest-changing.

// Rounding is a CastF32RoundMode_t.
type Rounding uint32

const (
	Nearest    Rounding = 0 // ties to even
	Stochastic Rounding = 3 // with the device's own random bits
)

// arrayLength is HABANA_DIM_MAX, the length of arrays that have an element for
// each dimension.
const arrayLength = 25

// A layout is a structure under construction.
type layout []byte

func (l layout) u32(at int, v uint32)  { binary.LittleEndian.PutUint32(l[at:], v) }
func (l layout) u64(at int, v uint64)  { binary.LittleEndian.PutUint64(l[at:], v) }
func (l layout) f32(at int, v float32) { l.u32(at, math.Float32bits(v)) }

func (l layout) flag(at int, v bool) {
	if v {
		l[at] = 1
	}
}

// GemmParams is synGEMMParams, of gemm, batch_gemm and fp8_gemm_*: which
// operands are read transposed.
func GemmParams(transA, transB bool) []byte {
	l := make(layout, 2)
	l.flag(0, transA)
	l.flag(1, transB)
	return l
}

// CastParams is ns_CastKernel::Params, of cast_* and convert_to_fp8*.
func CastParams(r Rounding) []byte {
	l := make(layout, 4)
	l.u32(0, uint32(r))
	return l
}

// ReductionParams is ns_Reduction::ParamsV2, of reduce_*_multi_dim_fwd_*: bit d
// of mask says that dimension d is reduced, mask 0 that all are. With keepDim
// they stay, with size 1.
func ReductionParams(mask uint32, keepDim bool) []byte {
	l := make(layout, 8)
	l.u32(0, mask)
	l.flag(4, keepDim)
	return l
}

// RMSNormParams is ns_LayerNormKernel::ParamsRmsNorm, of rms_norm_ex_fwd_*. A
// structure of another size would not fail: eps would be 1e-5.
func RMSNormParams(eps float32) []byte {
	l := make(layout, 24)
	l.flag(0, true) // epsValid
	l.f32(4, eps)
	return l
}

// RMSNormGradParams is ns_RmsNorm::ParamsV3, of rms_norm_ex_bwd_*, with the
// default mode and with stages, as PyTorch's bridge calls it.
func RMSNormGradParams() []byte {
	l := make(layout, 16)
	l.flag(12, true) // useStages
	return l
}

// SdpaParams is ns_Sdpa::ParamsV3, of sdpa_*: the factor of the scores, without
// dropout, in the default mode of the softmax.
func SdpaParams(scale float32, causal, inference bool) []byte {
	l := make(layout, 32)
	l.f32(0, scale)
	l.flag(4, causal)
	l.flag(20, inference)
	return l
}

// ConstantParams is ns_ConstantKernel::Params, of constant_f32.
func ConstantParams(v float32) []byte {
	l := make(layout, 4)
	l.f32(0, v)
	return l
}

// GatherParams is ns_GatherKernel::Params, of gather_fwd_*.
func GatherParams(axis int) []byte {
	l := make(layout, 4)
	l.u32(0, uint32(axis))
	return l
}

// EmbeddingGradParams is ns_EmbeddingDensePtBwdKernel::Params, of
// embedding_dense_pt_bwd_*: rows of the table, none of which is padding.
func EmbeddingGradParams(rows int) []byte {
	l := make(layout, 12)
	l.u32(0, uint32(rows))
	l.u32(4, math.MaxUint32) // padding_idx -1: none
	return l
}

// AxisParams is synAxisParams, of concat.
func AxisParams(axis int) []byte {
	l := make(layout, 4)
	l.u32(0, uint32(axis))
	return l
}

// TransposeParams is synTransposeParamsNDims, of transpose: dimension d of the
// output is dimension permutation[d] of the input.
func TransposeParams(permutation []int) []byte {
	l := make(layout, 4+4*arrayLength)
	l.u32(0, uint32(len(permutation)))
	for i, d := range permutation {
		l.u32(4+4*i, uint32(d))
	}
	return l
}

// SliceParams is synSliceParamsV2, of slice: elements [from, to) of a dimension.
// Dimensions that are not named are taken whole: the graph compiler reads axis,
// start and end 0 as that.
func SliceParams(axis int, from, to uint64) []byte {
	const axes, starts, ends, steps = 0, 104, 304, 504
	l := make(layout, 704)
	for i := range arrayLength {
		l.u64(steps+8*i, 1)
	}
	l.u32(axes, uint32(axis))
	l.u64(starts, from)
	l.u64(ends, to)
	return l
}
