package data

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"
)

// part is one part, training or validation, of folders of tokens. It implements Tokens, documents
// and, if the folders have prompts, masked (see maskedPart).
type part struct {
	stream
	shards []partShard
	docs   int64
	bytes  int64     // of the documents' text
	words  sync.Pool // of *[]byte: reads are concurrent and do not allocate
}

// partShard is a shard of a part.
type partShard struct {
	ids      *source // NAME.bin
	index    *source // NAME.idx
	mask     *source // NAME.mask; nil: all ids count in the loss
	start    int64   // index of its first id in the stream
	firstDoc int64
	tokens   int64
	docs     int64
}

// maskedPart is a part with prompts.
type maskedPart struct{ *part }

// addShard opens the files of a shard and checks their sizes.
func (p *part) addShard(files *pool, dir string, s PreparedShard, prepared Prepared) error {
	open := func(suffix string, size int64) (*source, error) {
		f := &file{fsys: os.DirFS(dir), path: s.Name + suffix, from: dir, size: size}
		info, err := os.Stat(f.String())
		if err != nil {
			return nil, unreadable(f.String(), err)
		}
		if info.Size() != size {
			return nil, fmt.Errorf("data: %q has %d bytes, but %s says %d: copy the folder again, or prepare it again", f, info.Size(), PreparedFile, size)
		}
		return files.add(f)
	}
	width := int64(ShardWidth(prepared.Tokenizer.Vocab))
	ids, err := open(".bin", shardHeader+s.Tokens*width)
	if err != nil {
		return err
	}
	x, err := newShard(ids, ids.name, shardHeader+s.Tokens*width, newCorpusHash())
	if err != nil {
		return err
	}
	if x.ids != s.Tokens {
		return fmt.Errorf("data: shard %q has %d ids, but %s says %d: prepare the folder again", ids.name, x.ids, PreparedFile, s.Tokens)
	}
	x.vocab = prepared.Tokenizer.Vocab
	part := partShard{ids: ids, start: p.n, firstDoc: p.docs, tokens: s.Tokens, docs: s.Documents}
	if part.index, err = open(".idx", 8*s.Documents); err != nil {
		return err
	}
	if prepared.Kind != KindDocuments {
		if part.mask, err = open(".mask", (s.Tokens+7)/8); err != nil {
			return err
		}
	}
	p.add(x, 0, s.Tokens)
	p.shards = append(p.shards, part)
	p.docs += s.Documents
	p.bytes += s.Bytes
	return nil
}

// sampleBytes and samples say how much of a large file sample reads.
const (
	sampleBytes = 4 << 10
	samples     = 256
)

// sample writes the sizes of the last shard's files to h, and their bytes: all of a small file, else
// blocks spread evenly over it. Reading all of a large corpus at each start would take hours, so a few
// bytes that change in a large shard go unnoticed here; octet data inspect --verify reads all.
func (p *part) sample(h corpusHash) error {
	s := &p.shards[len(p.shards)-1]
	buf := make([]byte, sampleBytes)
	for _, f := range []*source{s.ids, s.index, s.mask} {
		if f == nil {
			continue
		}
		size := f.stamp.size
		h.begin(filepath.Base(f.name), size)
		blocks := (size + sampleBytes - 1) / sampleBytes
		n := min(blocks, samples)
		for i := range n {
			at := i * sampleBytes
			if blocks > samples {
				at = i * (size - sampleBytes) / (n - 1)
			}
			block := buf[:min(sampleBytes, size-at)]
			if err := readFull(f, f.name, block, at); err != nil {
				return err
			}
			h.Write(block)
		}
	}
	return nil
}

// maxNarrow is the largest vocabulary of a shard of 16-bit ids.
const maxNarrow = 1 << 16

func (p *part) documents() int64 { return p.docs }

// document returns the tokens [from, to) of a document.
func (p *part) document(i int64) (from, to int64, err error) {
	k, found := slices.BinarySearchFunc(p.shards, i, func(s partShard, i int64) int { return cmp.Compare(s.firstDoc, i) })
	if !found {
		k--
	}
	s := &p.shards[k]
	i -= s.firstDoc
	buffer := p.buffer()
	defer p.words.Put(buffer)
	raw := sized(buffer, 16)
	clear(raw[:8])
	if i == 0 { // the first document begins at 0
		err = readFull(s.index, s.index.name, raw[8:], 0)
	} else {
		err = readFull(s.index, s.index.name, raw, 8*(i-1))
	}
	if err != nil {
		return 0, 0, err
	}
	begin, end := binary.LittleEndian.Uint64(raw), binary.LittleEndian.Uint64(raw[8:])
	if end <= begin || end > uint64(s.tokens) {
		return 0, 0, fmt.Errorf("data: %q says that document %d has the ids %d to %d of %d: copy the folder again, or prepare it again", s.index.name, i, begin, end, s.tokens)
	}
	return s.start + int64(begin), s.start + int64(end), nil
}

