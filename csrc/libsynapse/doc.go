// Package libsynapse talks to Intel Gaudi's SynapseAI through a small C shim,
// behind declarations of its own (api.h); octet/csrc/dynlib loads libSynapse.so. So
// a build needs a C compiler and no SDK, and a missing library is an error message.
//
// # How a Gaudi computes
//
// Nothing is ever called on a Gaudi one operation at a time. What it runs is a
// recipe: a graph of kernels that SynapseAI's compiler has placed on the matrix
// engines, the tensor cores and the DMA engines, with everything that passes
// between them. Inside a recipe, engines overlap, chains of elementwise kernels
// become one, and intermediate results stay in fast memory; between recipes
// nothing of that happens. So a program becomes few, large graphs.
//
// A Graph is plain data: tensors, nodes that name kernels by their GUID with
// the bytes of a parameter structure (params.go), and an order where the
// operands alone don't give it. Everything about it works on every machine.
// Compile makes a Recipe of it, for a DeviceType, without a device. A Recipe
// takes seconds to make, so Save and LoadRecipe keep it; Graph.Key tells which
// graphs share one.
//
// A tensor lies either in the workspace, where the compiler places it, or in a
// persistent section, at an offset. Launch brings an address for each section.
// So one recipe of a layer serves all layers, each with its own addresses, and
// two tensors at the same offset of a section are one piece of memory, written
// in place.
//
// # Devices
//
// Open acquires a Device, which no other process can use meanwhile: a process
// has one, and keeps it for its life. It has memory (Alloc), host memory that it
// can reach (Host) and Streams. Everything happens on a stream, in order, some
// time after the call: copies, fills, launches, the collectives of a Comm (HCCL,
// whose functions are in the same library), and the Events that measure them. A
// Fence tells when copied bytes can be read on the host. Memory on the device is
// a Ptr, a number that Go cannot follow. A Telemetry reads what a device says of
// its health, through HLML, a library apart.
//
// # Rules of use
//
//   - An Error says which call failed, with the vendor's name of the status:
//     SynapseAI says little more, and writes its reasons to files in
//     $HABANA_LOGS. After one that DeviceLost is true of, every further call on
//     the device fails; leave everything open and end the process, because the
//     teardown has been seen to hang.
//   - A graph that doesn't compile mostly says synFail, and mostly because
//     GC_KERNEL_PATH does not lead to the kernels: see Kernels.
//   - Asynchronous means that an error of the device shows up in a later call,
//     at the latest in Synchronize.
//   - Any goroutine may call anything, several at once, except that what is
//     closed must not be in use, and that a Comm wants the same order of calls
//     on every rank. SynapseAI's runtime binds nothing to threads: its state is
//     the process's, behind locks (synapse/src/runtime of its source, which has
//     no thread-local variable). Its graph compiler has some while it works, and
//     HCCL for groups of calls, which this package doesn't use: so a graph is
//     built and compiled within one call of C.
//   - Signals stay the program's, though Habana's logger takes them when it is
//     loaded: see keepSignals.
//   - Close what was made before its device, a Comm first.
//
// # Libraries
//
// libSynapse.so is what the loader finds, then /usr/lib/habanalabs; libhlml.so
// likewise. OCTET_LIBSYNAPSE and OCTET_LIBHLML each name a file to load instead,
// which is also how tests bring stand-ins from csrc/standin to the unmodified
// shim. A library that was loaded stays loaded, and SynapseAI once started stays
// started.
//
// Everything but Graph, its parameters, Error, Kernels and a few types is built
// with -tags gaudi and cgo on Linux only. The further tag gaudi_headers compares
// api.h and params.go with Habana's headers where they are at hand
// (headers_test.go).
package libsynapse
