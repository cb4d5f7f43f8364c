package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"octet/data"
	"octet/data/prepare"
	"octet/internal/writers"
	"octet/tokenizer"
)

type dataCmd struct {
	Prepare dataPrepareCmd `cmd:"" help:"Turn text, JSON lines and Parquet tables into a folder of tokens, on which train trains."`
	Inspect dataInspectCmd `cmd:"" help:"Show what a folder of tokens, or shards of llm.c, hold; --verify reads all of it."`
	Task    dataTaskCmd    `cmd:"" help:"Convert a published data set to a task file, which eval scores."`
}

type dataPrepareCmd struct {
	Sources     []string   `arg:"" name:"SRC" help:"Files, or folders, of which all text files, JSON lines and Parquet tables are read."`
	Tokenizer   string     `placeholder:"PATH" help:"A tokenizer.json, a rank file of tiktoken, a SentencePiece model, or a folder with one; default: bytes."`
	Out         string     `short:"o" required:"" placeholder:"DIR" help:"Folder to write: a new one, or the one of an interrupted call with the same arguments, which continues."`
	Kind        string     `default:"text" placeholder:"NAME" help:"What a document is: text, completion (fields prompt, completion), messages (role, content) or preference (prompt, chosen, rejected); default: ${default}."`
	Field       string     `placeholder:"NAME" help:"Field or column with the text, or with the messages; default: text, messages."`
	Chat        string     `placeholder:"NAME" help:"How a conversation is written: chatml, llama3 or plain; default: chatml."`
	EOS         string     `name:"eos" placeholder:"TOKEN" help:"Token that ends a document; default: that of the tokenizer."`
	Special     bool       `help:"Encode special tokens in the documents, such as <|endoftext|>, as single tokens; otherwise they are plain text."`
	Val         float64    `default:"0.01" placeholder:"SHARE" help:"Share of the documents to hold out for validation, by a hash of their text; default: ${default}."`
	ShardTokens tokenCount `default:"100M" placeholder:"N" help:"A shard is complete with so many tokens; k, M and G stand for thousands, millions and billions; default: ${default}."`
	Threads     int        `placeholder:"N" help:"Threads that encode; default: 0, all processors. The result does not depend on them."`
}

// tokenCount is a number of tokens, such as 100M.
type tokenCount int64

// UnmarshalText implements encoding.TextUnmarshaler.
func (n *tokenCount) UnmarshalText(text []byte) error {
	digits, unit := string(text), int64(1)
	for suffix, size := range map[string]int64{"k": 1e3, "M": 1e6, "G": 1e9} {
		if rest, ok := strings.CutSuffix(digits, suffix); ok {
			digits, unit = rest, size
		}
	}
	x, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || x < 1 || x > data.MaxShardTokens/unit {
		return fmt.Errorf("%q: expected 1 to %d, such as 500k or 100M", text, data.MaxShardTokens)
	}
	*n = tokenCount(x * unit)
	return nil
}

// Help returns the text that data prepare --help adds.
func (dataPrepareCmd) Help() string {
	return `A text file, a JSON line and a row of a table are a document each; .gz and .zst are decompressed. The end of text follows each document. In folders, hidden names, binaries, linked folders and run folders are left out.

The tokens of a completion and of the assistant's messages count in the loss, those of prompts do not.

If the command is stopped, the same command line continues after the last complete shard.

Examples:
  octet data prepare src/ docs/ --tokenizer tokenizer.json --out tokens
  octet data prepare wiki.jsonl.gz --field body --val 0 --out wiki
  octet data prepare talk.jsonl --kind messages --tokenizer qwen/ -o talk`
}

