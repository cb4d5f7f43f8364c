// Package libsynapse binds Intel Gaudi's SynapseAI through a small C shim with its own
// declarations (api.h); octet/csrc/dynlib loads libSynapse.so. So a build needs a C
// compiler but no SDK, and a missing library is an error at run time.
//
// # How a Gaudi computes
//
// A Gaudi never runs single operations. It runs a recipe: a graph of kernels that
// SynapseAI's compiler has placed on the matrix engines, the tensor processor cores (TPC)
// and the DMA engines, with the data flow between them. Inside a recipe, engines overlap,
// chains of elementwise kernels are fused, and intermediate results stay in fast memory.
// None of that happens between recipes, so a program becomes a few large graphs.
//
// A Graph is plain data: tensors, nodes that name kernels by their GUID with the bytes of
// a parameter structure (params.go), and control edges where the operands do not imply
// the order. Graphs work on every machine. Compile turns one into a Recipe for a
// DeviceType, without a device. A compilation takes seconds, so Save and LoadRecipe store
// recipes; graphs with equal Graph.Key share one.
//
// A tensor is either in the workspace, where the compiler places it, or in a persistent
// section, at an offset. Launch passes an address for each section. So one recipe serves
// all layers, each with its own addresses, and two tensors at the same offset of a
// section are the same memory, written in place.
//
// # Devices
//
// Open acquires a Device exclusively. A process has one and keeps it until it ends. A
// device has memory (Alloc), mapped host memory (Host) and Streams. Work on a stream runs
// in order and asynchronously: copies, fills, launches, the collectives of a Comm (HCCL,
// whose functions are in the same library), and the Events that time them. A Fence waits
// until copied bytes can be read on the host. Device memory is a Ptr, an address that Go
// cannot dereference. A Telemetry reads a device's sensors through HLML, a separate
// library.
//
// # Rules of use
//
//   - An Error names the failed call and the vendor's status: SynapseAI says little
//     more, and writes its reasons to files in $HABANA_LOGS. After an error for which
//     DeviceLost is true, every further call on the device fails; leave everything open
//     and end the process, because the teardown has been seen to hang.
//   - A graph that does not compile usually fails with synFail, and usually because
//     GC_KERNEL_PATH does not lead to the kernels: see Kernels.
//   - A later call reports an asynchronous error of the device, Synchronize at the
//     latest.
//   - All calls are safe for concurrent use, except that a closed object must not be
//     in use, and that every rank must make the calls of a Comm in the same order.
//     SynapseAI's runtime binds nothing to threads: its state belongs to the process,
//     behind locks (synapse/src/runtime of its source, which has no thread-local
//     variable). Its graph compiler has thread-local state while it works, and HCCL for
//     group calls, which this package does not use; so one C call builds and compiles
//     a graph.
//   - The program keeps its signal handlers, although Habana's logger replaces them
//     when it is loaded: see keepSignals.
//   - Close everything made on a device before the device, a Comm first.
//
// # Libraries
//
// The loader looks for libSynapse.so by name, then in /usr/lib/habanalabs, and likewise
// for libhlml.so. OCTET_LIBSYNAPSE and OCTET_LIBHLML name other files, which is also how
// tests load stand-ins from csrc/standin into the unmodified shim. A loaded library stays
// loaded, and SynapseAI stays initialized.
//
// Everything but Graph, its parameters, Error, Kernels and a few types needs -tags gaudi
// and cgo on Linux. The tag gaudi_headers adds tests that compare api.h and params.go
// with Habana's headers (headers_test.go).
package libsynapse
