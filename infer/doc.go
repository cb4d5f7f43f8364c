// Package infer runs trained weights: it generates text and measures loss,
// without gradients or an optimizer. [NewGenerator] and [NewEvaluator] load a model on
// one device; begin at the example. [Weights] come from an Octet checkpoint with its
// scale state, or from a Hugging Face checkpoint without. NewEvaluator can measure scales
// that a recipe needs and the weights lack.
//
// Per-tensor activation scales are frozen to their values after the last update: a
// maximum over the tokens of a sequence would make earlier tokens depend on later
// ones, and prefill would not agree with decode.
package infer
