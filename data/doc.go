// Package data turns text and token shards into training and validation
// batches, and remembers where it stands.
//
// A [Corpus] has two streams of [Tokens], one to train on and one held out.
// [OpenFiles] reads the user's files and folders: bytes of text, where a token
// is a byte and the vocabulary is 256, or llm.c's .bin shards of 16-bit ids.
// [OpenGoSource] reads the source of a Go installation, which is what octet
// trains on when nobody named anything else, and [OpenEmbedded] reads the same
// kind of files out of an fs.FS. [Info] says what was read and carries its
// SHA-256, so that a resumed run can tell that the corpus is another one.
//
// A [Loader] cuts a stream into windows of seq tokens, shuffles them anew every
// epoch and hands them out as rows. The order is a keyed permutation computed
// on the fly, so that a [Position], two integers, is all there is to save. It
// is one global order, dealt to the ranks in turn: two ranks with batch B, one
// rank with batch 2B, and one rank that accumulates two batches of B see the
// same rows in the same step. A [Sweep] walks the validation stream in order,
// every token once.
//
// What to know:
//
//   - Files are joined by one zero byte, so text must not hold any. A window may
//     span files, and attention does not stop at the boundary.
//   - Text of at most [MaxInMemory] bytes is in memory. Larger text, and shards, are read
//     from their files window by window, through the page cache: unlike a memory map
//     that needs no address space, works the same everywhere, and a file that shrinks is
//     an error instead of a signal. Opening reads every file for its hash and its tokens;
//     before that it reads a file found in a folder up to its first zero byte, to tell
//     text from binaries. A file that another program changes afterwards is an error that
//     names it.
//   - Few files are open at a time, however many a corpus has.
//   - A library user with another tokenizer implements Tokens (two methods), or
//     converts bytes with [Text], and needs nothing else here.
package data