// options returns the options of the library.
func (c dataPrepareCmd) options() (o prepare.Options, err error) {
	tok := tokenizer.OfBytes()
	if c.Tokenizer != "" {
		if tok, err = tokenizer.OpenBundle(c.Tokenizer); err != nil {
			return o, fmt.Errorf("--tokenizer: %w", err)
		}
	}
	if c.EOS != "" {
		if err := tok.SetEndOfText(c.EOS); err != nil {
			return o, fmt.Errorf("--eos: %w", err)
		}
	}
	return prepare.Options{
		Sources: c.Sources, Tokenizer: tok, Out: filepath.Clean(c.Out), Kind: c.Kind, Field: c.Field, Chat: c.Chat,
		Special: c.Special, Val: c.Val, ShardTokens: int64(c.ShardTokens), Threads: c.Threads, Version: version(),
	}, nil
}

// trainFlags are what training on a kind of documents usually takes, besides the data.
var trainFlags = map[string]string{
	data.KindCompletion: answerFlags,
	data.KindMessages:   answerFlags,
	data.KindPreference: " train.objective=dpo model.init=MODEL",
}

const answerFlags = " data.loss=answers \\\n  data.packing=documents data.attention=document model.init=MODEL"

func (c dataPrepareCmd) Run(ctx context.Context, t *terminal) error {
	o, err := c.options()
	if err != nil {
		return badInput(err)
	}
	signals := catchSignals(ctx, 0, func(int) {})
	defer signals.stop()
	p := t.startProgress(0, "B")
	o.Progress = func(done, all int64) { p.setOf(done, all) }
	r, err := prepare.Run(signals.ctx, o)
	p.close()
	again := "the same command line continues after the last complete shard"
	if s := signals.received(); s != 0 && err != nil {
		fmt.Fprintf(prose(t.err), "octet: stopped; %s\n", again)
		return stopped{128 + s}
	}
	if bad, ok := errors.AsType[*prepare.InputError](err); ok {
		return badInput(bad)
	}
	if err != nil {
		return fmt.Errorf("%w; %s", err, again)
	}
	return c.print(t, &r, o.Out)
}

func (c dataPrepareCmd) print(t *terminal, r *prepare.Result, out string) error {
	train, val := r.Total(data.TrainPart), r.Total(data.ValPart)
	tokens, bytes := train.Tokens+val.Tokens, train.Bytes+val.Bytes
	w := prose(&printable{to: t.out})
	fmt.Fprintf(w, "folder      %s, kind %s\n", out, r.Kind)
	fmt.Fprintf(w, "sources     %s%s\n", plural(int64(len(r.Sources)), "file"), leftOut(r))
	fmt.Fprintf(w, "documents   %s, of which %s held out\n", writers.Count(train.Documents+val.Documents), writers.Count(val.Documents))
	fmt.Fprintf(w, "tokens      %s in %s, %s of them held out\n", writers.Count(tokens), plural(int64(len(r.Shards)), "shard"), writers.Count(val.Tokens))
	fmt.Fprintf(w, "text        %s, %.2f bytes per token\n", writers.Bytes(bytes), float64(bytes)/float64(tokens))
	resumed := ""
	if r.Resumed {
		resumed = ", since the interruption"
	}
	fmt.Fprintf(w, "time        %.1f s, %s%s\n", r.Elapsed.Seconds(), writers.Quantity(float64(r.Written)/max(r.Elapsed.Seconds(), 1e-9), "B/s"), resumed)
	_, err := fmt.Fprintf(w, "\noctet train --data %s%s\n", shellQuote(out), trainFlags[r.Kind])
	return err
}

// leftOut returns what was left out, as the rest of a line.
func leftOut(r *prepare.Result) string {
	var list []string
	if r.LeftOut > 0 {
		list = append(list, plural(r.LeftOut, "file")+" of another kind")
	}
	if r.Empty > 0 {
		list = append(list, plural(r.Empty, "document")+" without text")
	}
	if len(list) == 0 {
		return ""
	}
	return "; left out: " + strings.Join(list, ", ")
}

func plural(n int64, what string) string {
	if n != 1 {
		what += "s"
	}
	return writers.Count(n) + " " + what
}
