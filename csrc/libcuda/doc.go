// Package libcuda talks to NVIDIA's libraries through a small C shim that
// loads them with dlopen, behind declarations of its own. So a build needs a C
// compiler and no CUDA header or library, one binary meets CUDA 12 and 13, and
// a missing library is an error message.
//
// Today it asks: ProbeDriver loads the driver (libcuda.so.1) and lists its
// GPUs, ProbeCublasLt and ProbeNVRTC load the newest cuBLASLt and NVRTC that
// the driver can serve and read their versions. No context is created and no
// memory taken. OCTET_LIBCUDA, OCTET_LIBCUBLASLT and OCTET_LIBNVRTC each name
// a file to load instead, which is also how the tests bring stand-ins from
// csrc/standin to the unmodified shim.
//
// Caveats. A library that was loaded stays loaded: the vendor's code may have
// started threads and registered exit handlers. The driver's functions are
// looked up by their versioned names (cuDeviceTotalMem_v2) where NVIDIA's
// header maps the plain name to one: the plain ones are relics with 32-bit
// sizes. And go-nvml, which shares the binary, links with unresolved symbols
// allowed: a symbol that this shim forgot to define would be found out by its
// tests, not by the linker.
//
// Everything but this page is built with -tags cuda and cgo on Linux only.
package libcuda
