// Package backend is the language between the model and the machine: tensors,
// ops, programs, and what a device must be able to do with them.
//
// A training step has static shapes, so nobody calls a device op by op. Package
// nn writes a Program down: a flat list of typed ops over named tensors, in an
// order that is a valid serial schedule. A Backend loads programs and runs
// them. Everything in between is a pass over the list: planning memory,
// recomputing activations, lowering for a device, finding the first NaN,
// comparing two devices.
//
//	vars := backend.NewVars()
//	w := vars.Tensor(backend.Param, "w", fp8.F32, 64, 32)
//	x := vars.Tensor(backend.Input, "x", fp8.F32, 16, 32)
//	y := vars.Tensor(backend.Output, "y", fp8.F32, 16, 64)
//	p := vars.Program("forward")
//	p.Add(&backend.MatMul{A: x, B: w, TransB: true, Out: y})
//	devices, err := backend.Open("emu", backend.Options{})
//	run, err := backend.Load(devices[0], p)
//	// devices[0].Write(x, …), run[0].Run, devices[0].Read(y, …)
//
// # Four types
//
// A Tensor is a description: name, format, shape, class, and the scale that
// turns its codes into values. Vars holds the tensors that outlive a program,
// a Program owns its temps. An Op is a struct whose tensor fields are tagged
// in, out or inout and whose other fields are plain values; its doc comment is
// its equation, and package ref computes just that in float64. A Node is an op
// with its place: module path, phase, block.
//
// # Rules
//
//   - What changes a bit of the result (formats, scales, rounding, the order
//     of scales in an epilogue) is in the program. What does not (fusion,
//     layouts, algorithms) is lowering.
//   - An op's result is FP32; casts store it, rounded once, in as many formats
//     as its readers want.
//   - A temp is written by one op unless that op accumulates.
//   - Nothing inside a program depends on the host: learning rate, seed, step
//     and position are words of one Input, step.control.
//   - A program that handles a micro-batch writes no Param and no State, so a
//     step that failed can be run again and fails the same way.
//   - Random bits follow seed, step, tensor name and element, nothing else.
//
// # Caveats
//
// Shapes are static: another batch size is another program. Add keeps the
// first error, so check Err once at the end of recording. A Backend's methods
// may be called from any goroutine, but one at a time.
package backend
