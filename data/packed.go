package data

import (
	"fmt"
	"slices"
)

// packed returns rows of whole documents, without end. Each epoch visits the documents in a random
// order. A row has as many of the next ones as fit; a document longer than a row loses its end. What
// is left of the row is padding: inputs end, targets IgnoreTarget. Position.Index is the number of
// documents.
type packed struct {
	tokens documents
	mask   masked // nil: all tokens count in the loss
	seq    int
	seed   uint64
	end    int32 // the id that ends a document
	at     Position
	order  permutation // of epoch at.Epoch
	row    []int32
}

// documents is a stream that records where its documents begin and end.
type documents interface {
	Tokens
	// documents returns their number, document the tokens [from, to) of one.
	documents() int64
	document(i int64) (from, to int64, err error)
}

func newPacked(t documents, seq int, seed uint64, end int32) (*packed, error) {
	if seq <= 0 {
		return nil, fmt.Errorf("data: data.seq is %d, must be at least 1", seq)
	}
	mask, _ := t.(masked)
	p := &packed{tokens: t, mask: mask, seq: seq, seed: seed, end: end, row: make([]int32, seq+1)}
	p.enter(0)
	return p, nil
}

func (p *packed) enter(epoch int64) {
	p.order = newPermutation(p.tokens.documents(), mix(p.seed, uint64(epoch)))
	p.at = Position{Epoch: epoch}
}

func (p *packed) next(inputs, targets []int32) error {
	at := 0
	err := p.each(func(from, to int64) error {
		n, err := readDocument(p.tokens, p.mask, p.row, from, to, inputs[at:], targets[at:])
		at += n
		return err
	})
	pad(inputs[at:], targets[at:], p.end)
	return err
}

// readDocument fills inputs and targets with the tokens [from, to) of a document, which loses its end
// if it is longer than len(row)-1, and returns the number of inputs. The row is scratch memory.
func readDocument(tokens Tokens, mask masked, row []int32, from, to int64, inputs, targets []int32) (n int, err error) {
	whole := row[:min(int(to-from), len(row))] // of a document that is too long, the last token is a target only
	if err := tokens.ReadTokens(whole, from); err != nil {
		return 0, err
	}
	n = min(int(to-from), len(row)-1)
	copy(inputs, whole[:n])
	targets = targets[:n]
	copy(targets, whole[1:])
	if mask != nil {
		if err := mask.ignore(targets[:len(whole)-1], from+1); err != nil {
			return 0, err
		}
	}
	if len(whole) == n { // nothing follows the last token
		targets[n-1] = IgnoreTarget
	}
	return n, nil
}

// pad fills the rest of a row, whose targets do not count.
func pad(inputs, targets []int32, end int32) {
	for i := range inputs {
		inputs[i], targets[i] = end, IgnoreTarget
	}
}

func (p *packed) skip(n int64) error {
	for range n {
		if err := p.each(func(_, _ int64) error { return nil }); err != nil {
			return err
		}
	}
	return nil
}

// each calls visit for the documents of the next row and goes on to the row after it.
func (p *packed) each(visit func(from, to int64) error) error {
	for left := int64(p.seq); ; {
		from, to, err := p.tokens.document(p.order.at(p.at.Index))
		if err != nil {
			return err
		}
		n := min(to-from, int64(p.seq))
		if n > left {
			return nil
		}
		if err := visit(from, to); err != nil {
			return err
		}
		left -= n
		next := Position{Epoch: p.at.Epoch, Index: p.at.Index + 1}
		if next.Index == p.tokens.documents() {
			next = Position{Epoch: p.at.Epoch + 1}
		}
		p.moveTo(next)
	}
}

func (p *packed) position() Position { return p.at }

func (p *packed) moveTo(to Position) {
	if to.Epoch != p.at.Epoch {
		p.enter(to.Epoch)
	}
	p.at = to
}

func (p *packed) perEpoch() (n int64, what string) { return p.tokens.documents(), "documents" }

// Lengths is what rows of whole documents lose of training data.
type Lengths struct {
	Documents int64 // in the data
	Cut       int64 // longer than a row, of which they lose their end
	Silent    int64 // of which no target in the row counts in the loss: prompts that fill it
}

// Lengths reads the lengths of all documents of the training data for rows of seq tokens; ok is false
// for data that does not record where documents end.
func (c *Corpus) Lengths(seq int) (l Lengths, ok bool, err error) {
	d, ok := c.Train.(documents)
	if !ok {
		return l, false, nil
	}
	mask, _ := c.Train.(masked)
	var targets []int32
	for i := range d.documents() {
		from, to, err := d.document(i)
		if err != nil {
			return l, true, err
		}
		l.Documents++
		n := min(to-from-1, int64(seq)) // targets in the row
		if to-from > int64(seq) {
			l.Cut++
		}
		if mask == nil {
			continue
		}
		targets = append(targets[:0], make([]int32, n)...)
		if err := mask.ignore(targets, from+1); err != nil {
			return l, true, err
		}
		if !slices.Contains(targets, 0) {
			l.Silent++
		}
	}
	return l, true, nil
}
