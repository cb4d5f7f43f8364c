package libsynapse

import (
	"encoding/binary"
	"math"
)

// A kernel takes its parameters as a C structure, whose size tells SynapseAI its version.
// The functions below return the bytes of the structures that Octet uses, little-endian,
// with the layout of synapse_common_types.hpp and perf_lib_layer_params.h; unset fields
// are 0. Dimensions count as in Tensor.Sizes: 0 is the fastest-changing.

// Rounding is a CastF32RoundMode_t.
type Rounding uint32

const (
	Nearest    Rounding = 0 // to nearest even
	Stochastic Rounding = 3 // with the device's own random bits
)

// arrayLength is HABANA_DIM_MAX, the length of arrays with one element per dimension.
const arrayLength = 25

// A structure is a parameter structure under construction.
type structure []byte

func (l structure) u32(at int, v uint32)  { binary.LittleEndian.PutUint32(l[at:], v) }
func (l structure) u64(at int, v uint64)  { binary.LittleEndian.PutUint64(l[at:], v) }
func (l structure) f32(at int, v float32) { l.u32(at, math.Float32bits(v)) }

func (l structure) flag(at int, v bool) {
	if v {
		l[at] = 1
	}
}

// GemmParams returns synGEMMParams, for gemm, batch_gemm and fp8_gemm_*: which operands
// are read transposed.
func GemmParams(transA, transB bool) []byte {
	l := make(structure, 2)
	l.flag(0, transA)
	l.flag(1, transB)
	return l
}

// CastParams returns ns_CastKernel::Params, for cast_* and convert_to_fp8*.
func CastParams(r Rounding) []byte {
	l := make(structure, 4)
	l.u32(0, uint32(r))
	return l
}

// ReductionParams returns ns_Reduction::ParamsV2, for reduce_*_multi_dim_fwd_*. Bit d of
// mask reduces dimension d, mask 0 all dimensions. With keepDim they stay, with size 1.
func ReductionParams(mask uint32, keepDim bool) []byte {
	l := make(structure, 8)
	l.u32(0, mask)
	l.flag(4, keepDim)
	return l
}

// RMSNormParams returns ns_LayerNormKernel::ParamsRmsNorm, for rms_norm_ex_fwd_*. With a
// structure of another size the kernel would not fail, but use eps = 1e-5.
func RMSNormParams(eps float32) []byte {
	l := make(structure, 24)
	l.flag(0, true) // epsValid
	l.f32(4, eps)
	return l
}

// RMSNormGradParams returns ns_RmsNorm::ParamsV3, for rms_norm_ex_bwd_*, with the default
// mode and with stages, as in PyTorch's bridge.
func RMSNormGradParams() []byte {
	l := make(structure, 16)
	l.flag(12, true) // useStages
	return l
}

// SdpaParams returns ns_Sdpa::ParamsV3, for sdpa_*: the scale of the scores, no dropout,
// and the softmax's default mode.
func SdpaParams(scale float32, causal, inference bool) []byte {
	l := make(structure, 32)
	l.f32(0, scale)
	l.flag(4, causal)
	l.flag(20, inference)
	return l
}

// ConstantParams returns ns_ConstantKernel::Params, for constant_f32.
func ConstantParams(v float32) []byte {
	l := make(structure, 4)
	l.f32(0, v)
	return l
}

// GatherParams returns ns_GatherKernel::Params, for gather_fwd_*.
func GatherParams(axis int) []byte {
	l := make(structure, 4)
	l.u32(0, uint32(axis))
	return l
}

// EmbeddingGradParams returns ns_EmbeddingDensePtBwdKernel::Params, for
// embedding_dense_pt_bwd_*: the rows of the table, none of which is padding.
func EmbeddingGradParams(rows int) []byte {
	l := make(structure, 12)
	l.u32(0, uint32(rows))
	l.u32(4, math.MaxUint32) // padding_idx -1: none
	return l
}

// AxisParams returns synAxisParams, for concat.
func AxisParams(axis int) []byte {
	l := make(structure, 4)
	l.u32(0, uint32(axis))
	return l
}

// TransposeParams returns synTransposeParamsNDims, for transpose: dimension d of the
// output is dimension permutation[d] of the input.
func TransposeParams(permutation []int) []byte {
	l := make(structure, 4+4*arrayLength)
	l.u32(0, uint32(len(permutation)))
	for i, d := range permutation {
		l.u32(4+4*i, uint32(d))
	}
	return l
}

// SliceParams returns synSliceParamsV2, for slice: elements [from, to) of one dimension.
// The graph compiler takes the other dimensions whole, because their axis, start and end
// are 0.
func SliceParams(axis int, from, to uint64) []byte {
	const axes, starts, ends, steps = 0, 104, 304, 504
	l := make(structure, 704)
	for i := range arrayLength {
		l.u64(steps+8*i, 1)
	}
	l.u32(axes, uint32(axis))
	l.u64(starts, from)
	l.u64(ends, to)
	return l
}
