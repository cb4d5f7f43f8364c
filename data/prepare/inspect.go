package prepare

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"octet/data"
	"octet/tokenizer"
)

// Inspection describes a folder of tokens, or shards without a description.
type Inspection struct {
	Prepared *data.Prepared // nil: plain shards
	EndToken string         // text of the end of text
	Shards   []Shard
	// Lengths of documents in ids, with the end of text; 0 for plain shards.
	Longest, Median int64
}

// Shard is a shard that Inspect has read.
type Shard struct {
	Path      string
	Width     int // bytes of an id
	Tokens    int64
	Documents int64 // 0: not known
	Largest   int32 // id; −1: not read
	endInside bool  // a document has the end of text before its last id
}

// InspectOptions say what Inspect reads besides the ends of documents.
type InspectOptions struct {
	Verify bool // read all ids and masks, compare hashes and check that the parts fit
	// Progress is called with the bytes that are read and all of them; nil: not called.
	Progress func(done, all int64)
}

// Inspect reads a folder of tokens, or a file or a folder of shards of llm.c. Damage is an InputError.
func Inspect(path string, o InspectOptions) (*Inspection, error) {
	if !data.IsPrepared(path) {
		return inspectShards(path, o)
	}
	p, tok, err := data.ReadPrepared(path)
	if err != nil {
		return nil, &InputError{err}
	}
	in := &Inspection{Prepared: &p}
	text, err := tok.Decode(nil, []int32{p.Tokenizer.EndOfText}, false)
	if err != nil {
		return nil, &InputError{err}
	}
	in.EndToken = string(text)
	lengths, endInside := map[int64]int64{}, false
	var all, done int64
	for _, s := range p.Shards {
		all += s.Tokens
	}
	for _, s := range p.Shards {
		shard, err := inspectShard(path, &p, s, o.Verify, func(length int64) { lengths[length]++ })
		if err != nil {
			return nil, badInput("shard %s: %w", filepath.Join(path, s.Name), err)
		}
		in.Shards, endInside = append(in.Shards, shard), endInside || shard.endInside
		if done += s.Tokens; o.Progress != nil {
			o.Progress(done, all)
		}
	}
	if o.Verify && endInside != p.Tokenizer.EndInside {
		return nil, badInput("%s: tokenizer.end_inside is %v, but whether a document has the end of text before its last token is %v: prepare the data again", filepath.Join(path, data.PreparedFile), p.Tokenizer.EndInside, endInside)
	}
	in.Longest, in.Median = longestAndMedian(lengths)
	return in, nil
}

// longestAndMedian returns those of lengths with their counts; the median is the lower one of two.
func longestAndMedian(counts map[int64]int64) (longest, median int64) {
	var list []int64
	total := int64(0)
	for length, n := range counts {
		list = append(list, length)
		total += n
	}
	slices.Sort(list)
	below := int64(0)
	for _, length := range list {
		if below += counts[length]; 2*below >= total && median == 0 {
			median = length
		}
		longest = length
	}
	return longest, median
}

// inspectShard checks the sizes of a shard's files and the ends of its documents.
func inspectShard(dir string, p *data.Prepared, s data.PreparedShard, verify bool, document func(length int64)) (shard Shard, err error) {
	shard = Shard{Path: filepath.Join(dir, s.Name+binSuffix), Tokens: s.Tokens, Documents: s.Documents, Largest: -1}
	bin, err := os.Open(shard.Path)
	if err != nil {
		return shard, err
	}
	defer func() { _ = bin.Close() }() // it was only read
	ids := bufio.NewReaderSize(bin, 1<<20)
	width, tokens, err := readShardHeader(bin, ids)
	if err != nil {
		return shard, fmt.Errorf("%s: %w", binSuffix, err)
	}
	if shard.Width = width; tokens != s.Tokens || width != data.ShardWidth(p.Tokenizer.Vocab) {
		return shard, fmt.Errorf("%s has %d ids of %d bits, but %s says %d of %d", binSuffix, tokens, 8*width, data.PreparedFile, s.Tokens, 8*data.ShardWidth(p.Tokenizer.Vocab))
	}
	idx, err := os.Open(filepath.Join(dir, s.Name+idxSuffix))
	if err != nil {
		return shard, err
	}
	defer func() { _ = idx.Close() }() // it was only read
	at := int64(0)
	check := func(end int64) error {
		if !verify {
			return nil
		}
		return shard.scan(ids, p, end-at, at)
	}
	err = readEnds(bufio.NewReaderSize(idx, 1<<20), s, func(end int64) error {
		if err := check(end); err != nil {
			return err
		}
		document(end - at)
		at = end
		return nil
	})
	if err != nil {
		return shard, err
	}
	if p.Kind != data.KindDocuments {
		if err := checkMask(filepath.Join(dir, s.Name+maskSuffix), s.Tokens, verify); err != nil {
			return shard, err
		}
	}
	if verify {
		sum, err := shardHash(dir, s.Name, p.Kind)
		if err != nil {
			return shard, err
		}
		if sum != s.SHA256 {
			return shard, fmt.Errorf("the SHA-256 of its files is %s, but %s says %.80s", sum, data.PreparedFile, s.SHA256)
		}
	}
	return shard, nil
}

