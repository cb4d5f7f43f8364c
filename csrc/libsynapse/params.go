package libsynapse

import "encoding/binary"

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

// structure returns the bytes of the fields of a structure, padding included.
func structure(fields ...any) (raw []byte) {
	for _, f := range fields {
		raw, _ = binary.Append(raw, binary.LittleEndian, f) // cannot fail: fields have fixed sizes
	}
	return raw
}

// GemmParams returns synGEMMParams, for gemm, batch_gemm and fp8_gemm_*: which operands
// are read transposed.
func GemmParams(transA, transB bool) []byte { return structure(transA, transB) }

// CastParams returns ns_CastKernel::Params, for cast_* and convert_to_fp8*.
func CastParams(r Rounding) []byte { return structure(r) }

// ReductionParams returns ns_Reduction::ParamsV2, for reduce_*_multi_dim_fwd_*. Bit d of
// mask reduces dimension d, mask 0 all dimensions. With keepDim they stay, with size 1.
func ReductionParams(mask uint32, keepDim bool) []byte {
	return structure(mask, keepDim, [3]byte{})
}

// RMSNormParams returns ns_LayerNormKernel::ParamsRmsNorm, for rms_norm_ex_fwd_*. With a
// structure of another size the kernel would not fail, but use eps = 1e-5.
func RMSNormParams(eps float32) []byte {
	return structure(true, [3]byte{}, eps, [16]byte{}) // epsValid, eps
}

// RMSNormGradParams returns ns_RmsNorm::ParamsV3, for rms_norm_ex_bwd_*, with the default
// mode and with stages, as in PyTorch's bridge.
func RMSNormGradParams() []byte {
	return structure([12]byte{}, true, [3]byte{}) // useStages
}

// SdpaParams returns ns_Sdpa::ParamsV3, for sdpa_*: the scale of the scores, no dropout,
// and the softmax's default mode.
func SdpaParams(scale float32, causal, inference bool) []byte {
	return structure(scale, causal, [15]byte{}, inference, [11]byte{})
}

// ConstantParams returns ns_ConstantKernel::Params, for constant_f32.
func ConstantParams(v float32) []byte { return structure(v) }

// GatherParams returns ns_GatherKernel::Params, for gather_fwd_*.
func GatherParams(axis int) []byte { return structure(uint32(axis)) }

// EmbeddingGradParams returns ns_EmbeddingDensePtBwdKernel::Params, for
// embedding_dense_pt_bwd_*: the rows of the table, none of which is padding.
func EmbeddingGradParams(rows int) []byte {
	return structure(uint32(rows), int32(-1), [4]byte{}) // padding_idx: none
}

// AxisParams returns synAxisParams, for concat.
func AxisParams(axis int) []byte { return structure(uint32(axis)) }

// TransposeParams returns synTransposeParamsNDims, for transpose: dimension d of the
// output is dimension permutation[d] of the input.
func TransposeParams(permutation []int) []byte {
	var dims [arrayLength]uint32
	for i, d := range permutation {
		dims[i] = uint32(d)
	}
	return structure(uint32(len(permutation)), dims)
}

// SliceParams returns synSliceParamsV2, for slice: elements [from, to) of one dimension.
// The graph compiler takes the other dimensions whole, because their axis, start and end
// are 0.
func SliceParams(axis int, from, to uint64) []byte {
	axes := [arrayLength]uint32{uint32(axis)}
	starts, ends := [arrayLength]uint64{from}, [arrayLength]uint64{to}
	var steps [arrayLength]uint64
	for i := range steps {
		steps[i] = 1
	}
	return structure(axes, [4]byte{}, starts, ends, steps)
}