func (p *part) buffer() *[]byte {
	if b, ok := p.words.Get().(*[]byte); ok {
		return b
	}
	return new([]byte)
}

// ignore implements masked.
func (p maskedPart) ignore(targets []int32, at int64) error {
	k, found := slices.BinarySearchFunc(p.shards, at, func(s partShard, at int64) int { return cmp.Compare(s.start, at) })
	if !found {
		k--
	}
	buffer := p.buffer()
	defer p.words.Put(buffer)
	for len(targets) > 0 {
		s := &p.shards[k]
		first := at - s.start
		n := min(int64(len(targets)), s.tokens-first)
		raw := sized(buffer, int((first+n+7)/8-first/8))
		if err := readFull(s.mask, s.mask.name, raw, first/8); err != nil {
			return err
		}
		for i := range targets[:n] {
			if bit := first%8 + int64(i); raw[bit/8]>>(bit%8)&1 == 0 {
				targets[i] = IgnoreTarget
			}
		}
		targets, at, k = targets[n:], at+n, k+1
	}
	return nil
}

// asTokens returns the part as a stream, of which the answers count in the loss, or everything.
func (p *part) asTokens(answers bool) Tokens {
	if answers {
		return maskedPart{p}
	}
	return p
}

// openPrepared opens folders of tokens as one corpus. They must have the same tokenizer.
func openPrepared(dirs []string, o Options) (*Corpus, error) {
	if err := checkApart(dirs); err != nil {
		return nil, err
	}
	c := &Corpus{Info: Info{Kind: KindPrepared}, pool: newPool()}
	if err := c.addFolders(dirs, o); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Corpus) addFolders(dirs []string, o Options) error {
	var train, val part
	hash := newCorpusHash()
	kind := ""
	if o.Tokenizer != "" {
		return fmt.Errorf("data: data.tokenizer is for shards without one: %q has its own", dirs[0])
	}
	for _, dir := range dirs {
		if !IsPrepared(dir) {
			return fmt.Errorf("data: %q is no folder of octet data prepare, unlike others of data.paths: prepare all of them, or train on the others alone", dir)
		}
		p, t, err := ReadPrepared(dir)
		if err != nil {
			return err
		}
		if kind == "" {
			c.Tokenizer, kind = t, p.Kind
		}
		c.EndInside = c.EndInside || p.Tokenizer.EndInside
		switch {
		case t.SHA256() != c.Tokenizer.SHA256() || t.EndOfText != c.Tokenizer.EndOfText:
			return fmt.Errorf("data: %q and %q have different tokenizers: prepare both with the same one", dirs[0], dir)
		case p.Kind != kind:
			return fmt.Errorf("data: %q has documents of kind %s, but %q of kind %s: train on one kind", dirs[0], kind, dir, p.Kind)
		case o.Vocab != 0 && o.Vocab < t.Vocab():
			return fmt.Errorf("data: model.vocab is %d, but the tokenizer of %q has %d tokens: set model.vocab=%d, or prepare the data with the tokenizer of the model", o.Vocab, dir, t.Vocab(), t.Vocab())
		}
		for _, s := range p.Shards {
			to := &train
			if s.Part() == ValPart {
				to = &val
			}
			if kind == KindPreference && s.Documents%2 != 0 {
				return fmt.Errorf("data: shard %s of %q has %d documents, but two are a pair: copy the folder again, or prepare it again", s.Name, dir, s.Documents)
			}
			if err := to.addShard(c.pool, dir, s, p); err != nil {
				return err
			}
			if err := to.sample(hash); err != nil {
				return err
			}
			f := File{Path: path.Join(filepath.Base(dir), s.Name+".bin"), Bytes: ShardHeaderBytes + s.Tokens*int64(ShardWidth(p.Tokenizer.Vocab))}
			if to == &val {
				f.HeldOut = f.Bytes - ShardHeaderBytes
			}
			c.Info.Files = append(c.Info.Files, f)
		}
	}
	if o.Answers && kind == KindDocuments {
		return errNoPrompts(dirs[0])
	}
	if train.n == 0 {
		return fmt.Errorf("data: %q has no document for training: prepare it with a smaller --val", dirs[0])
	}
	if val.n > 0 { // val_bytes in tokens, by the mean size of a token
		if n := float64(o.ValBytes) * float64(val.n) / float64(max(val.bytes, 1)); n < float64(val.n) {
			val.truncate(int64(n))
		}
	}
	c.Train, c.Val = train.asTokens(o.Answers), val.asTokens(o.Answers)
	c.EndOfText, c.Documents = c.Tokenizer.EndOfText, kind
	c.Info.SHA256, c.Info.Vocab = hash.String(), c.Tokenizer.Vocab()
	c.Info.Tokenizer, c.Info.EndOfText = c.Tokenizer.SHA256(), c.EndOfText
	c.Info.TrainTokens, c.Info.ValTokens = train.n, val.n
	return nil
}
