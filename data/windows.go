package data

// windows returns the rows of one stream, without end: windows of seq tokens, see Loader.
type windows struct {
	tokens Tokens
	mask   masked // nil: all tokens count in the loss
	seq    int
	seed   uint64
	at     Position
	count  int64 // windows per epoch

	// State of epoch at.Epoch:
	order  permutation
	offset int64

	window []int32 // seq+1 tokens
}

// masked is a stream of which some tokens do not count in the loss: see Options.Answers.
type masked interface {
	// ignore sets those of the targets to IgnoreTarget that do not count; they are the tokens
	// [at, at+len(targets)).
	ignore(targets []int32, at int64) error
}

func newWindows(t Tokens, seq int, seed uint64) (*windows, error) {
	if err := checkWindow(t, seq, "training", "give more text"); err != nil {
		return nil, err
	}
	mask, _ := t.(masked)
	w := &windows{tokens: t, mask: mask, seq: seq, seed: seed, count: max(1, t.Len()/int64(seq)-1), window: make([]int32, seq+1)}
	w.enter(0)
	return w, nil
}

// enter moves to the start of an epoch. The offset can have every value that leaves
// room for the windows, so that some epochs include each token.
func (w *windows) enter(epoch int64) {
	key := mix(w.seed, uint64(epoch))
	w.order = newPermutation(w.count, key) // uses mix(key, 0) to mix(key, feistelRounds-1)
	offsets := uint64(w.tokens.Len() - w.count*int64(w.seq))
	w.offset = int64(mix(key, feistelRounds) % offsets)
	w.at = Position{Epoch: epoch}
}

func (w *windows) next(inputs, targets []int32) error {
	start := w.offset + w.order.at(w.at.Index)*int64(w.seq)
	if err := w.tokens.ReadTokens(w.window, start); err != nil {
		return err
	}
	copy(inputs, w.window[:w.seq])
	copy(targets, w.window[1:])
	if w.mask != nil {
		if err := w.mask.ignore(targets, start+1); err != nil {
			return err
		}
	}
	return w.skip(1)
}

func (w *windows) skip(n int64) error {
	index := w.at.Index + n
	w.moveTo(Position{Epoch: w.at.Epoch + index/w.count, Index: index % w.count})
	return nil
}

func (w *windows) position() Position { return w.at }

func (w *windows) moveTo(p Position) {
	if p.Epoch != w.at.Epoch {
		w.enter(p.Epoch)
	}
	w.at = p
}

func (w *windows) perEpoch() (n int64, what string) { return w.count, "windows" }
