// Package data turns text and token shards into training and validation batches
// with a resumable position.
//
// A [Corpus] has two streams of [Tokens], one for training and one held out for
// validation. [OpenFiles] reads files and folders: text, whose tokens are bytes
// (vocabulary 256), or llm.c's .bin shards of 16-bit ids. [OpenGoSource] reads
// the source of a Go installation, Octet's default corpus. [OpenEmbedded] reads
// the same kind of files from an fs.FS. [Info] describes the files and has their
// SHA-256, so that a resumed run detects a changed corpus.
//
// A [Loader] splits a stream into windows of seq tokens, shuffles them in every
// epoch and returns them as rows. It computes the order as a keyed permutation, so
// a [Position] of two integers is its whole state. The order is global and shared
// by all ranks: two ranks with batch B, one rank with batch 2B, and one rank that
// accumulates two batches of B read the same rows in the same step. A [Sweep]
// reads the validation stream in order, every token once.
//
// Details:
//
//   - One zero byte separates files, so text must not contain any. A window can span
//     files, and attention crosses the boundary.
//   - Text of at most [MaxInMemory] bytes is in memory. Larger text, and shards, are
//     read from their files window by window through the page cache. Unlike a memory
//     map, this needs no address space and works the same on all systems, and a file
//     that shrinks is an error instead of a signal.
//   - Opening a corpus reads every file for its hash and its tokens. Before that, it
//     reads a file found in a folder up to its first zero byte, to tell text from
//     binaries. If another program changes a file later, reading it is an error that
//     names the file.
//   - A corpus keeps few files open at a time, however many it has.
//   - To use another tokenizer, implement Tokens (two methods) or convert bytes with
//     [Text].
package data
