package data

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"path"
	"slices"
	"strings"
	"unicode"

	"octet/tokenizer"
)

// The layout of llm.c's shards (dev/data/data_common.py there): a header of 256 int32, of which the
// first three are the magic number, the version and the number of ids and the rest are zero, then the
// ids, all little-endian. Ids have 16 bits, as for GPT-2, or 32, as for Llama 3.
const (
	shardMagic   = 20240520
	shardVersion = 1
	shardHeader  = 256 * 4
	idBytes      = 2

	wideMagic   = 20240801
	wideVersion = 7
	wideBytes   = 4
)

// shard is one open file of ids.
type shard struct {
	name    string // for messages
	r       io.ReaderAt
	ids     int64 // number of ids
	width   int64 // bytes of an id
	vocab   int   // of a prepared shard, whose ids are not scanned; 0: largest is set
	largest int   // largest id, set by scan
}

// beginsAsShard reports whether a file starts with the magic number of an llm.c shard.
func beginsAsShard(f *file) (bool, error) {
	r, err := f.fsys.Open(f.path)
	if err != nil {
		return false, unreadable(f.String(), err)
	}
	defer r.Close()
	var magic [4]byte
	if _, err := io.ReadFull(r, magic[:]); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return false, unreadable(f.String(), err)
	}
	n := binary.LittleEndian.Uint32(magic[:])
	return n == shardMagic || n == wideMagic, nil
}

// newShard reads the header, checks it against the file's size in bytes, and writes
// it to h.
func newShard(r io.ReaderAt, name string, size int64, h hash.Hash) (*shard, error) {
	header := make([]byte, min(size, shardHeader))
	if err := readFull(r, name, header, 0); err != nil {
		return nil, err
	}
	h.Write(header)
	width, ids, err := ParseShardHeader(header, size)
	if err != nil {
		return nil, fmt.Errorf("data: shard %q: %w", name, err)
	}
	return &shard{name: name, r: r, ids: ids, width: int64(width)}, nil
}

// id returns the id at the start of raw.
func (s *shard) id(raw []byte) int {
	if s.width == wideBytes {
		return int(binary.LittleEndian.Uint32(raw))
	}
	return int(binary.LittleEndian.Uint16(raw))
}

// scan reads all ids once, writes their bytes to h and sets s.largest. An id that is
// not below vocab is an error; vocab 0 allows any id.
func (s *shard) scan(h hash.Hash, vocab int) error {
	buf := make([]byte, min(scanChunk, s.ids*s.width))
	for at := int64(0); at < s.ids; at += int64(len(buf)) / s.width {
		buf = buf[:min(int64(len(buf)), (s.ids-at)*s.width)]
		if err := readFull(s.r, s.name, buf, shardHeader+at*s.width); err != nil {
			return err
		}
		h.Write(buf)
		for i := int64(0); i < int64(len(buf)); i += s.width {
			id := s.id(buf[i:])
			if vocab > 0 && id >= vocab {
				return fmt.Errorf("data: shard %q holds the id %d at token %d, but the vocabulary has %d: set model.vocab to that of its tokenizer", s.name, id, at+i/s.width, vocab)
			}
			s.largest = max(s.largest, id)
		}
	}
	if s.largest > math.MaxInt32 {
		return fmt.Errorf("data: shard %q holds the id %d: ids are below 2^31", s.name, s.largest)
	}
	return nil
}

// read implements tokenFile.
func (s *shard) read(dst []int32, buffer *[]byte, first int64) error {
	raw := sized(buffer, len(dst)*int(s.width))
	if err := readFull(s.r, s.name, raw, shardHeader+first*s.width); err != nil {
		return err
	}
	for i := range dst {
		id := s.id(raw[i*int(s.width):])
		if s.vocab > 0 && id >= s.vocab {
			return fmt.Errorf("data: shard %q holds the id %d at token %d, but the vocabulary has %d: octet data inspect DIR --verify checks a folder", s.name, id, first+int64(i), s.vocab)
		}
		if s.vocab == 0 && id > s.largest { // may be out of bounds of the embedding table
			return fmt.Errorf("data: shard %q has changed since it was opened: token %d now has the id %d, above the former maximum %d; do not write to it while a run reads it", s.name, first+int64(i), id, s.largest)
		}
		dst[i] = int32(id)
	}
	return nil
}

