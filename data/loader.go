package data

import (
	"errors"
	"fmt"
)

// Loader returns shuffled rows of training data, without end.
//
// Each epoch splits the stream into the same number of non-overlapping windows of
// Seq tokens and visits each once, in a random order. Each epoch also has a random
// start offset, so that windows differ between epochs. The tokens before the first
// and after the last window, less than two windows in total, are not used in that
// epoch. The targets of a row are its inputs shifted by one token.
//
// With LoaderOptions.Packing the rows are whole documents instead, with padding at their end. A corpus of
// several sources gives each row from one of them, drawn at random with their weights.
//
// A Loader serves one rank and is not safe for concurrent use. Ranks share the Tokens.
type Loader struct {
	o       LoaderOptions
	sources []rows
	mixture mixture
	row     int64 // rows that all ranks have read
	before  Position
	ignores bool // targets may be IgnoreTarget

	inputs, targets []int32 // of a row, for Counted
}

// rows returns the rows of one source, without end. After an error its position is undefined.
type rows interface {
	// next fills inputs and targets, [seq] each, with the next row.
	next(inputs, targets []int32) error
	skip(n int64) error
	position() Position
	moveTo(Position)
	// perEpoch returns the limit of Position.Index and what it counts.
	perEpoch() (n int64, what string)
}

// LoaderOptions are the parameters of a Loader. All ranks must have the same Seq,
// Seed, Packing and Ranks.
type LoaderOptions struct {
	Seq   int // tokens per row
	Seed  uint64
	Rank  int // in [0, Ranks)
	Ranks int // 0 means 1
	// Packing makes rows of whole documents. It needs data that records where they end.
	Packing bool
}

// Position is the number of rows of the global order that all ranks together have
// read: complete epochs, and windows (Index) of the current epoch. After the same
// number of batches it is the same on every rank. It remains valid with another
// batch size or number of ranks.
//
// With Packing, Index counts documents. With several sources it counts all rows, and
// Sources has the position in each.
type Position struct {
	Epoch   int64      `json:"epoch"`
	Index   int64      `json:"index"`
	Sources []Position `json:"sources,omitempty"`
}

// NewLoader returns a Loader of one stream at the first row of the first epoch. A stream shorter
// than one window and its last target is an error.
func NewLoader(t Tokens, o LoaderOptions) (*Loader, error) {
	return (&Corpus{Train: t}).Loader(o)
}

// Loader returns a Loader of the training data, at the first row.
func (c *Corpus) Loader(o LoaderOptions) (*Loader, error) {
	if o.Ranks == 0 {
		o.Ranks = 1
	}
	if o.Rank < 0 || o.Rank >= o.Ranks {
		return nil, fmt.Errorf("data: rank %d of %d ranks: the rank must be between 0 and %d", o.Rank, o.Ranks, o.Ranks-1)
	}
	l := &Loader{o: o, ignores: o.Packing}
	if len(c.Sources) == 0 {
		_, masks := c.Train.(masked)
		l.ignores = l.ignores || masks
		r, err := c.rows(c.Train, o, o.Seed)
		l.sources = []rows{r}
		return l, err
	}
	for i, s := range c.Sources {
		r, err := c.rows(s.Train, o, mix(o.Seed, uint64(i)))
		if err != nil {
			return nil, fmt.Errorf("source %q: %w", s.Path, err)
		}
		_, masks := s.Train.(masked)
		l.ignores = l.ignores || masks
		l.sources = append(l.sources, r)
		l.mixture.add(s.Weight)
	}
	l.mixture.seed = o.Seed
	return l, nil
}

// rows returns the rows of a stream.
func (c *Corpus) rows(t Tokens, o LoaderOptions, seed uint64) (rows, error) {
	if o.Packing {
		d, ok := t.(documents)
		if !ok {
			return nil, errors.New("data: data.packing=documents needs data that records where documents end: prepare it with octet data prepare")
		}
		return newPacked(d, o.Seq, seed, c.EndOfText)
	}
	return newWindows(t, o.Seq, seed)
}

// checkWindow returns an error if the stream is too short for one window and its
// targets. part and remedy are parts of the message.
func checkWindow(t Tokens, seq int, part, remedy string) error {
	if seq <= 0 {
		return fmt.Errorf("data: data.seq is %d, must be at least 1", seq)
	}
	if t.Len() <= int64(seq) {
		return fmt.Errorf("data: %d tokens are too few for %s: one window of data.seq=%d and its last target need %d; %s, or lower data.seq", t.Len(), part, seq, seq+1, remedy)
	}
	return nil
}

