// Package infer runs trained weights: it generates text and measures loss,
// without gradients or an optimizer.
//
// A Session is a model on one device. It takes a checkpoint of Octet with its
// scale state, or bare weights in Hugging Face's layout. Every activation
// scale is frozen to what the last updates left behind: a maximum over tokens
// of the text at hand would let later tokens change earlier ones, and prefill
// would not agree with decode.
package infer
