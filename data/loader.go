package data

import "fmt"

// Loader returns shuffled rows of a training stream, without end.
//
// Each epoch splits the stream into the same number of non-overlapping windows of
// Seq tokens and visits each once, in a random order. Each epoch also has a random
// start offset, so that windows differ between epochs. The tokens before the first
// and after the last window, less than two windows in total, are not used in that
// epoch. The targets of a row are its inputs shifted by one token.
//
// A Loader serves one rank and is not safe for concurrent use. Ranks share the Tokens.
type Loader struct {
	tokens Tokens
	o      LoaderOptions
	at     Position
	count  int64 // windows per epoch

	// State of epoch at.Epoch:
	order  permutation
	offset int64

	window []int32 // seq+1 tokens
}

// LoaderOptions are the parameters of a Loader. All ranks must have the same Seq,
// Seed and Ranks.
type LoaderOptions struct {
	Seq   int // tokens per row
	Seed  uint64
	Rank  int // in [0, Ranks)
	Ranks int // 0 means 1
}

// Position is the number of rows of the global order that all ranks together have
// read: complete epochs, and windows (Index) of the current epoch. After the same
// number of batches it is the same on every rank. It remains valid with another
// batch size or number of ranks.
type Position struct {
	Epoch int64 `json:"epoch"`
	Index int64 `json:"index"`
}

// NewLoader returns a Loader at the first row of the first epoch. A stream shorter
// than one window and its last target is an error.
func NewLoader(t Tokens, o LoaderOptions) (*Loader, error) {
	if o.Ranks == 0 {
		o.Ranks = 1
	}
	if o.Rank < 0 || o.Rank >= o.Ranks {
		return nil, fmt.Errorf("data: rank %d of %d ranks: the rank must be between 0 and %d", o.Rank, o.Ranks, o.Ranks-1)
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

// enter moves to the start of an epoch. The offset can have every value that leaves
// room for the windows, so that some epochs include each token.
func (l *Loader) enter(epoch int64) {
	key := mix(l.o.Seed, uint64(epoch))
	l.order = newPermutation(l.count, key) // uses mix(key, 0) to mix(key, feistelRounds-1)
	offsets := uint64(l.tokens.Len() - l.count*int64(l.o.Seq))
	l.offset = int64(mix(key, feistelRounds) % offsets)
	l.at = Position{Epoch: epoch}
}

// Next fills inputs and targets, [rows, seq] each, with this rank's next rows and
// advances the position by the rows of all ranks. Rank 0 gets the first rows of the
// global order, rank 1 the following ones, and so on. A batch can extend into the
// next epoch. After an error the position is unchanged.
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
		return 0, fmt.Errorf("data: a batch of %d inputs and %d targets does not consist of rows of %d tokens", len(inputs), len(targets), seq)
	}
	return len(inputs) / seq, nil
}

// skip advances the position by n rows.
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

// maxEpoch is the maximum epoch of a saved position. No run reaches it, and counting
// further does not overflow.
const maxEpoch = 1 << 62

// Position returns the start of the next batch.
func (l *Loader) Position() Position { return l.at }

// Restore continues from a saved position. A position that does not exist in this
// stream with this Seq is an error.
func (l *Loader) Restore(p Position) error {
	if p.Epoch < 0 || p.Epoch > maxEpoch || p.Index < 0 || p.Index >= l.count {
		return fmt.Errorf("data: the saved position (epoch %d, index %d) does not exist: an epoch has %d windows; the position belongs to another corpus or data.seq", p.Epoch, p.Index, l.count)
	}
	l.moveTo(p)
	return nil
}
