package data

import (
	"errors"
	"fmt"
	"sort"
)

// Pairs reads the pairs of a preference set, a row each for the chosen and the rejected document:
// the document from its start, without its end if that does not fit, and padding with inputs end and
// targets IgnoreTarget. Targets of prompts are IgnoreTarget, too.
//
// Next returns the pairs shuffled, without end: each epoch visits them in a random order.
// Position.Index counts pairs. Batch returns them in the order of the folder. A Pairs serves one
// rank and is not safe for concurrent use. Ranks share the Tokens.
type Pairs struct {
	part   maskedPart
	seq    int
	end    int32
	n      int64 // pairs
	seed   uint64
	rank   int64
	ranks  int64
	at     Position
	order  permutation // of epoch at.Epoch
	last   []int64
	row    []int32
	result PairCounts
}

// PairCounts counts what Batch has read.
type PairCounts struct {
	Pairs int64
	Cut   int64 // pairs with a document that lost its end
	Empty int64 // pairs with a document without a target that counts
}

// Pairs returns the pairs of the training data, or, with val, of the validation data: those that
// are in it as a whole. The corpus must have been opened with Options.Answers. o.Packing is not used.
func (c *Corpus) Pairs(o LoaderOptions, val bool) (*Pairs, error) {
	if c.Documents != KindPreference {
		return nil, errors.New("data: the corpus has no pairs of chosen and rejected documents: prepare some with octet data prepare --kind preference")
	}
	tokens := c.Train
	if val {
		tokens = c.Val
	}
	part, ok := tokens.(maskedPart)
	switch {
	case !ok:
		return nil, errors.New("data: Options.Answers is not set, so prompts would count")
	case o.Seq <= 0:
		return nil, fmt.Errorf("data: data.seq is %d, must be at least 1", o.Seq)
	}
	p := &Pairs{
		part: part, seq: o.Seq, end: c.EndOfText, seed: o.Seed, rank: int64(o.Rank), ranks: int64(max(1, o.Ranks)),
		row: make([]int32, o.Seq+1),
	}
	var err error
	p.n = int64(sort.Search(int(part.documents()/2), func(i int) bool { // val_bytes may end inside a pair
		var to int64
		if err == nil {
			_, to, err = part.document(2*int64(i) + 1)
		}
		return to > part.Len()
	}))
	if err == nil && p.n > 0 {
		p.enter(0)
	}
	return p, err
}

// Len returns the number of pairs.
func (p *Pairs) Len() int64 { return p.n }

func (p *Pairs) enter(epoch int64) {
	p.order = newPermutation(p.n, mix(p.seed, uint64(epoch)))
	p.at = Position{Epoch: epoch}
}

// Next fills inputs and targets, [rows, seq] each, with this rank's next pairs and advances the
// position by the pairs of all ranks, as Loader.Next does. Rows 2k and 2k+1 are the chosen and the
// rejected document of pair Last()[k]. After an error the position is unchanged.
func (p *Pairs) Next(inputs, targets []int32) error {
	n, err := rowsOf(inputs, targets, 2*p.seq)
	if err != nil {
		return err
	}
	before := p.at
	p.last = p.last[:0]
	p.skip(p.rank * int64(n))
	for i := range n {
		pair := p.order.at(p.at.Index)
		if _, err := p.read(pair, i, inputs, targets); err != nil {
			p.moveTo(before)
			return err
		}
		p.last = append(p.last, pair)
		p.skip(1)
	}
	p.skip((p.ranks - 1 - p.rank) * int64(n))
	return nil
}

// Last returns the pairs that the last Next read. The next one overwrites them.
func (p *Pairs) Last() []int64 { return p.last }

// Batch fills inputs and targets, [rows, seq] each, with the pairs from index first on, and returns
// their number. Rows after the last pair are all padding.
func (p *Pairs) Batch(first int64, inputs, targets []int32) (n int, err error) {
	rows, err := rowsOf(inputs, targets, 2*p.seq)
	if err != nil {
		return 0, err
	}
	for i := range rows {
		if first+int64(i) >= p.n {
			pad(inputs[2*i*p.seq:], targets[2*i*p.seq:], p.end)
			break
		}
		cut, err := p.read(first+int64(i), i, inputs, targets)
		if err != nil {
			return 0, err
		}
		n++
		p.result.Pairs++
		if cut {
			p.result.Cut++
		}
		if !counts(targets[2*i*p.seq:][:p.seq]) || !counts(targets[(2*i+1)*p.seq:][:p.seq]) {
			p.result.Empty++
		}
	}
	return n, nil
}

// Counts returns what all calls of Batch have read.
func (p *Pairs) Counts() PairCounts { return p.result }

// read reads a pair into rows 2i and 2i+1.
func (p *Pairs) read(pair int64, i int, inputs, targets []int32) (cut bool, err error) {
	for k := range 2 {
		from, to, err := p.part.document(2*pair + int64(k))
		if err != nil {
			return false, err
		}
		at := (2*i + k) * p.seq
		in, out := inputs[at:][:p.seq], targets[at:][:p.seq]
		n, err := readDocument(p.part, p.part, p.row, from, to, in, out)
		if err != nil {
			return false, err
		}
		pad(in[n:], out[n:], p.end)
		cut = cut || to-from > int64(len(p.row))
	}
	return cut, nil
}

// counts reports whether a target counts in the loss.
func counts(targets []int32) bool {
	for _, id := range targets {
		if id != IgnoreTarget {
			return true
		}
	}
	return false
}

// Counted returns the number of targets of the next n rows, padding and prompts included.
func (p *Pairs) Counted(n int64) (int64, error) { return n * int64(p.seq), nil }

func (p *Pairs) skip(n int64) {
	index := p.at.Index + n
	p.moveTo(Position{Epoch: p.at.Epoch + index/p.n, Index: index % p.n})
}

func (p *Pairs) moveTo(to Position) {
	if to.Epoch != p.at.Epoch {
		p.enter(to.Epoch)
	}
	p.at = to
}

// Position returns the first pair of the next batch.
func (p *Pairs) Position() Position { return p.at }

// StorePosition sets p to Position.
func (p *Pairs) StorePosition(to *Position) { *to = p.at }

// Restore continues from a saved position; the zero value is the start.
func (p *Pairs) Restore(to Position) error {
	if to.Epoch < 0 || to.Epoch > maxEpoch || to.Index < 0 || to.Index >= p.n || len(to.Sources) > 0 {
		return fmt.Errorf("data: the saved position (epoch %d, index %d) does not exist: an epoch has %d pairs; the position belongs to another corpus", to.Epoch, to.Index, p.n)
	}
	p.moveTo(to)
	return nil
}
