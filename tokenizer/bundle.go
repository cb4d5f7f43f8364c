package tokenizer

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// Bundle is a tokenizer with the files that define it. The files go wherever its ids go: to prepared
// data, runs, checkpoints and exports.
type Bundle struct {
	*Tokenizer
	Files     []File  // a tokenizer file first; names and order as in FileNames
	EndOfText int32   // the id that ends a document; -1: not known
	stops     []int32 // other ids that end a generated text, such as the end of a turn
	guessed   bool    // stops is EndOfText, not from a file
}

// File is a file of a Bundle.
type File struct {
	Name string
	Data []byte
}

const (
	configName     = "tokenizer_config.json"
	generationName = "generation_config.json"
)

// FileNames are the names of a Bundle's files, with which transformers finds them.
var FileNames = append(slices.Clone(fileNames), configName, "special_tokens_map.json", "chat_template.jinja", generationName)

// maxFile bounds the size of a file in bytes. The largest known ones have 35 MB.
const maxFile = 1 << 28

// OpenBundle opens the tokenizer of a file or a folder, as Open does, with its other files. Without a
// tokenizer_config.json it writes one, so that transformers reads the files too.
func OpenBundle(path string) (*Bundle, error) {
	dir, name := path, ""
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if !info.IsDir() {
		dir, name = filepath.Split(path)
		if !slices.Contains(fileNames, name) { // other files of the folder may belong to another tokenizer
			raw, err := readFile(path)
			if err != nil {
				return nil, err
			}
			return newBundle(path, []File{{Data: raw}})
		}
	}
	var files []File
	for _, n := range FileNames {
		if slices.Contains(fileNames, n) && (len(files) > 0 || name != "" && n != name) {
			continue
		}
		raw, err := readFile(filepath.Join(dir, n))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		files = append(files, File{n, raw})
	}
	if len(files) == 0 || !slices.Contains(fileNames, files[0].Name) {
		return nil, fmt.Errorf("%s has no %s and no %s", path, fileNames[0], fileNames[1])
	}
	return newBundle(cmp.Or(dir, "."), files)
}

// In reports whether a folder has a tokenizer.
func In(dir string) bool {
	return slices.ContainsFunc(fileNames, func(name string) bool {
		_, err := os.Stat(filepath.Join(dir, name))
		return err == nil
	})
}

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: not a regular file", path)
	case info.Size() > maxFile:
		return nil, fmt.Errorf("%s: %d bytes are too many for a file of a tokenizer", path, info.Size())
	}
	return os.ReadFile(path)
}

// newBundle reads the files, as readBundle does, and adds a generation_config.json with the end of text
// if there is none, so that other programs end a text there, too.
func newBundle(path string, files []File) (*Bundle, error) {
	b, err := readBundle(path, files)
	if err != nil || b.EndOfText < 0 || b.file(generationName) != nil {
		return b, err
	}
	b.stops, b.guessed = []int32{b.EndOfText}, true
	return b, b.writeStops()
}

// readBundle reads the files; path is for errors. The first is the tokenizer, which gets the name of
// its kind if it has none.
func readBundle(path string, files []File) (*Bundle, error) {
	if files[0].Name != "" {
		path = filepath.Join(path, files[0].Name)
	}
	t, kind, err := parse(files[0].Data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	files[0].Name = kind.file
	b := &Bundle{Tokenizer: t, Files: files, EndOfText: -1}
	if err := b.readStops(); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Dir(path), err)
	}
	config := b.file(configName)
	if config == nil {
		b.guessEndOfText()
		return b, b.writeConfig(kind.class)
	}
	fields, err := config.object()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Dir(path), err)
	}
	eos := fields["eos_token"]
	if len(eos) == 0 || string(eos) == "null" {
		b.guessEndOfText()
		return b, nil
	}
	token, err := tokenText(eos)
	if err == nil {
		err = b.setID(token)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: eos_token: %w", filepath.Join(filepath.Dir(path), configName), err)
	}
	return b, nil
}

// object returns the fields of a JSON file.
func (f *File) object() (fields map[string]json.RawMessage, err error) {
	if err := json.Unmarshal(f.Data, &fields); err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name, err)
	}
	if fields == nil {
		return nil, fmt.Errorf("%s: it is null, not an object", f.Name)
	}
	return fields, nil
}

// tokenText returns the text of a token in tokenizer_config.json: a string, or an object with it.
func tokenText(raw json.RawMessage) (string, error) {
	var object struct{ Content string }
	if len(raw) > 0 && raw[0] == '{' {
		return object.Content, json.Unmarshal(raw, &object)
	}
	return object.Content, json.Unmarshal(raw, &object.Content)
}

// endsOfText are the names of known tokenizers.
var endsOfText = []string{"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"}

// Ends reports whether an id ends a generated text: the end of text, or one that
// generation_config.json names.
func (b *Bundle) Ends(id int32) bool { return id == b.EndOfText || slices.Contains(b.stops, id) }

