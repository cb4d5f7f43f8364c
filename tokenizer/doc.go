// Package tokenizer encodes text to token ids and decodes ids to text, as Hugging Face's tokenizers
// does for byte pair encodings (BPE).
//
// Encoding has five stages; the file gives each of them:
//
//	added tokens     special tokens in the text become ids, where the caller asks for it
//	normalizer       NFC, a prefix, replaced strings
//	pre-tokenizer    a pattern or spaces split the text into pieces (pattern.go)
//	BPE              merges join the symbols of a piece, the merge with the lowest rank first (merge.go)
//	post-processor   adds ids such as BOS, where the caller asks for it
//
// Two families differ in their symbols. In byte-level BPE (GPT-2, Llama 3, Qwen) they are bytes. In
// Metaspace BPE (Llama 2, SentencePiece) they are code points, with ▁ for a space, and bytes where the
// vocabulary lacks a code point. Both are lossless here: invalid UTF-8 is encoded byte by byte, where
// Hugging Face's library takes only valid text.
package tokenizer
