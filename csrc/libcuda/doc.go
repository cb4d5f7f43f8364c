// Package libcuda calls NVIDIA's libraries through a small C shim with its own
// declarations (api.h); octet/csrc/dynlib loads the libraries. So a build needs a C
// compiler but no CUDA header or library, one binary works with CUDA 12 and 13, and a
// missing library is an error message.
//
// # Contents
//
// ProbeDriver, ProbeCublasLt, ProbeNVRTC and ProbeNCCL find the libraries without using a
// device. Open opens a Device, Adopt uses an existing context of the process. A Device
// has memory (Alloc), page-locked host memory (Pin) and Streams. All work of a device
// runs on a stream, in order and asynchronously: copies, fills, launches of a Function of
// a Module, GEMMs of an Lt (cuBLASLt), and the Events that time them. Capture records
// work of a stream as a Graph, one launch for a whole training step. A Compiler (NVRTC)
// compiles CUDA C++ to cubins and caches them on disk. Comms (NCCL) run collectives
// between the streams of several devices. A Ptr is a device address, opaque to Go.
//
// The package is thin on purpose: it implements the rules of the libraries (thread,
// alignment, ownership) and nothing about training.
//
// # Rules of use
//
//   - An Error names the failed call and its code. After an error that DeviceLost
//     reports, every further call on the device fails; only a new process can use
//     the GPU again.
//   - Errors of asynchronous work surface in a later call, at the latest in
//     Synchronize.
//   - Any goroutine may use a value, one at a time per device: every entry of the
//     shim sets the context of its thread. A capture locks its goroutine to one
//     thread.
//   - Close everything that was created on a device before the device. Close of a
//     device releases the context and does not wait.
//
// # Libraries
//
// The newest cuBLASLt and NVRTC that the driver supports are loaded: by the loader's
// search path, then from CUDA_HOME, /usr/local/cuda and the packages of the PATH's
// python3, which PyTorch installs. NCCL is loaded likewise, when several ranks need it.
// OCTET_LIBCUDA, OCTET_LIBCUBLASLT, OCTET_LIBNVRTC and OCTET_LIBNCCL each set the file to
// load instead; tests use them to load stand-ins from csrc/standin under the unmodified
// shim.
//
// Caveats. A loaded library stays loaded: NVIDIA's code may have started threads and
// registered exit handlers. And go-nvml, in the same binary, links with unresolved
// symbols allowed: the shim's tests, not the linker, detect a symbol that the shim does
// not define.
//
// Everything but this page, Error and Usage is built with -tags cuda and cgo on Linux
// only. The further tag cuda_headers compares api.h with NVIDIA's headers where they are
// installed (headers.c).
package libcuda
