package data

import "errors"

// IgnoreTarget marks a target that does not count in the loss.
const IgnoreTarget int32 = -1

// Sweep reads a validation stream in order, in non-overlapping windows of seq
// tokens. Every token except the stream's first is a target exactly once. The last
// window is padded with inputs 0 and targets IgnoreTarget. A Sweep is not safe for
// concurrent use; each rank creates its own and shares the Tokens.
type Sweep struct {
	tokens Tokens
	mask   masked // nil: all tokens count in the loss
	seq    int
	window []int32
	counts int64 // targets that count
}

// NewSweep returns a Sweep of t. A stream shorter than one window and its last target
// is an error.
func NewSweep(t Tokens, seq int) (*Sweep, error) {
	if err := checkWindow(t, seq, "validation", "raise data.val_bytes or give more text (at most a tenth of it is held out)"); err != nil {
		return nil, err
	}
	mask, _ := t.(masked)
	s := &Sweep{tokens: t, mask: mask, seq: seq, window: make([]int32, seq+1), counts: t.Len() - 1}
	if mask == nil {
		return s, nil
	}
	part := make([]int32, min(1<<16, s.counts))
	for at := int64(1); at < t.Len(); at += int64(len(part)) {
		part = part[:min(int64(len(part)), t.Len()-at)]
		clear(part)
		if err := mask.ignore(part, at); err != nil {
			return nil, err
		}
		for _, id := range part {
			if id == IgnoreTarget {
				s.counts--
			}
		}
	}
	if s.counts == 0 {
		return nil, errors.New("data: no token of the validation data counts in the loss: it has prompts alone; use data.loss=all")
	}
	return s, nil
}

// Rows returns the number of windows.
func (s *Sweep) Rows() int64 { return (s.tokens.Len() - 1 + int64(s.seq) - 1) / int64(s.seq) }

// Targets returns the number of targets in all windows that count: all but padding and, where the
// stream leaves them out, prompts.
func (s *Sweep) Targets() int64 { return s.counts }

// Batch fills inputs and targets, [rows, seq] each, with the windows from index first
// on, and returns the number of targets that count. Rows after the last window
// are all padding, so that the last batch can have the same shape as the others.
func (s *Sweep) Batch(first int64, inputs, targets []int32) (valid int, err error) {
	rows, err := rowsOf(inputs, targets, s.seq)
	if err != nil {
		return 0, err
	}
	for row := range rows {
		start := (first + int64(row)) * int64(s.seq)
		n := int(max(0, min(int64(s.seq), s.tokens.Len()-1-start)))
		in, out := inputs[row*s.seq:][:s.seq], targets[row*s.seq:][:s.seq]
		if n > 0 {
			if err := s.tokens.ReadTokens(s.window[:n+1], start); err != nil {
				return 0, err
			}
			copy(in, s.window[:n])
			copy(out, s.window[1:n+1])
			if s.mask != nil {
				if err := s.mask.ignore(out[:n], start+1); err != nil {
					return 0, err
				}
			}
		}
		clear(in[n:])
		for i := n; i < s.seq; i++ {
			out[i] = IgnoreTarget
		}
		for _, id := range out[:n] {
			if id != IgnoreTarget {
				valid++
			}
		}
	}
	return valid, nil
}
