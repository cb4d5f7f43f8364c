// Command domains splits the source of the Go installation into two texts of different kinds: code
// without comments, and comments without code. Sweeps train on each, for recipes that may behave
// otherwise on code than on language.
//
//	go run ./study/domains -o domains     writes domains/code.txt and domains/comments.txt
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"go/scanner"
	"go/token"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"octet/study/internal/start"
)

func main() {
	log.SetFlags(0)
	out := flag.String("o", "domains", "folder to write")
	flag.Parse()
	if err := write(context.Background(), *out); err != nil {
		log.Fatal(err)
	}
}

// write writes the two texts.
func write(ctx context.Context, dir string) error {
	corpus, _, err := start.Corpus(ctx, 0)
	if err != nil {
		return err
	}
	ids := make([]int32, corpus.Train.Len())
	if err := corpus.Train.ReadTokens(ids, 0); err != nil {
		return err
	}
	source := make([]byte, len(ids))
	for i, id := range ids {
		source[i] = byte(id)
	}
	var code, comments bytes.Buffer
	for file := range bytes.SplitSeq(source, []byte{0}) { // the corpus ends each file with a zero byte
		split(file, &code, &comments)
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	dense := blankLines.ReplaceAll(code.Bytes(), []byte("\n\n")) // comments left blank lines
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "code.txt"), dense, 0o666),
		os.WriteFile(filepath.Join(dir, "comments.txt"), comments.Bytes(), 0o666))
}

var blankLines = regexp.MustCompile(`\n(?:[ \t]*\n)+`)

// split appends a file's comments, without their markers, to comments, and all else to code.
func split(file []byte, code, comments *bytes.Buffer) {
	set := token.NewFileSet()
	f := set.AddFile("", -1, len(file))
	var s scanner.Scanner
	s.Init(f, file, nil, scanner.ScanComments)
	from := 0
	for {
		pos, tok, text := s.Scan()
		if tok == token.EOF {
			code.Write(file[from:])
			return
		}
		if tok != token.COMMENT {
			continue
		}
		at := f.Offset(pos)
		code.Write(file[from:at])
		from = at + len(text)
		comments.WriteString(strings.TrimSpace(strings.Trim(text, "/*")) + "\n")
	}
}
