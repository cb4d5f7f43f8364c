// Package gorgonia lets a program that uses Gorgonia's CUDA binding, gorgonia.org/cu, run
// Octet's backend in its own context, on its own stream and memory, without copies and
// synchronization.
//
//	ctx := cu.NewContext(device, cu.SchedAuto)
//	stream, err := ctx.MakeStream(cu.NonBlocking)
//	x, err := ctx.MemAlloc(bytes)
//	...
//	b, err := gorgonia.Open(ctx, stream, map[string]cu.DevicePtr{"x": x})
//	defer b.Close() // before ctx.Close
//
// b is a backend like any other, for train.NewTrainer or infer; the variable x of its
// programs is the memory at x. The stream orders the program's kernels and copies with
// Octet's runs. Device and Stream pass the same context and stream to octet/csrc/libcuda.
//
// # Building
//
// Building needs the tags cuda and gorgonia, Linux with cgo, and NVIDIA's header cuda.h
// of CUDA 11.8 or 12: gorgonia.org/cu v0.9.6 does not compile with that of 13. The header
// and a libcuda.so to link with are searched in /usr/local/cuda, or set by:
//
//	CGO_CFLAGS=-I/opt/cuda-12/include CGO_LDFLAGS=-L/opt/cuda-12/lib64/stubs \
//		go test -tags cuda,gorgonia ./backend/cuda/gorgonia
//
// The tests compare the answers of both bindings: on machines with a GPU they check
// octet/csrc/libcuda against an independent binding.
//
// # Caveats
//
// A program that imports gorgonia.org/cu is linked to libcuda.so.1: it does not start
// without that library, and its init ends the process if there is no GPU. That is why no
// other package of Octet imports this one, and the octet command never contains it.
//
// A cu.BatchedContext defers calls: call its DoWork before a Run that depends on them.
// Copies of cu without a stream (MemcpyDtoH) do not wait for a stream that is
// cu.NonBlocking; Octet's Read, or Synchronize of the stream, does.
package gorgonia
