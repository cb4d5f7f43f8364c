// Prints the parameter structures of Habana's headers, filled in by field name, for
// headers_test.go to compare with params.go.

#include <cstdio>
#include <cstring>

#include <synapse_api.h>

#include <perf_lib_layer_params.h>

// print writes the bytes of a zeroed structure after set.
template <typename P, typename Set>
static void print(const char *name, Set set) {
	alignas(P) unsigned char bytes[sizeof(P)] = {};
	set(*reinterpret_cast<P *>(bytes));
	std::printf("%s ", name);
	for (unsigned char b : bytes)
		std::printf("%02x", b);
	std::printf("\n");
}

int main() {
	print<synGEMMParams>("gemm", [](synGEMMParams &p) { p.transpose_b = true; });
	print<ns_CastKernel::Params>("cast", [](ns_CastKernel::Params &p) { p.round_mode = CAST_ROUND_SR; });
	print<ns_Reduction::ParamsV2>("reduction", [](ns_Reduction::ParamsV2 &p) {
		p.reductionDimensionMask = 5;
		p.keepDim = true;
	});
	print<ns_LayerNormKernel::ParamsRmsNorm>("rmsnorm", [](ns_LayerNormKernel::ParamsRmsNorm &p) {
		p.epsValid = true;
		p.eps = 1e-6f;
	});
	print<ns_RmsNorm::ParamsV3>("rmsnorm grad", [](ns_RmsNorm::ParamsV3 &p) {
		p.bwdMode = DEFAULT_RMS_NORM_BWD_MODE;
		p.useStages = true;
	});
	print<ns_Sdpa::ParamsV3>("sdpa", [](ns_Sdpa::ParamsV3 &p) {
		p.scale = 0.125f;
		p.is_causal = true;
		p.is_inference = true;
		p.softmax_mode = SDPA_DEFAULT_SOFTMAX;
	});
	print<ns_ConstantKernel::Params>("constant", [](ns_ConstantKernel::Params &p) { p.constant.f = -2; });
	print<ns_GatherKernel::Params>("gather", [](ns_GatherKernel::Params &p) { p.axis = 1; });
	print<ns_EmbeddingDensePtBwdKernel::Params>("embedding grad", [](ns_EmbeddingDensePtBwdKernel::Params &p) {
		p.num_weights = 50304;
		p.padding_idx = -1;
	});
	print<synAxisParams>("axis", [](synAxisParams &p) { p.axis = 2; });
	print<synTransposeParamsNDims>("transpose", [](synTransposeParamsNDims &p) {
		p.tensorDim = 3;
		p.permutation[0] = 2;
		p.permutation[1] = 0;
		p.permutation[2] = 1;
	});
	print<synSliceParamsV2>("slice", [](synSliceParamsV2 &p) {
		for (auto &step : p.steps)
			step = 1;
		p.axes[0] = 1;
		p.starts[0] = 4;
		p.ends[0] = 1ull << 33;
	});
}
