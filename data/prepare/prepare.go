package prepare

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"octet/data"
	"octet/tokenizer"
)

// Options say what Run reads and writes.
type Options struct {
	Sources   []string // files and folders
	Tokenizer *tokenizer.Bundle
	Out       string // folder to write
	Kind      string // data.KindDocuments and so on
	// Field of JSON lines or a Parquet table with the text or the messages; "": text, messages.
	Field string
	Chat  string // how a conversation is written; "": chatml
	// Special encodes special tokens in the documents as single tokens; otherwise they are plain text.
	Special     bool
	Val         float64 // share of the documents to hold out
	ShardTokens int64   // a shard is complete with so many ids; 0: 100 million
	Threads     int     // workers; 0: one for each processor
	Version     string  // of octet, for prepared.json
	// Progress is called with the bytes of the sources that this call has read, and all that it reads; nil:
	// not called.
	Progress func(done, all int64)

	limits limits // of tests
}

// DefaultShardTokens is the default of Options.ShardTokens.
const DefaultShardTokens = 100_000_000

// Result describes a folder that Run has written.
type Result struct {
	data.Prepared
	LeftOut int64 // files in folders that are not text
	Empty   int64 // documents without text, which are left out
	Resumed bool  // of an earlier call
	Written int64 // bytes of the documents' text that this call has written
	Elapsed time.Duration

	peak int64 // bytes of documents in flight
}

// InputError is an error in the options or in what the files hold; running again gives the same. An error
// of the system, such as a file that cannot be read, is none.
type InputError struct{ Err error }

func (e *InputError) Error() string { return e.Err.Error() }

// Unwrap returns the error itself.
func (e *InputError) Unwrap() error { return e.Err }

func badInput(format string, args ...any) error {
	return &InputError{fmt.Errorf(format, args...)}
}

// kinds are the kinds of documents with the fields that hold them.
var kinds = map[string][]string{
	data.KindDocuments:  {"text"},
	data.KindCompletion: {"prompt", "completion"},
	data.KindMessages:   {"messages"},
	data.KindPreference: {"prompt", "chosen", "rejected"},
}

// Kinds are the names of the kinds of documents.
var Kinds = []string{data.KindDocuments, data.KindCompletion, data.KindMessages, data.KindPreference}

// fields returns the fields that hold a document.
func (o *Options) fields() []string {
	if o.Field != "" {
		return []string{o.Field}
	}
	return kinds[o.Kind]
}

// check checks the options and sets defaults.
func (o *Options) check() error {
	if o.Threads == 0 {
		o.Threads = runtime.GOMAXPROCS(0)
	}
	if o.ShardTokens == 0 {
		o.ShardTokens = DefaultShardTokens
	}
	if o.limits == (limits{}) {
		o.limits = defaultLimits
	}
	switch {
	case !slices.Contains(Kinds, o.Kind):
		return badInput("--kind %q: expected %s", o.Kind, strings.Join(Kinds, ", "))
	case o.Field != "" && len(kinds[o.Kind]) > 1:
		return badInput("--field %q: kind %s reads the fields %s", o.Field, o.Kind, strings.Join(kinds[o.Kind], ", "))
	case !(o.Val >= 0 && o.Val < 1):
		return badInput("--val %v: expected the share of documents to hold out, 0 to below 1", o.Val)
	case o.ShardTokens < 1 || o.ShardTokens > data.MaxShardTokens:
		return badInput("--shard-tokens %d: expected 1 to %d", o.ShardTokens, data.MaxShardTokens)
	case o.Threads < 1 || o.Threads > 1<<16:
		return badInput("--threads %d: expected 1 to %d", o.Threads, 1<<16)
	case o.Chat != "" && o.Kind != data.KindMessages:
		return badInput("--chat %s: kind %s has no conversations", o.Chat, o.Kind)
	case o.Tokenizer.EndOfText < 0:
		return badInput("the token that ends a text is not known for this tokenizer: name it, for example --eos '</s>'")
	}
	if o.Kind == data.KindMessages {
		if o.Chat == "" {
			o.Chat = ChatML
		}
		if err := checkChat(o.Chat, o.Tokenizer.Tokenizer); err != nil {
			return err
		}
	}
	return nil
}

// Run writes the folder of tokens. After an interruption it continues where the last complete shard
// ends, and the result is that of an uninterrupted call. If ctx ends, it returns the cause.
func Run(ctx context.Context, o Options) (r Result, err error) {
	start := time.Now()
	if err := o.check(); err != nil {
		return r, err
	}
	w, err := openWriter(&o)
	if err != nil {
		return r, err
	}
	defer func() {
		err = errors.Join(err, w.close(err))
		r.Elapsed = time.Since(start)
	}()
	r.Resumed = w.resumed
	before := w.bytes()
	if !w.done {
		if err := runPipeline(ctx, &o, w); err != nil {
			return r, err
		}
	}
	r.Prepared, err = w.finish()
	r.Written = w.bytes() - before
	r.peak, r.LeftOut, r.Empty = w.peak, w.state.LeftOut, w.state.Empty
	return r, err
}
