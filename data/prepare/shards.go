package prepare

import (
	"bufio"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"

	"octet/data"
	"octet/internal/disk"
)

// Suffixes of a shard's files.
const (
	binSuffix  = ".bin"
	idxSuffix  = ".idx"
	maskSuffix = ".mask"
)

// suffixes returns those of a kind.
func suffixes(kind string) []string {
	if kind == data.KindDocuments {
		return []string{binSuffix, idxSuffix}
	}
	return []string{binSuffix, idxSuffix, maskSuffix}
}

// partState is what is written of the training or the validation part.
type partState struct {
	Shards []data.PreparedShard `json:"shards"` // complete
	Open   data.PreparedShard   `json:"open"`   // incomplete; no name: none
	Mask   byte                 `json:"mask"`   // bits of the last byte of its mask, which is not full
}

// part writes the shards of a part.
type part struct {
	partState
	dir, name string
	kind      string
	width     int
	most      int64       // ids of a shard
	files     []*appender // of Open
}

// appender appends to a file.
type appender struct {
	file *disk.File
	*bufio.Writer
}

func (a *appender) sync() error {
	if err := a.Flush(); err != nil {
		return err
	}
	return a.file.Sync()
}

func (p *part) path(suffix string) string { return filepath.Join(p.dir, p.Open.Name+suffix) }

// begin creates the files of a shard.
func (p *part) begin() error {
	p.Open = data.PreparedShard{Name: data.ShardName(p.name, len(p.Shards))}
	for _, suffix := range suffixes(p.kind) {
		if err := p.openFile(suffix, os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_TRUNC); err != nil {
			return err
		}
	}
	_, err := p.files[0].Write(make([]byte, data.ShardHeaderBytes)) // its number of ids comes last
	return err
}

func (p *part) openFile(suffix string, flag int) error {
	f, err := disk.Open(p.path(suffix), flag)
	if err == nil {
		p.files = append(p.files, &appender{f, bufio.NewWriterSize(f, 1<<20)})
	}
	return err
}

// resume opens the files of the open shard, without what was written after the state.
func (p *part) resume() error {
	if p.Open.Name == "" {
		return nil
	}
	lengths := []int64{data.ShardHeaderBytes + p.Open.Tokens*int64(p.width), p.Open.Documents * 8, p.Open.Tokens / 8}
	for i, suffix := range suffixes(p.kind) {
		info, err := os.Stat(p.path(suffix))
		if err != nil {
			return err
		}
		if info.Size() < lengths[i] {
			return badInput("%s has %d bytes, fewer than were written: remove %s and start again", p.path(suffix), info.Size(), p.dir)
		}
		f, err := disk.Open(p.path(suffix), os.O_WRONLY) // Windows truncates no file that is opened to append
		if err != nil {
			return err
		}
		if err := errors.Join(f.Truncate(lengths[i]), f.Close()); err != nil {
			return err
		}
		if err := p.openFile(suffix, os.O_WRONLY|os.O_APPEND); err != nil {
			return err
		}
	}
	return nil
}

// room makes room for a document of so many ids.
func (p *part) room(tokens int64) error {
	if p.Open.Tokens > 0 && p.Open.Tokens+tokens > p.most {
		return p.complete()
	}
	return nil
}

// write appends a document, or a part of one.
func (p *part) write(e *encoded, ids, mask []byte) error {
	if p.Open.Name == "" {
		if err := p.begin(); err != nil {
			return err
		}
	}
	if p.Open.Tokens+e.tokens > p.most {
		return badInput("a document has more than %d ids: split it", p.most)
	}
	if _, err := p.files[0].Write(ids); err != nil {
		return err
	}
	if len(p.files) > 2 {
		if err := p.writeMask(mask); err != nil {
			return err
		}
	}
	p.Open.Tokens += e.tokens
	p.Open.Bytes += e.bytes
	if e.more {
		return nil
	}
	p.Open.Documents++
	_, err := p.files[1].Write(binary.LittleEndian.AppendUint64(nil, uint64(p.Open.Tokens)))
	return err
}

func (p *part) writeMask(mask []byte) error {
	at := p.Open.Tokens
	for _, bit := range mask {
		p.Mask |= bit << (at % 8)
		if at++; at%8 == 0 {
			if err := p.files[2].WriteByte(p.Mask); err != nil {
				return err
			}
			p.Mask = 0
		}
	}
	return nil
}

// sync makes what is written of the open shard durable.
func (p *part) sync() error {
	for _, f := range p.files {
		if err := f.sync(); err != nil {
			return err
		}
	}
	return nil
}

// complete ends the open shard.
func (p *part) complete() error {
	if p.Open.Name == "" {
		return nil
	}
	if p.Open.Tokens%8 > 0 && len(p.files) > 2 {
		if err := p.files[2].WriteByte(p.Mask); err != nil {
			return err
		}
	}
	p.Mask = 0
	if err := p.sync(); err != nil {
		return err
	}
	header, err := disk.Open(p.path(binSuffix), os.O_WRONLY)
	if err != nil {
		return err
	}
	_, err = header.Write(data.ShardHeader(p.width, p.Open.Tokens))
	if err == nil {
		err = header.Sync()
	}
	if err = errors.Join(err, header.Close(), p.close()); err != nil {
		return err
	}
	if p.Open.SHA256, err = shardHash(p.dir, p.Open.Name, p.kind); err != nil {
		return err
	}
	p.Shards, p.Open = append(p.Shards, p.Open), data.PreparedShard{}
	return nil
}

// shardHash returns the hash of a shard's files, one after another.
func shardHash(dir, name, kind string) (string, error) {
	h := sha256.New()
	for _, suffix := range suffixes(kind) {
		f, err := os.Open(filepath.Join(dir, name+suffix))
		if err != nil {
			return "", err
		}
		_, err = io.Copy(h, f)
		if err = errors.Join(err, f.Close()); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// close closes the files, which stay as they are.
func (p *part) close() (err error) {
	for _, f := range p.files {
		err = errors.Join(err, f.file.Close())
	}
	p.files = nil
	return err
}

// total returns the ids, documents and bytes of the shards.
func total(shards []data.PreparedShard, part string) (sum data.PreparedShard) {
	for _, s := range shards {
		if s.Part() == part {
			sum.Tokens += s.Tokens
			sum.Documents += s.Documents
			sum.Bytes += s.Bytes
		}
	}
	return sum
}

// Total returns the ids, documents and bytes of a part, in a PreparedShard without a name.
func (r *Result) Total(part string) data.PreparedShard { return total(r.Shards, part) }
