// Package libsynapse talks to Intel Gaudi's SynapseAI through a small C shim
// that loads libSynapse.so with dlopen, behind declarations of its own. So a
// build needs a C compiler and no SDK, and a missing library is an error
// message.
//
// Today it asks: Probe starts SynapseAI, reads its version, counts the devices
// and stops it. No device is acquired and no memory taken. OCTET_LIBSYNAPSE
// names a file to load instead of the loader's libSynapse.so and
// /usr/lib/habanalabs, which is also how the tests bring a stand-in from
// csrc/standin to the unmodified shim.
//
// Caveats. The library stays loaded. SynapseAI has one state for the whole
// process, so Probe starts and stops it under a lock, and must not be called
// while something else in the process uses it. synDestroy follows a successful
// synInitialize only: after an error the teardown has been reported to hang.
//
// Everything but this page is built with -tags gaudi and cgo on Linux only.
package libsynapse
