package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"octet/data"
	"octet/data/prepare"
	"octet/internal/writers"
)

type dataInspectCmd struct {
	Path      string `arg:"" name:"DIR" help:"A folder of tokens, or a file or a folder of shards of llm.c."`
	Verify    bool   `help:"Read all ids, masks and ends of documents, and compare the SHA-256 of each shard."`
	Documents int64  `placeholder:"N" help:"Print the first N documents, decoded."`
	JSON      bool   `help:"Print one JSON object, and one for each document."`
}

// Help returns the text that data inspect --help adds.
func (dataInspectCmd) Help() string {
	return `Examples:
  octet data inspect tokens --verify
  octet data inspect tokens --documents 3
  octet data inspect fineweb_train_000001.bin`
}

// inspectedData is the object of data inspect --json.
type inspectedData struct {
	Path      string           `json:"path"`
	Kind      string           `json:"kind,omitempty"`
	Tokenizer *tokenizerOfData `json:"tokenizer,omitempty"`
	Train     *partOfData      `json:"train,omitempty"`
	Val       *partOfData      `json:"val,omitempty"`
	Longest   int64            `json:"longest_document,omitempty"` // tokens
	Median    int64            `json:"median_document,omitempty"`
	Verified  bool             `json:"verified"`
	Shards    []shardOfData    `json:"shards"`
}

type tokenizerOfData struct {
	SHA256    string `json:"sha256"`
	Vocab     int    `json:"vocab"`
	EndOfText int32  `json:"end_of_text"`
	EndToken  string `json:"end_of_text_token"`
	EndInside bool   `json:"end_inside,omitempty"`
}

type partOfData struct {
	Shards        int           `json:"shards"`
	Tokens        int64         `json:"tokens"`
	Documents     int64         `json:"documents"`
	Bytes         int64         `json:"bytes"`
	BytesPerToken writers.Float `json:"bytes_per_token"`
}

type shardOfData struct {
	Path      string `json:"path"`
	Bits      int    `json:"bits"` // of an id
	Tokens    int64  `json:"tokens"`
	Documents int64  `json:"documents,omitempty"`
	Largest   *int32 `json:"largest_id,omitempty"`
}

func (c dataInspectCmd) Run(t *terminal) error {
	if c.Documents < 0 {
		return badInput(fmt.Errorf("--documents %d: expected how many to print", c.Documents))
	}
	p := t.startProgress(0, "tokens")
	in, err := prepare.Inspect(c.Path, prepare.InspectOptions{Verify: c.Verify, Progress: p.setOf})
	p.close()
	if err != nil {
		return dataError(err)
	}
	if in.Prepared == nil && (c.Verify || c.Documents > 0) {
		return badInput(fmt.Errorf("%s has no %s: --verify and --documents need a folder that octet data prepare wrote", c.Path, data.PreparedFile))
	}
	d := newInspectedData(c.Path, in, c.Verify)
	if c.JSON {
		err = json.NewEncoder(t.out).Encode(d)
	} else {
		err = d.print(prose(&printable{to: t.out}))
	}
	if err != nil || c.Documents == 0 {
		return err
	}
	return dataError(prepare.Documents(c.Path, c.Documents, func(d *prepare.Document) error {
		if c.JSON {
			return json.NewEncoder(t.out).Encode(d)
		}
		return printDocument(&printable{to: t.out}, d, in.Prepared.Kind)
	}))
}

func dataError(err error) error {
	if bad, ok := errors.AsType[*prepare.InputError](err); ok {
		return badInput(bad)
	}
	return err
}

func newInspectedData(path string, in *prepare.Inspection, verified bool) inspectedData {
	d := inspectedData{Path: path, Longest: in.Longest, Median: in.Median, Verified: verified}
	for _, s := range in.Shards {
		shard := shardOfData{Path: s.Path, Bits: 8 * s.Width, Tokens: s.Tokens, Documents: s.Documents}
		if s.Largest >= 0 {
			shard.Largest = &s.Largest
		}
		d.Shards = append(d.Shards, shard)
	}
	if in.Prepared == nil {
		return d
	}
	p := in.Prepared
	d.Kind = p.Kind
	d.Tokenizer = &tokenizerOfData{p.Tokenizer.SHA256, p.Tokenizer.Vocab, p.Tokenizer.EndOfText, in.EndToken, p.Tokenizer.EndInside}
	part := func(name string) *partOfData {
		r := prepare.Result{Prepared: *p}
		sum := r.Total(name)
		if sum.Tokens == 0 {
			return nil
		}
		of := partOfData{Tokens: sum.Tokens, Documents: sum.Documents, Bytes: sum.Bytes, BytesPerToken: writers.Float(float64(sum.Bytes) / float64(sum.Tokens))}
		for _, s := range p.Shards {
			if s.Part() == name {
				of.Shards++
			}
		}
		return &of
	}
	d.Train, d.Val = part(data.TrainPart), part(data.ValPart)
	return d
}

func (d *inspectedData) print(w io.Writer) error {
	if d.Tokenizer == nil {
		fmt.Fprintf(w, "%s without %s: shards whose documents and tokenizer are not known\n", d.Path, data.PreparedFile)
		for _, s := range d.Shards {
			fmt.Fprintf(w, "%s\n  %s tokens of %d bits, largest id %d\n", s.Path, writers.Count(s.Tokens), s.Bits, *s.Largest)
		}
		return nil
	}
	fmt.Fprintf(w, "folder      %s, kind %s\n", d.Path, d.Kind)
	fmt.Fprintf(w, "tokenizer   vocabulary %d, SHA-256 %.12s\n", d.Tokenizer.Vocab, d.Tokenizer.SHA256)
	inside := ""
	if d.Tokenizer.EndInside {
		inside = ", also inside documents"
	}
	fmt.Fprintf(w, "end of text %q, id %d%s\n", d.Tokenizer.EndToken, d.Tokenizer.EndOfText, inside)
	for _, p := range []struct {
		name string
		*partOfData
	}{{"training", d.Train}, {"validation", d.Val}} {
		if p.partOfData == nil {
			fmt.Fprintf(w, "%-11s none\n", p.name)
			continue
		}
		fmt.Fprintf(w, "%-11s %s tokens, %s in %s, %.2f bytes per token\n", p.name, writers.Count(p.Tokens),
			plural(p.Documents, "document"), plural(int64(p.Shards), "shard"), float64(p.BytesPerToken))
	}
	_, err := fmt.Fprintf(w, "documents   median %s tokens, longest %s\n", writers.Count(d.Median), writers.Count(d.Longest))
	if d.Verified && err == nil {
		_, err = fmt.Fprintln(w, "verified    hashes, ids, masks and ends of documents")
	}
	return err
}

// printDocument prints a document. Of kinds with prompts, a line says what counts in the loss.
func printDocument(w *printable, d *prepare.Document, kind string) error {
	fmt.Fprintf(w, "\n--- %s, document %d: %s tokens\n", d.Shard, d.Index, writers.Count(d.Tokens))
	for _, s := range d.Spans {
		if kind != data.KindDocuments {
			what := "prompt"
			if s.Counts {
				what = "counts in the loss"
			}
			fmt.Fprintf(w, "[%s: %s]\n", what, plural(s.Tokens, "token"))
		}
		fmt.Fprintln(w, s.Text)
	}
	return w.flush()
}
