package data

import "fmt"

// Loader hands out shuffled rows of a training stream, without end.
//
// Each epoch cuts the stream into the same number of windows of Seq tokens that
// do not overlap, starting at an offset of its own, so that windows do not
// repeat from epoch to epoch, and visits each window once, in an order of its
// own. What the offset leaves over at the two ends, less than two windows
// together, sits out this epoch. A row's targets are its inputs one token on.
//
// A Loader is one rank's view and for one goroutine; ranks share the Tokens.
type Loader struct {
	tokens Tokens
	o      LoaderOptions
	at     Position
	count  int64 // windows in an epoch

	// Of epoch at.Epoch:
	order  permutation
	offset int64

	window []int32 // seq+1 tokens
}

// LoaderOptions says which rows a Loader hands out. All ranks must have the
// same Seq, Seed and Ranks.
type LoaderOptions struct {
	Seq   int // tokens in a row
	Seed  uint64
	Rank  int // this one, in [0, Ranks)
	Ranks int // 0 means 1
}

// Position says how many rows of the global order have been handed out to all
// ranks together: whole epochs, and windows of the epoch under way. It is the
// same on every rank after the same number of batches, and means the same under
// another batch size or number of ranks.
type Position struct {
	Epoch int64 `json:"epoch"`
	Index int64 `json:"index"`
}

// NewLoader starts at the first row of the first epoch. A stream of less than
// one window and its last target is an error.
func NewLoader(t Tokens, o LoaderOptions) (*Loader, error) {
	if o.Ranks == 0 {
		o.Ranks = 1
	}
	if o.Rank < 0 || o.Rank >= o.Ranks {
		return nil, fmt.Errorf("data: rank %d of %d ranks: it must be between 0 and %d", o.Rank, o.Ranks, o.Ranks-1)
	}
	if err := checkWindow(t, o.Seq, "training", "give more text"); err != nil {
		return nil, err
	}
	l := &Loader{
		tokens: t,
		o:      o,
		count:  max(1, t.Len()/int64(o.Seq)-1),
		window: make([]int32, o.Seq+1),
	}
	l.enter(0)
	return l, nil
}

// checkWindow refuses a stream without room for one window and its targets.
func checkWindow(t Tokens, seq int, part, remedy string) error {
	if seq <= 0 {
		return fmt.Errorf("data: data.seq is %d: a window needs one token at least", seq)
	}
	if t.Len() <= int64(seq) {
		return fmt.Errorf("data: %d tokens are too few for %s: one window of data.seq=%d and its last target take %d; %s, or lower data.seq", t.Len(), part, seq, seq+1, remedy)
	}
	return nil
}

// enter prepares an epoch. The offset takes any value that leaves room for the
// windows, so that every token has its turn.
func (l *Loader) enter(epoch int64) {
	key := mix(l.o.Seed, uint64(epoch))
	l.order = newPermutation(l.count, key) // takes mix(key, 0) to mix(key, feistelRounds-1)
	offsets := uint64(l.tokens.Len() - l.count*int64(l.o.Seq))
	l.offset = int64(mix(key, feistelRounds) % offsets)
	l.at = Position{Epoch: epoch}
}

// Next fills inputs and targets, [rows, seq] each, with this rank's next rows
// and moves on by the rows of all ranks: rank 0 has the first rows of the global
// order, rank 1 those after them, and so on. A batch may reach into the next
// epoch. After an error the position is where it was.
func (l *Loader) Next(inputs, targets []int32) error {
	rows, err := rowsOf(inputs, targets, l.o.Seq)
	if err != nil {
		return err
	}
	before := l.at
	l.skip(int64(l.o.Rank) * int64(rows))
	for row := range rows {
		start := l.offset + l.order.at(l.at.Index)*int64(l.o.Seq)
		if err := l.tokens.ReadTokens(l.window, start); err != nil {
			l.moveTo(before)
			return err
		}
		copy(inputs[row*l.o.Seq:], l.window[:l.o.Seq])
		copy(targets[row*l.o.Seq:], l.window[1:])
		l.skip(1)
	}
	l.skip(int64(l.o.Ranks-1-l.o.Rank) * int64(rows))
	return nil
}

// rowsOf returns the number of rows in a batch.
func rowsOf(inputs, targets []int32, seq int) (int, error) {
	if len(inputs) == 0 || len(inputs) != len(targets) || len(inputs)%seq != 0 {
		return 0, fmt.Errorf("data: a batch of %d inputs and %d targets is not a number of rows of %d tokens", len(inputs), len(targets), seq)
	}
	return len(inputs) / seq, nil
}

// skip moves on by n rows.
func (l *Loader) skip(n int64) {
	index := l.at.Index + n
	l.moveTo(Position{l.at.Epoch + index/l.count, index % l.count})
}

func (l *Loader) moveTo(p Position) {
	if p.Epoch != l.at.Epoch {
		l.enter(p.Epoch)
	}
	l.at = p
}

// maxEpoch is the last epoch that a saved position may be in. No run gets there,
// and counting on from there does not overflow.
const maxEpoch = 1 << 62

// Position is where the next batch begins.
func (l *Loader) Position() Position { return l.at }

// Restore goes on from a saved position. One that this stream, cut into this
// Seq, does not have is an error.
func (l *Loader) Restore(p Position) error {
	if p.Epoch < 0 || p.Epoch > maxEpoch || p.Index < 0 || p.Index >= l.count {
		return fmt.Errorf("data: the position epoch %d, index %d does not exist: an epoch has %d windows; the saved position belongs to another corpus or data.seq", p.Epoch, p.Index, l.count)
	}
	l.moveTo(p)
	return nil
}