// readStops reads the ids of generation_config.json: one, or a list.
func (b *Bundle) readStops() error {
	f := b.file(generationName)
	if f == nil {
		return nil
	}
	fields, err := f.object()
	if err != nil {
		return err
	}
	list := fields["eos_token_id"]
	if len(list) == 0 || string(list) == "null" {
		return nil
	}
	if list[0] != '[' {
		list = slices.Concat([]byte{'['}, list, []byte{']'})
	}
	var ids []*int32
	if err := json.Unmarshal(list, &ids); err != nil {
		return fmt.Errorf("%s: eos_token_id: %w", f.Name, err)
	}
	for _, id := range ids {
		switch {
		case id == nil:
			return fmt.Errorf("%s: eos_token_id has null, not an id", f.Name)
		case *id < 0 || int(*id) >= b.Vocab():
			return fmt.Errorf("%s: eos_token_id %d is not in the vocabulary of %d tokens", f.Name, *id, b.Vocab())
		}
		b.stops = append(b.stops, *id)
	}
	return nil
}

// guessEndOfText takes the first id of generation_config.json, or the first known name.
func (b *Bundle) guessEndOfText() {
	if len(b.stops) > 0 {
		b.EndOfText = b.stops[0]
		return
	}
	for _, name := range endsOfText {
		if b.setID(name) == nil {
			return
		}
	}
}

func (b *Bundle) setID(token string) error {
	id, ok := b.ID(token)
	if !ok {
		return fmt.Errorf("%q is not a token of the vocabulary", token)
	}
	b.EndOfText = id
	return nil
}

// SetEndOfText makes a token of the vocabulary the one that ends a document: eos_token in
// tokenizer_config.json, or without that file the first eos_token_id in generation_config.json.
func (b *Bundle) SetEndOfText(token string) error {
	if err := b.setID(token); err != nil {
		return err
	}
	if config := b.file(configName); config != nil {
		if err := config.set("eos_token", token); err != nil {
			return err
		}
	}
	if b.guessed {
		b.stops = nil // the former end of text
	}
	others := slices.DeleteFunc(slices.Clone(b.stops), func(id int32) bool { return id == b.EndOfText })
	b.stops = append([]int32{b.EndOfText}, others...)
	return b.writeStops()
}

// writeStops writes the ids that end a generated text to generation_config.json.
func (b *Bundle) writeStops() error {
	if b.file(generationName) == nil {
		b.Files = append(b.Files, File{generationName, []byte("{}")})
	}
	value := any(b.stops)
	if len(b.stops) == 1 {
		value = b.stops[0]
	}
	return b.file(generationName).set("eos_token_id", value)
}

// set sets a field of a file that holds an object.
func (f *File) set(key string, value any) error {
	fields, err := f.object()
	if err != nil {
		return err
	}
	if fields[key], err = json.Marshal(value); err != nil {
		return err
	}
	f.Data, err = marshal(fields)
	return err
}

// writeConfig adds a tokenizer_config.json, which names a class of transformers and the end of text.
// It writes none where transformers has no class for the file.
func (b *Bundle) writeConfig(class string) error {
	if class == "" {
		return nil
	}
	fields := map[string]any{"tokenizer_class": class, "clean_up_tokenization_spaces": false}
	for _, a := range b.added {
		if a.id == b.EndOfText {
			fields["eos_token"] = a.content
		}
	}
	raw, err := marshal(fields)
	b.Files = slices.Insert(b.Files, 1, File{configName, raw})
	return err
}

func marshal(v any) ([]byte, error) {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(v)
	return text.Bytes(), err
}

func (b *Bundle) file(name string) *File {
	i := slices.IndexFunc(b.Files, func(f File) bool { return f.Name == name })
	if i < 0 {
		return nil
	}
	return &b.Files[i]
}

// Differs returns the first id below the sizes of both vocabularies whose token differs.
func (b *Bundle) Differs(other *Bundle) (id int32, differs bool) {
	for i := range min(len(b.tokens), len(other.tokens)) {
		if !bytes.Equal(b.tokens[i], other.tokens[i]) {
			return int32(i), true
		}
	}
	return 0, false
}

// SHA256 returns the hash of the tokenizer file, in hex.
func (b *Bundle) SHA256() string {
	sum := sha256.Sum256(b.Files[0].Data)
	return hex.EncodeToString(sum[:])
}

// OfBytes returns the tokenizer whose ids are bytes, without merges. The zero byte ends a document:
// text does not contain it.
func OfBytes() *Bundle {
	b := *ofBytes()
	b.Files = slices.Clone(b.Files)
	return &b
}

var ofBytes = sync.OnceValue(func() *Bundle {
	vocab := make(map[string]int, len(byteChars))
	for b, r := range byteChars {
		vocab[string(r)] = b
	}
	raw, err := marshal(map[string]any{
		"version": "1.0", "added_tokens": []any{}, "normalizer": nil, "post_processor": nil,
		"pre_tokenizer": map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
		"decoder":       map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
		"model":         map[string]any{"type": "BPE", "vocab": vocab, "merges": []any{}},
	})
	if err != nil {
		panic(err) // of constants
	}
	generation, err := marshal(map[string]int{"bos_token_id": 0, "eos_token_id": 0})
	if err != nil {
		panic(err)
	}
	b, err := newBundle("", []File{{Name: fileNames[0], Data: raw}, {Name: generationName, Data: generation}})
	if err != nil {
		panic(err)
	}
	return b
})
