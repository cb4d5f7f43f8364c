// Package nn records the layers of a language model as lists of ops: the forward
// pass of every layer and, in the same file, its backward pass. [New] declares a
// Llama-style decoder. A model of other layers declares them on a [Base], as
// example/classifier does: begin there, and with the comment of [Linear].
//
//	x ── embed ─┬─ RMSNorm ─ attention ─(+)─┬─ RMSNorm ─ MLP ─(+)─ … ─ RMSNorm ─ head ─ loss
//	            └────────────────────────┘  └────────────────┘
//
// A Model declares its tensors in a backend.Vars and stores no values. A Pass
// records one pass over the model into a program: LossAndGrads for training,
// Loss for evaluation, Prefill and Logits for generation. Layers keep no state
// of a pass; Forward returns what Backward needs.
//
// # Formats and scales
//
// The recipe decides the format of every GEMM operand; a layer looks it up by
// its path. A slot is a tensor that several GEMMs read, cast once per distinct
// format: the norm before attention stores its output once in each format that
// q, k and v need for fprop and wgrad. Per-tensor scales live in records, one
// for each tensor and format, named after the tensor
// ("layers.3.mlp.input.e4m3") and packed so that one op updates all of them.
// How a cast gets its scale:
//
//   - unit: the scale is 1.
//   - delayed: the scale is known before the tensor is computed, so the cast is
//     the epilogue of the op that computes it. The op also records the amax,
//     which affects scales from the next update on.
//   - current: the tensor is stored in the compute format, its amax is taken,
//     the scale follows from it, then the tensor is cast.
//   - per-row or block: as current, but the op that casts computes each scale
//     from its own block. There is no record.
//
// Blocks extend along K, the dimension that a GEMM sums over. Unless they are
// square, a tensor needs one copy per GEMM: x with blocks along its rows for
// fprop, along its columns for wgrad.
//
// A recipe may rotate x and dy of wgrad along K by a Hadamard transform before their casts.
// Rotated copies are further copies in their slots, with scales and records of their own.
//
// Evaluation and generation freeze all per-tensor scales: a maximum over tokens
// would leak later tokens into earlier ones. Scales that belong to one token
// are still computed from that token.
//
// # Files
//
//	model.go      the decoder, top to bottom: read this first
//	linear.go     the three GEMMs of a linear layer
//	embed.go  attention.go  mlp.go  norm.go  head.go   one module each
//	activation.go the MLP's activations, and how to register one
//	cache.go      keys and values of generation
//	smooth.go     Smooth-SwiGLU, of the MLP
//	pass.go       the recording of one pass over the model
//	base.go       what models share: parameters, cached copies of weights, scales
//	copy.go       slots: the copies of a tensor that its readers need
//	value.go      a tensor of a pass with its copies, and how casts get scales
//	scale.go      scale records, amax histories and their update
//	pack.go       names of scale records in checkpoints
//	param.go      parameters and their initial values
//	tensor_parallel.go  layers that ranks share
//	config.go     the shape of a model
//	roles.go      what a model's layers are for: linear layers, parts, paths
//	health.go     telemetry: measurements of casts and channels
package nn
