package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"octet/data/prepare"
	"octet/internal/disk"
	"octet/tokenizer"
)

type tokenizerCmd struct {
	Train  tokenizerTrainCmd  `cmd:"" help:"Learn a byte-level BPE tokenizer from text files."`
	Encode tokenizerEncodeCmd `cmd:"" help:"Encode text to token ids."`
	Decode tokenizerDecodeCmd `cmd:"" help:"Decode token ids to text."`
}

type tokenizerTrainCmd struct {
	Files   []string `arg:"" name:"FILES" help:"Text files, JSON lines (plain, .gz or .zst) and Parquet tables, or folders of these, as octet data prepare reads them."`
	Field   string   `placeholder:"NAME" help:"Field of JSON lines and column of tables; default: text."`
	Vocab   int      `required:"" placeholder:"N" help:"Tokens of the vocabulary, the 256 bytes and special tokens included."`
	Out     string   `short:"o" required:"" placeholder:"FILE" help:"The tokenizer.json to write; it must not exist."`
	Special []string `default:"<|endoftext|>" placeholder:"TOKEN" help:"Special tokens, which have the first ids; repeat the flag for several; default: ${default}."`
	Min     int64    `default:"1" placeholder:"N" help:"Do not merge pairs that occur less often; default: ${default}."`
}

// Help returns the text that tokenizer train --help adds.
func (tokenizerTrainCmd) Help() string {
	return `The text is split with the pattern of Llama 3. The merges are those of Hugging Face's BpeTrainer with the same text, pattern and alphabet.

Examples:
  octet tokenizer train corpus.txt --vocab 8192 --out tokenizer.json
  octet tokenizer train src/ docs.jsonl.gz --vocab 32000 --out tokenizer.json`
}

func (c tokenizerTrainCmd) Run(ctx context.Context, t *terminal) error {
	if _, err := os.Lstat(c.Out); !errors.Is(err, fs.ErrNotExist) {
		return badInput(fmt.Errorf("--out: %s is there: remove it, or choose another name", c.Out))
	}
	train := tokenizer.Trainer{Vocab: c.Vocab, Special: c.Special, MinCount: c.Min}
	if err := train.Check(); err != nil {
		return badInput(fmt.Errorf("--vocab, --special: %w", err))
	}
	start, read := time.Now(), int64(0)
	if _, err := prepare.Texts(ctx, c.Files, c.Field, func(text []byte, last bool) {
		read += int64(len(text))
		train.AddPart(text, last)
	}); err != nil {
		return badInput(err)
	}
	raw, err := train.Train()
	if err != nil {
		return badInput(err)
	}
	tok, err := tokenizer.ParseJSON(raw)
	if err != nil {
		return err
	}
	if err := disk.WriteAtomic(c.Out, raw); err != nil {
		return err
	}
	fmt.Fprintf(prose(t.err), "%s: %d tokens from %.1f MB of text in %.1f s\n", c.Out, tok.Vocab(), float64(read)/1e6, time.Since(start).Seconds())
	if tok.Vocab() < c.Vocab {
		fmt.Fprintf(prose(t.err), "The text has too few pairs for %d tokens.\n", c.Vocab)
	}
	return nil
}

type tokenizerEncodeCmd struct {
	Tokenizer string `arg:"" name:"TOKENIZER" help:"A tokenizer.json, a rank file of tiktoken, a SentencePiece model, or a folder with one."`
	File      string `arg:"" optional:"" name:"FILE" help:"File to encode; default: standard input."`
	JSONLines bool   `name:"json-lines" help:"Read a JSON string from each line and print an array of ids for it; otherwise the file is one text."`
	Special   bool   `help:"Encode special tokens in the text, such as <|endoftext|>, as single tokens; otherwise they are plain text."`
	Template  bool   `help:"Add the tokens that the tokenizer puts around a text, such as BOS."`
}

// Help returns the text that tokenizer encode --help adds.
func (tokenizerEncodeCmd) Help() string {
	return `Examples:
  octet tokenizer encode tokenizer.json text.txt
  echo '"two texts,"
  "a line each"' | octet tokenizer encode tokenizer.json --json-lines`
}

func (c tokenizerEncodeCmd) Run(t *terminal) error {
	return mapText(t, c.Tokenizer, c.File, c.JSONLines, func(tok *tokenizer.Tokenizer, in []byte) ([]byte, error) {
		if c.JSONLines {
			var text string
			if err := json.Unmarshal(in, &text); err != nil {
				return nil, errors.New("expected a JSON string")
			}
			in = []byte(text)
		}
		ids := tok.Encode([]int32{}, in, tokenizer.Options{Special: c.Special, Template: c.Template})
		out, err := json.Marshal(ids)
		return append(out, '\n'), err
	})
}

type tokenizerDecodeCmd struct {
	Tokenizer   string `arg:"" name:"TOKENIZER" help:"A tokenizer.json, a rank file of tiktoken, a SentencePiece model, or a folder with one."`
	File        string `arg:"" optional:"" name:"FILE" help:"File with an array of ids; default: standard input."`
	JSONLines   bool   `name:"json-lines" help:"Read an array of ids from each line and print a JSON string for it, in which invalid UTF-8 becomes U+FFFD; otherwise the file has one array, and the bytes of its text are printed."`
	SkipSpecial bool   `help:"Leave out special tokens."`
}

// Help returns the text that tokenizer decode --help adds.
func (tokenizerDecodeCmd) Help() string {
	return `Examples:
  echo '[72, 105]' | octet tokenizer decode tokenizer.json
  octet tokenizer encode t.json a.txt | octet tokenizer decode t.json`
}

func (c tokenizerDecodeCmd) Run(t *terminal) error {
	return mapText(t, c.Tokenizer, c.File, c.JSONLines, func(tok *tokenizer.Tokenizer, in []byte) ([]byte, error) {
		var ids []int32
		if err := json.Unmarshal(in, &ids); err != nil {
			return nil, errors.New("expected an array of ids, such as [72, 105]")
		}
		text, err := tok.Decode(nil, ids, c.SkipSpecial)
		if err != nil || !c.JSONLines {
			return text, err
		}
		out, err := json.Marshal(string(text))
		return append(out, '\n'), err
	})
}

// mapText prints what convert makes of a file, or of standard input without a name: of the whole, or
// of each line.
func mapText(t *terminal, tokenizerPath, name string, lines bool, convert func(*tokenizer.Tokenizer, []byte) ([]byte, error)) (err error) {
	tok, err := tokenizer.Open(tokenizerPath)
	if err != nil {
		return badInput(err)
	}
	in, label := io.Reader(os.Stdin), "standard input"
	if name != "" {
		f, err := os.Open(name)
		if err != nil {
			return badInput(err)
		}
		defer func() { _ = f.Close() }()
		in, label = f, name
	}
	out := bufio.NewWriter(t.out)
	defer func() { err = errors.Join(err, out.Flush()) }()
	write := func(part []byte) error {
		converted, err := convert(tok, part)
		if err == nil {
			_, err = out.Write(converted)
		}
		return err
	}
	if !lines {
		text, err := io.ReadAll(in)
		if err != nil {
			return badInput(err)
		}
		if err := write(text); err != nil {
			return badInput(fmt.Errorf("%s: %w", label, err))
		}
		return nil
	}
	if err := eachLine(in, label, write); err != nil {
		return badInput(err)
	}
	return nil
}
