// Package libcuda talks to NVIDIA's libraries through a small C shim, behind
// declarations of its own (api.h); octet/csrc/dynlib loads them. So a build needs
// a C compiler and no CUDA header or library, one binary meets CUDA 12 and 13, and
// a missing library is an error message.
//
// # What is here
//
// ProbeDriver, ProbeCublasLt, ProbeNVRTC and ProbeNCCL look for the libraries
// and take no device. Open takes one, Adopt shares one with another part of the
// process: a Device, which has memory (Alloc), page-locked host memory (Pin) and
// Streams. Everything that a device does happens on a stream, in order, some
// time after the call: copies, fills, launches of a Function of a Module,
// products of an Lt (cuBLASLt), and the Events that measure them. Capture
// records what a stream is given and makes a Graph of it, one launch for a whole
// training step. A Compiler (NVRTC) turns CUDA C++ into cubins and keeps them on
// disk. Comms (NCCL) let the streams of several devices meet. Memory on the
// device is a Ptr, a number that Go cannot follow.
//
// The package is thin on purpose: it knows the rules of the libraries (which
// thread, which alignment, who frees) and nothing of training.
//
// # Rules of use
//
//   - An Error says which call failed, with its code. After one that DeviceLost
//     is true of, every further call on the device fails; only a new process
//     gets the GPU back.
//   - Asynchronous means that an error of the device shows up in a later call,
//     at the latest in Synchronize.
//   - Values may be used from any goroutine, one at a time for each device:
//     every entry sets the context of its thread, so nothing depends on which
//     one it is. A capture keeps its goroutine on one thread.
//   - What was made has to be closed before its device; Close of a device tells
//     the driver that this process is done, and does not wait.
//
// # Libraries
//
// The newest cuBLASLt and NVRTC that the driver can serve are loaded, by the
// loader's rules, then from CUDA_HOME, /usr/local/cuda and the packages of the
// PATH's python3, where PyTorch brings them; NCCL likewise, when ranks ask for it.
// OCTET_LIBCUDA, OCTET_LIBCUBLASLT, OCTET_LIBNVRTC and OCTET_LIBNCCL each name a file
// to load instead, which is also how tests bring stand-ins from csrc/standin to the
// unmodified shim.
//
// Caveats. A library that was loaded stays loaded: the vendor's code may have
// started threads and registered exit handlers. And go-nvml, which shares the
// binary, links with unresolved symbols allowed: a symbol that this shim forgot
// to define would be found out by its tests, not by the linker.
//
// Everything but this page and Error is built with -tags cuda and cgo on Linux
// only. The further tag cuda_headers compares api.h with NVIDIA's headers where
// they are at hand (headers.c).
package libcuda
