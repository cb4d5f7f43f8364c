package data

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

// separator stands between two files of a stream. Text does not hold the byte,
// so a model can learn it as the end of a file.
const separator = 0x00

// pathHash places a file in the hold-out order: the first eight bytes of the
// SHA-256 of its path, big-endian. It depends on nothing but the path, so a file
// stays on its side of the split when others come and go.
func pathHash(f *file) uint64 {
	sum := sha256.Sum256([]byte(f.path))
	return binary.BigEndian.Uint64(sum[:])
}

// byPathHash returns the files in hold-out order.
func byPathHash(files []*file) []*file {
	return slices.SortedStableFunc(slices.Values(files), func(a, b *file) int {
		return cmp.Compare(pathHash(a), pathHash(b))
	})
}

// holdOutBytes holds out a tenth of the bytes, at most limit, as OpenFiles says.
func holdOutBytes(files []*file, limit int64) {
	var total int64
	for _, f := range files {
		total += f.size
	}
	left := min(total/10, limit)
	for _, f := range byPathHash(files) {
		f.held = min(f.size, left)
		left -= f.held
	}
}

// holdOutFiles holds out whole files, about a tenth of them, as OpenGoSource
// says.
func holdOutFiles(files []*file) {
	for _, f := range files {
		if pathHash(f) < math.MaxUint64/10 {
			f.held = f.size
		}
	}
}

// readText reads the files and splits them as their held fields say. The
// validation stream follows the hold-out order and is cut to o.ValBytes.
func readText(files []*file, info Info, o Options) (*Corpus, error) {
	if o.Vocab != 0 && o.Vocab < TextVocab {
		return nil, fmt.Errorf("data: a vocabulary of %d cannot hold the bytes of text: model.vocab must be %d at least", o.Vocab, TextVocab)
	}
	capacity := int64(len(files))
	for _, f := range files {
		capacity += f.size
	}
	train := make([]byte, 0, capacity)
	tails := make(map[*file][]byte)
	hash := newCorpusHash()
	for _, f := range files {
		start := len(train)
		if start > 0 {
			train = append(train, separator)
		}
		content := train[len(train) : len(train)+int(f.size)]
		if err := readWhole(f, content); err != nil {
			return nil, err
		}
		hash.begin(f.path, f.size)
		hash.Write(content)
		head, tail := content[:f.size-f.held], content[f.size-f.held:]
		if len(tail) > 0 {
			tails[f] = bytes.Clone(tail)
		}
		train = train[:len(train)+len(head)]
		if len(head) == 0 {
			train = train[:start] // held out whole: nothing to separate
		}
		info.Files = append(info.Files, File{Path: f.path, Bytes: f.size, HeldOut: f.held})
	}
	var held [][]byte
	for _, f := range byPathHash(files) {
		if tail, ok := tails[f]; ok {
			held = append(held, tail)
		}
	}
	val := bytes.Join(held, []byte{separator})
	val = bytes.Clone(val[:min(int64(len(val)), o.ValBytes)])

	info.SHA256 = hash.String()
	info.Vocab = TextVocab
	info.TrainTokens, info.ValTokens = int64(len(train)), int64(len(val))
	return &Corpus{Train: Text(train), Val: Text(val), Info: info}, nil
}

// holdsZero reads a file up to its first zero byte.
func holdsZero(f *file) (bool, error) {
	r, err := f.fsys.Open(f.path)
	if err != nil {
		return false, unreadable(f.String(), err)
	}
	defer r.Close()
	for buf := make([]byte, min(f.size, 64<<10)); ; {
		n, err := r.Read(buf)
		switch {
		case bytes.IndexByte(buf[:n], separator) >= 0:
			return true, nil
		case errors.Is(err, io.EOF):
			return false, nil
		case err != nil:
			return false, unreadable(f.String(), err)
		}
	}
}

// readWhole fills content, which has the size that the file had when it was
// found.
func readWhole(f *file, content []byte) error {
	r, err := f.fsys.Open(f.path)
	if err != nil {
		return unreadable(f.String(), err)
	}
	defer r.Close()
	_, err = io.ReadFull(r, content)
	changed := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	if err == nil {
		var more int
		more, err = r.Read(make([]byte, 1))
		changed = more > 0
		if errors.Is(err, io.EOF) {
			err = nil
		}
	}
	if changed {
		return fmt.Errorf("data: %q changed while it was read: start again when nothing writes to it", f)
	}
	if err != nil {
		return unreadable(f.String(), err)
	}
	if i := bytes.IndexByte(content, separator); i >= 0 {
		return fmt.Errorf("data: %q holds a zero byte at offset %d: text has none, so leave a binary file out and convert UTF-16 to UTF-8", f, i)
	}
	return nil
}
