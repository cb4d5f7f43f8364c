// Compares the declarations of api.h with Habana's own headers, line by line. It is only
// compiled, not run: a compiler error names the line that differs. See headers_test.go,
// which also writes statuses.inc from the tables of error.go.

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>

#include <synapse_api.h>

#define OCTET_GAUDI_HEADERS
#include "api.h"

#define CONSTANT(name, value) static_assert((long long)name == value, #name);
#define SIZE(type, bytes) static_assert(sizeof(type) == bytes, #type);
#define OFFSET(type, field, at) static_assert(offsetof(type, field) == at, #type "." #field);
#define FUNCTION(result, name, parameters) static_assert(std::is_same<decltype(&name), result(*) parameters>::value, #name);

OCTET_SYNAPSE_CONSTANTS(CONSTANT)
OCTET_SYNAPSE_SIZES(SIZE)
OCTET_SYNAPSE_OFFSETS(OFFSET)
OCTET_SYNAPSE_FUNCTIONS(FUNCTION)

static_assert(TENSOR_INVALID_ID == OCTET_INVALID_ID, "the id of no tensor");
static_assert(sizeof(synStatus) == 4 && sizeof(synDataType) == 4 && sizeof(synTensorType) == 4 && sizeof(synDmaDir) == 4 &&
		      sizeof(synDeviceType) == 4 && sizeof(synDeviceAttribute) == 4 && sizeof(synGeometryType) == 4,
	      "enumerations are as wide as int");

#if __has_include(<hccl.h>)
#include <hccl.h>
// The stream is a synStreamHandle in older headers and a void * in newer ones.
template <typename F> struct last;
template <typename R, typename... A> struct last<R (*)(A...)> {
	using type = typename std::tuple_element<sizeof...(A) - 1, std::tuple<A...>>::type;
};
using octet_syn_stream = last<decltype(&hcclBroadcast)>::type;
static_assert(std::is_pointer<octet_syn_stream>::value, "a stream is a pointer");
OCTET_HCCL_CONSTANTS(CONSTANT)
OCTET_HCCL_SIZES(SIZE)
OCTET_HCCL_OFFSETS(OFFSET)
OCTET_HCCL_FUNCTIONS(FUNCTION)
#else
#warning "no hccl.h: not compared"
#endif

#if __has_include(<hlml.h>)
#include <hlml.h>
OCTET_HLML_CONSTANTS(CONSTANT)
OCTET_HLML_SIZES(SIZE)
OCTET_HLML_OFFSETS(OFFSET)
OCTET_HLML_FUNCTIONS(FUNCTION)
OCTET_HLML_OPTIONAL(FUNCTION)
#else
#warning "no hlml.h: not compared"
#endif

#include "statuses.inc"