// Next fills inputs and targets, [rows, seq] each, with this rank's next rows and
// advances the position by the rows of all ranks. Rank 0 gets the first rows of the
// global order, rank 1 the following ones, and so on. A batch can extend into the
// next epoch. After an error the position is unchanged.
func (l *Loader) Next(inputs, targets []int32) error {
	n, err := rowsOf(inputs, targets, l.o.Seq)
	if err != nil {
		return err
	}
	l.StorePosition(&l.before)
	if err := l.read(n, inputs, targets); err != nil {
		l.moveTo(l.before)
		return err
	}
	return nil
}

// read reads n rows of this rank, between those of the others.
func (l *Loader) read(n int, inputs, targets []int32) error {
	if err := l.skip(int64(l.o.Rank) * int64(n)); err != nil {
		return err
	}
	for i := range n {
		at, seq := i*l.o.Seq, l.o.Seq
		if err := l.source().next(inputs[at:][:seq], targets[at:][:seq]); err != nil {
			return err
		}
		l.row++
	}
	return l.skip(int64(l.o.Ranks-1-l.o.Rank) * int64(n))
}

// Counted returns how many targets of the next n rows of the global order, those of all ranks,
// count in the loss: are not IgnoreTarget. The position stays. With Packing, or of data that leaves
// prompts out, it reads these rows, so a rank reads the rows of all ranks.
func (l *Loader) Counted(n int64) (counted int64, err error) {
	if !l.ignores {
		return n * int64(l.o.Seq), nil
	}
	if l.inputs == nil {
		l.inputs, l.targets = make([]int32, l.o.Seq), make([]int32, l.o.Seq)
	}
	l.StorePosition(&l.before)
	defer func() { l.moveTo(l.before) }()
	for range n {
		if err := l.source().next(l.inputs, l.targets); err != nil {
			return 0, err
		}
		l.row++
		for _, target := range l.targets {
			if target != IgnoreTarget {
				counted++
			}
		}
	}
	return counted, nil
}

// source returns the source of the next row.
func (l *Loader) source() rows {
	if len(l.sources) == 1 {
		return l.sources[0]
	}
	return l.sources[l.mixture.at(l.row)]
}

// rowsOf returns the number of rows in a batch.
func rowsOf(inputs, targets []int32, seq int) (int, error) {
	if len(inputs) == 0 || len(inputs) != len(targets) || len(inputs)%seq != 0 {
		return 0, fmt.Errorf("data: a batch of %d inputs and %d targets does not consist of rows of %d tokens", len(inputs), len(targets), seq)
	}
	return len(inputs) / seq, nil
}

// skip goes on by n rows.
func (l *Loader) skip(n int64) error {
	if len(l.sources) == 1 {
		return l.sources[0].skip(n)
	}
	for range n {
		if err := l.source().skip(1); err != nil {
			return err
		}
		l.row++
	}
	return nil
}

// StorePosition sets p to Position, in the memory of p.
func (l *Loader) StorePosition(p *Position) {
	if len(l.sources) == 1 {
		*p = l.sources[0].position()
		return
	}
	*p = Position{Index: l.row, Sources: p.Sources[:0]}
	for _, s := range l.sources {
		p.Sources = append(p.Sources, s.position())
	}
}

func (l *Loader) moveTo(p Position) {
	if len(l.sources) == 1 {
		l.sources[0].moveTo(p)
		return
	}
	l.row = p.Index
	for i, s := range l.sources {
		s.moveTo(p.Sources[i])
	}
}

// maxEpoch is the maximum epoch of a saved position. No run reaches it, and counting
// further does not overflow.
const maxEpoch = 1 << 62

// Position returns the start of the next batch.
func (l *Loader) Position() (p Position) {
	l.StorePosition(&p)
	return p
}

// Restore continues from a saved position; the zero value is the start. A position that does not exist in this
// data with these options is an error.
func (l *Loader) Restore(p Position) error {
	if len(l.sources) > 1 && p.Epoch == 0 && p.Index == 0 && p.Sources == nil { // the start
		p.Sources = make([]Position, len(l.sources))
	}
	list := []Position{p}
	if len(l.sources) > 1 {
		list = p.Sources
	}
	if len(list) != len(l.sources) || len(l.sources) == 1 && len(p.Sources) > 0 {
		return fmt.Errorf("data: the saved position has %d sources, but the data %d: it belongs to another corpus", max(1, len(p.Sources)), len(l.sources))
	}
	for i, s := range l.sources {
		n, what := s.perEpoch()
		if at := list[i]; at.Epoch < 0 || at.Epoch > maxEpoch || at.Index < 0 || at.Index >= n {
			return fmt.Errorf("data: the saved position (epoch %d, index %d) does not exist: an epoch has %d %s; the position belongs to another corpus or data.seq", at.Epoch, at.Index, n, what)
		}
	}
	if p.Index < 0 {
		return fmt.Errorf("data: the saved position %d is negative", p.Index)
	}
	l.moveTo(p)
	return nil
}
