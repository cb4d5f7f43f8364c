package tokenizer

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Files of a folder that Open reads, the first that is there.
var fileNames = []string{"tokenizer.json", "tokenizer.model"}

// Open reads the tokenizer of a file or a folder: a tokenizer.json, a rank file of tiktoken or a model
// of SentencePiece, told apart by their first bytes, since both of the latter are named
// tokenizer.model.
func Open(path string) (*Tokenizer, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		for _, name := range fileNames {
			t, err := Open(filepath.Join(path, name))
			if !errors.Is(err, fs.ErrNotExist) {
				return t, err
			}
		}
		return nil, fmt.Errorf("%s has no %s and no %s", path, fileNames[0], fileNames[1])
	}
	raw, err := readFile(path)
	if err != nil {
		return nil, err
	}
	t, _, err := parse(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// kind is the kind of a tokenizer file: the name that transformers gives it, and the class that
// reads it there.
type kind struct{ file, class string }

// classModel reads models of SentencePiece.
const classModel = "LlamaTokenizer"

// parse reads the bytes of a file of any kind.
func parse(raw []byte) (*Tokenizer, kind, error) {
	if text := bytes.TrimLeft(raw, " \t\r\n\ufeff"); len(text) > 0 && text[0] == '{' {
		t, err := ParseJSON(text)
		return t, kind{fileNames[0], "PreTrainedTokenizerFast"}, err
	}
	line, _, _ := bytes.Cut(raw, []byte{'\n'})
	code, _, ok := bytes.Cut(line, []byte{' '})
	if _, err := base64.StdEncoding.AppendDecode(nil, code); ok && err == nil {
		t, err := ParseRanks(raw)
		return t, kind{fileNames[1], ""}, err
	}
	t, err := ParseSentencePiece(raw)
	return t, kind{fileNames[1], classModel}, err
}