// readShardHeader reads the header of an open file.
func readShardHeader(f *os.File, r io.Reader) (width int, ids int64, err error) {
	info, err := f.Stat()
	if err != nil {
		return 0, 0, err
	}
	header := make([]byte, data.ShardHeaderBytes)
	n, err := io.ReadFull(r, header)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return 0, 0, err
	}
	return data.ParseShardHeader(header[:n], info.Size())
}

// readEnds calls visit with the end of each document of a shard.
func readEnds(r io.Reader, s data.PreparedShard, visit func(end int64) error) error {
	var raw [8]byte
	last := int64(0)
	for i := range s.Documents {
		if _, err := io.ReadFull(r, raw[:]); err != nil {
			return fmt.Errorf("%s ends at document %d of %d", idxSuffix, i, s.Documents)
		}
		end := binary.LittleEndian.Uint64(raw[:])
		if end <= uint64(last) || end > uint64(s.Tokens) {
			return fmt.Errorf("%s: document %d ends at id %d, after %d and of %d ids", idxSuffix, i, end, last, s.Tokens)
		}
		last = int64(end)
		if err := visit(last); err != nil {
			return err
		}
	}
	if last != s.Tokens {
		return fmt.Errorf("%s: the last document ends at id %d of %d", idxSuffix, last, s.Tokens)
	}
	if n, _ := r.Read(raw[:1]); n > 0 {
		return fmt.Errorf("%s has more than %d documents", idxSuffix, s.Documents)
	}
	return nil
}

// scan reads the ids of a document, which begins at a place of the shard.
func (s *Shard) scan(r io.Reader, p *data.Prepared, length, at int64) error {
	raw := make([]byte, min(length*int64(s.Width), 1<<20))
	id := int32(-1)
	for i := int64(0); i < length; {
		part := raw[:min(int64(len(raw)), (length-i)*int64(s.Width))]
		if _, err := io.ReadFull(r, part); err != nil {
			return err
		}
		for ; len(part) > 0; part = part[s.Width:] {
			if p != nil && i > 0 && id == p.Tokenizer.EndOfText {
				s.endInside = true
			}
			id = data.ShardID(part, s.Width)
			if p != nil && (id < 0 || int(id) >= p.Tokenizer.Vocab) {
				return fmt.Errorf("%s: id %d at token %d is not below the vocabulary of %d", binSuffix, id, at+i, p.Tokenizer.Vocab)
			}
			s.Largest = max(s.Largest, id)
			i++
		}
	}
	if p != nil && id != p.Tokenizer.EndOfText {
		return fmt.Errorf("%s: the document that ends at token %d ends with id %d, not with the end of text, %d", binSuffix, at+length, id, p.Tokenizer.EndOfText)
	}
	return nil
}

// checkMask checks the size of a mask, and that its last bits without an id are 0.
func checkMask(path string, tokens int64, verify bool) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if want := (tokens + 7) / 8; info.Size() != want {
		return fmt.Errorf("%s has %d bytes, but %d ids need %d", maskSuffix, info.Size(), tokens, want)
	}
	if !verify || tokens%8 == 0 {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read
	var last [1]byte
	if _, err := f.ReadAt(last[:], info.Size()-1); err != nil {
		return err
	}
	if last[0]>>(tokens%8) != 0 {
		return fmt.Errorf("%s has bits after the last of %d ids", maskSuffix, tokens)
	}
	return nil
}

