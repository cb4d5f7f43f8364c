// Package prepare turns text into a folder of tokens (data.Prepared), and inspects such folders.
//
// Three stages run at the same time (pipeline.go):
//
//	reader    reads the files in order and cuts them into batches of documents (reader.go, parquet.go)
//	workers   parse documents and encode them (json.go, document.go, encode.go)
//	writer    appends their ids to shards, in the order of the documents (shards.go)
//
// The output is a function of the options and the files: it does not depend on the number of workers,
// nor on interruptions. Whenever a shard of the training part is complete, the writer saves where it
// stands (state.go), and Run continues from there.
//
// Memory is bounded: the bytes of documents on their way are limited, and a long document is encoded
// in parts, at places where that changes no id (tokenizer.Cut).
package prepare
