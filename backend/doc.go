// Package backend defines the contract between a model and a device: tensors, ops,
// programs, and the Backend interface that runs them.
//
// A training step has static shapes, so no device is called op by op. Package nn
// records a Program: a flat list of typed ops over named tensors, in a valid serial
// order. A Backend loads programs and runs them. All else is a pass over the list:
// planning memory, recomputing activations, lowering for a device, finding the first
// NaN, comparing two devices.
//
//	vars := backend.NewVars()
//	w := vars.Tensor(backend.Param, "w", fp8.F32, 64, 32)
//	x := vars.Tensor(backend.Input, "x", fp8.F32, 16, 32)
//	y := vars.Tensor(backend.Output, "y", fp8.F32, 16, 64)
//	p := vars.Program("forward")
//	p.Add(&backend.MatMul{A: x, B: w, TransB: true, Out: y})
//	device, err := backend.Open("emu", backend.Options{})
//	run, err := backend.Load(device, p)
//	// device.Write(x, …), run[0].Run, device.Read(y, …)
//
// # Types
//
//   - Tensor describes an array: name, format, shape, class and scale. It holds no
//     data. Vars holds the tensors that outlive a program; a Program owns its temps.
//   - Op is a struct. Its tensor fields are tagged in, out or inout, its other fields
//     are plain values. Its doc comment is its equation, and package ref computes that
//     equation in float64. Other packages add ops that embed Custom.
//   - Node is an op in a program, with its place in the model: module path, phase,
//     block.
//   - Program is a list of nodes. Lower rewrites programs for a device, and a Backend
//     loads them as Executables.
//
// Two fields named Scale are inverse to each other. Cast.Scale multiplies a value
// before the cast. Tensor.Scale is scale_inv: it multiplies a code to give the value.
//
// # Rules
//
//   - A program determines formats, scales, rounding and the order in which an
//     epilogue multiplies by scales, because they change bits of the result.
//     Lowering determines fusion, layouts and algorithms, which do not.
//   - An op computes its result in FP32. Casts store the result in each format that
//     its readers need, rounded once.
//   - One op writes each element of a temp, unless an op accumulates into it.
//   - Nothing inside a program depends on the host. Learning rate, seed, step and
//     position are words of one Input, step.control.
//   - The program of a micro-batch writes no Param and no State, so a failed step can
//     be repeated and fails in the same way.
//   - Random bits depend only on seed, step, tensor name and element.
//
// # Limits
//
// Shapes are static: another batch size needs another program. Program.Add keeps the
// first error, so check Err once, after recording. A Backend's methods may be called
// from any goroutine, one at a time.
package backend