// openShards opens, checks and splits shards as OpenFiles documents.
func openShards(files []*file, o Options) (*Corpus, error) {
	c := &Corpus{Info: Info{Kind: KindShards}, EndOfText: -1, pool: newPool()}
	vocab, err := c.openTokenizer(o)
	var shards []*shard
	if err == nil {
		shards, err = c.open(files, vocab)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	var train, val stream
	valIDs := o.ValBytes / idBytes
	holdOutIDs(files, shards, valIDs)
	for i, s := range shards {
		held := files[i].held / s.width
		train.add(s, 0, s.ids-held)
		val.add(s, s.ids-held, min(held, valIDs-val.n))
		c.Info.Files = append(c.Info.Files, File{Path: files[i].path, Bytes: files[i].size, HeldOut: files[i].held})
	}
	if train.n == 0 {
		err := fmt.Errorf("data: %q is for validation by its name, and there are no other shards: name shards for training too", files[0])
		return nil, errors.Join(err, c.Close())
	}
	c.Train, c.Val = &train, &val
	c.Info.TrainTokens, c.Info.ValTokens = train.n, val.n
	return c, nil
}

// openTokenizer opens the tokenizer of shards, if one is given, and returns the vocabulary that their
// ids must be in.
func (c *Corpus) openTokenizer(o Options) (vocab int, err error) {
	if o.Tokenizer == "" {
		return o.Vocab, nil
	}
	if c.Tokenizer, err = tokenizer.OpenBundle(o.Tokenizer); err != nil {
		return 0, fmt.Errorf("data: data.tokenizer: %w", err)
	}
	n := c.Tokenizer.Vocab()
	if o.Vocab != 0 && o.Vocab < n {
		return 0, fmt.Errorf("data: model.vocab is %d, but the tokenizer %q has %d tokens: set model.vocab=%d", o.Vocab, o.Tokenizer, n, n)
	}
	c.EndOfText = c.Tokenizer.EndOfText
	c.Info.Tokenizer, c.Info.EndOfText = c.Tokenizer.SHA256(), c.EndOfText
	return n, nil
}

// open opens and reads every shard once and sets Info.SHA256 and Info.Vocab. Opened
// files are in c.pool, after an error too.
func (c *Corpus) open(files []*file, vocab int) ([]*shard, error) {
	var shards []*shard
	hash := newCorpusHash()
	for _, f := range files {
		r, err := c.pool.add(f)
		if err != nil {
			return nil, err
		}
		hash.begin(f.path, f.size)
		s, err := newShard(r, f.String(), f.size, hash)
		if err != nil {
			return nil, err
		}
		if err := s.scan(hash, vocab); err != nil {
			return nil, err
		}
		c.Info.Vocab = max(c.Info.Vocab, s.largest+1)
		shards = append(shards, s)
	}
	if c.Tokenizer != nil {
		c.Info.Vocab = c.Tokenizer.Vocab()
	}
	c.Info.SHA256 = hash.String()
	return shards, nil
}

// holdOutIDs sets the held fields of files: all ids of the shards named for validation
// or, if there are none, the last ids, a tenth of all but at most limit. If all shards
// are named for validation and limit is 0, it holds out nothing.
func holdOutIDs(files []*file, shards []*shard, limit int64) {
	var total int64
	var named []int
	for i, s := range shards {
		total += s.ids
		if namesValidation(files[i].path) {
			named = append(named, i)
		}
	}
	if len(named) > 0 && (limit > 0 || len(named) < len(shards)) {
		for _, i := range named {
			files[i].held = shards[i].ids * shards[i].width
		}
		return
	}
	left := min(total/10, limit)
	for i := len(shards) - 1; i >= 0; i-- {
		held := min(left, shards[i].ids)
		files[i].held = held * shards[i].width
		left -= held
	}
}

// namesValidation reports whether a shard's base name contains the word val, valid or
// validation, as in fineweb_val_000000.bin. "interval" does not count.
func namesValidation(p string) bool {
	words := strings.FieldsFunc(strings.ToLower(path.Base(p)), func(r rune) bool { return !unicode.IsLetter(r) })
	return slices.ContainsFunc(words, func(w string) bool { return w == "val" || w == "valid" || w == "validation" })
}
