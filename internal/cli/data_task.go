package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"octet/internal/disk"
	"octet/internal/task"
)

type dataTaskCmd struct {
	Name string `arg:"" name:"NAME" help:"The data set, of those above."`
	File string `arg:"" name:"FILE" help:"Its rows: a .parquet table of the Hugging Face Hub, or JSON lines, as to_json of Hugging Face's datasets writes them."`
	Out  string `short:"o" placeholder:"FILE" help:"The task file to write; it must not exist; default: standard output."`
}

// Help returns the text that data task --help adds.
func (dataTaskCmd) Help() string {
	return "Data sets: " + strings.Join(task.Converters(), ", ") + `.

The texts are those of lm-evaluation-harness 0.4.13, without examples before them. Octet contains no data set; docs/evaluation.md describes task files.

Examples:
  octet data task hellaswag validation.parquet --out hellaswag.jsonl
  octet data task wikitext test.jsonl | head -c 300`
}

func (c dataTaskCmd) Run(t *terminal) (err error) {
	converter, err := task.ConverterOf(c.Name)
	if err != nil {
		return badInput(err)
	}
	if c.Out != "" {
		if _, err := os.Lstat(c.Out); !errors.Is(err, fs.ErrNotExist) {
			return badInput(fmt.Errorf("--out: %s is there: remove it, or choose another name", c.Out))
		}
	}
	f, err := os.Open(c.File)
	if err != nil {
		return badInput(err)
	}
	defer func() { _ = f.Close() }()
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	if err := e.Encode(converter.Header); err != nil {
		return err
	}
	documents := 0
	err = eachRow(f, c.File, func(row task.Row) error {
		d, err := converter.Document(row)
		if err != nil {
			return err
		}
		documents++
		return e.Encode(d)
	})
	if err == nil && documents == 0 {
		err = fmt.Errorf("%s has no rows", c.File)
	}
	if err != nil {
		return badInput(err)
	}
	if c.Out == "" {
		_, err = t.out.Write(text.Bytes())
		return err
	}
	if err := disk.WriteAtomic(c.Out, text.Bytes()); err != nil {
		return err
	}
	_, err = fmt.Fprintf(prose(t.err), "%s: %d documents of kind %s\n", c.Out, documents, converter.Kind)
	return err
}

// eachRow calls do with each row of a Parquet table, by its name, or of JSON lines.
func eachRow(f *os.File, name string, do func(task.Row) error) error {
	if strings.HasSuffix(name, ".parquet") {
		info, err := f.Stat()
		if err == nil {
			err = task.EachParquetRow(f, info.Size(), do)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	}
	return eachLine(f, name, func(line []byte) error {
		row, err := task.ParseRow(line)
		if err == nil {
			err = do(row)
		}
		return err
	})
}
