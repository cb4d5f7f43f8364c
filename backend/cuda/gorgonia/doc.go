// Package gorgonia lets a program that works with Gorgonia's CUDA binding,
// gorgonia.org/cu, use Octet's backend in its own context, on its own stream and
// memory: nothing is copied, and nothing waits.
//
//	ctx := cu.NewContext(device, cu.SchedAuto)
//	stream, err := ctx.MakeStream(cu.NonBlocking)
//	x, err := ctx.MemAlloc(bytes)
//	...
//	b, err := gorgonia.Open(ctx, stream, map[string]cu.DevicePtr{"x": x})
//	defer b.Close() // before ctx.Close
//
// b is a backend as every other, for train.NewTrainer or infer; the variable x
// of its programs is the memory that x points to. What the program puts on the
// stream, kernels and copies, takes its turn with Octet's runs. Device and Stream
// give the same context and stream to octet/csrc/libcuda, one floor down.
//
// # Building
//
// The tags cuda and gorgonia together, on Linux with cgo, and NVIDIA's header
// cuda.h of CUDA 11.8 or 12: gorgonia.org/cu v0.9.6 does not compile with that
// of 13. Its directory, and that of a libcuda.so to link with, are looked for in
// /usr/local/cuda, and otherwise named:
//
//	CGO_CFLAGS=-I/opt/cuda-12/include CGO_LDFLAGS=-L/opt/cuda-12/lib64/stubs \
//		go test -tags cuda,gorgonia ./backend/cuda/gorgonia
//
// The tests ask both bindings the same questions and compare the answers: they
// are a check of octet/csrc/libcuda by a binding that others wrote, on machines
// with a GPU.
//
// # Caveats
//
// A program that imports gorgonia.org/cu is linked to libcuda.so.1 and does not
// start without it, and its init ends the process where there is no GPU. That is
// why nothing else of Octet imports this package, and the octet command never
// has it, whatever its tags.
//
// A cu.BatchedContext keeps calls back: its DoWork comes before a Run that
// depends on them. Copies of cu without a stream (MemcpyDtoH) do not wait for a
// stream that is cu.NonBlocking: Octet's Read, or Synchronize of the stream, does.
package gorgonia