// inspectShards reads shards without a description.
func inspectShards(path string, o InspectOptions) (*Inspection, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, &InputError{err}
	}
	names := []string{path}
	if info.IsDir() {
		if _, err := os.Stat(filepath.Join(path, argumentsFile)); err == nil {
			return nil, badInput("%s is not complete: start octet data prepare again with the same arguments", path)
		}
		if names, err = filepath.Glob(filepath.Join(escapeGlob(path), "*"+binSuffix)); err != nil || len(names) == 0 {
			return nil, badInput("%s has no %s and no %s shards", path, data.PreparedFile, binSuffix)
		}
	}
	in := &Inspection{}
	for i, name := range names {
		shard := Shard{Path: name, Largest: -1}
		if err := shard.readPlain(); err != nil {
			return nil, badInput("%s: %w", name, err)
		}
		in.Shards = append(in.Shards, shard)
		if o.Progress != nil {
			o.Progress(int64(i+1), int64(len(names)))
		}
	}
	return in, nil
}

func escapeGlob(path string) string {
	return strings.NewReplacer(`*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

func (s *Shard) readPlain() error {
	f, err := os.Open(s.Path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read
	r := bufio.NewReaderSize(f, 1<<20)
	if s.Width, s.Tokens, err = readShardHeader(f, r); err != nil {
		return err
	}
	return s.scan(r, nil, s.Tokens, 0)
}

// Document is a document of a folder of tokens, decoded.
type Document struct {
	Shard  string `json:"shard"`
	Index  int64  `json:"index"` // in the shard
	Tokens int64  `json:"tokens"`
	Spans  []Span `json:"spans"`
}

// Span is a run of ids that count in the loss, or do not.
type Span struct {
	Counts bool   `json:"counts"` // in the loss
	Tokens int64  `json:"tokens"`
	Text   string `json:"text"`
}

// maxShown is how many ids of a document Documents decodes.
const maxShown = 1 << 20

// Documents decodes the first n documents of a folder of tokens, and calls visit with each. It returns the
// error of visit as it is.
func Documents(dir string, n int64, visit func(*Document) error) error {
	p, tok, err := data.ReadPrepared(dir)
	if err != nil {
		return &InputError{err}
	}
	var visited error
	left := n
	for _, s := range p.Shards {
		if left <= 0 {
			break
		}
		err := documentsOf(dir, &p, s, tok, func(d *Document) error {
			if visited = visit(d); visited != nil {
				return visited
			}
			if left--; left == 0 {
				return errEnough
			}
			return nil
		})
		switch {
		case visited != nil:
			return visited
		case errors.Is(err, errEnough):
			return nil
		case err != nil:
			return badInput("shard %s: %w", filepath.Join(dir, s.Name), err)
		}
	}
	return nil
}

var errEnough = errors.New("enough documents")

func documentsOf(dir string, p *data.Prepared, s data.PreparedShard, tok *tokenizer.Bundle, visit func(*Document) error) error {
	var files []*os.File
	for _, suffix := range suffixes(p.Kind) {
		f, err := os.Open(filepath.Join(dir, s.Name+suffix))
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }() // it was only read
		files = append(files, f)
	}
	width := data.ShardWidth(p.Tokenizer.Vocab)
	at, index := int64(0), int64(0)
	return readEnds(bufio.NewReader(files[1]), s, func(end int64) error {
		shown := min(end-at, maxShown)
		raw := make([]byte, shown*int64(width))
		if _, err := files[0].ReadAt(raw, data.ShardHeaderBytes+at*int64(width)); err != nil {
			return err
		}
		var mask []byte
		if len(files) > 2 {
			mask = make([]byte, (at+shown+7)/8-at/8)
			if _, err := files[2].ReadAt(mask, at/8); err != nil {
				return err
			}
		}
		d := Document{Shard: s.Name, Index: index, Tokens: end - at}
		if err := d.decode(tok, raw, width, func(i int64) bool {
			return mask == nil || mask[(at+i)/8-at/8]>>((at+i)%8)&1 == 1
		}); err != nil {
			return err
		}
		at, index = end, index+1
		return visit(&d)
	})
}

// decode fills the spans.
func (d *Document) decode(tok *tokenizer.Bundle, raw []byte, width int, counts func(i int64) bool) error {
	n := int64(len(raw) / width)
	var ids []int32
	for i := range n {
		ids = append(ids, data.ShardID(raw[i*int64(width):], width))
	}
	for i := int64(0); i < n; {
		begin, first := i, counts(i)
		for i++; i < n && counts(i) == first; i++ {
		}
		above := ids[max(begin-1, 0):begin] // spaces are stripped from the start of a text only
		prefix, err := tok.Decode(nil, above, false)
		if err != nil {
			return err
		}
		text, err := tok.Decode(nil, ids[begin-int64(len(above)):i], false)
		if err != nil {
			return err
		}
		d.Spans = append(d.Spans, Span{first, i - begin, string(text[len(prefix):])})
	}
	return nil
}
