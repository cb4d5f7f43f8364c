// Package nn is the Llama-style decoder, written down as ops: every layer's
// forward and, beside it, its backward.
//
//	x ── embed ─┬─ RMSNorm ─ attention ─(+)─┬─ RMSNorm ─ MLP ─(+)─ … ─ RMSNorm ─ head ─ loss
//	            └────────────────────────┘  └────────────────┘
//
// A Model declares its tensors in a backend.Vars and holds no numbers. A Pass
// is one pass over the model while it is recorded: LossAndGrads for training,
// Loss for evaluation, Prefill and Logits for generation. Layers keep no state
// of a pass; Forward returns what Backward needs.
//
// # Where the formats come from
//
// The recipe decides the format of every operand of every matrix product, and
// a layer asks it by path. What is cast once and read by several products is a
// slot: the norm before attention stores its result in the formats that q, k
// and v want in fprop and in wgrad, each once. Scales live in records, one for
// each tensor and format, named after what the tensor is
// ("layers.3.mlp.input"), and packed so that one op updates all of them.
//
//   - unit: scale 1.
//   - delayed: the scale is known beforehand, so the cast is the epilogue of
//     the op that makes the tensor; the amax is recorded on the way and counts
//     from the next update on.
//   - current: the tensor is stored in the compute format, its amax taken, its
//     scale chosen, then it is cast.
//   - by row or block: the same, but each block's scale comes from its own
//     elements, in the op that casts. Nothing is recorded.
//
// Blocks lie along the dimension that a product sums over, so that a tensor is
// cast once for each: x in rows of blocks for fprop, in columns for wgrad.
//
// In evaluation and generation all scales are frozen: a maximum over tokens
// would let the past see the future. Scales that belong to one token stay its
// own.
//
// # What is where
//
//	model.go      the decoder, top to bottom: read this first
//	linear.go     the three products of a linear layer
//	attention.go  mlp.go  norm.go  head.go   one module each
//	smooth.go     Smooth-SwiGLU, of the MLP
//	pass.go       a pass over the model while it is recorded
//	slot.go       slots and casts: how a tensor gets its copies
//	scale.go      records, histories, their update; pack.go their names on disk
//	param.go      parameters and their initial values
//	config.go     the shape of a model
//	health.go     what a pass measures besides training
package nn
