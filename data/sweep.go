package data

// IgnoreTarget marks a target that is not predicted and does not count in the
// loss.
const IgnoreTarget int32 = -1

// Sweep goes through a validation stream in order: windows of seq tokens that do
// not overlap, where every token but the stream's first is a target exactly
// once. The last window is filled up with inputs 0 and targets IgnoreTarget. A
// Sweep is for one goroutine; ranks make one each and share the Tokens.
type Sweep struct {
	tokens Tokens
	seq    int
	window []int32
}

// NewSweep refuses a stream that does not fill one window.
func NewSweep(t Tokens, seq int) (*Sweep, error) {
	if err := checkWindow(t, seq, "validation", "raise data.val_bytes or give more text (a tenth of it is held out at most)"); err != nil {
		return nil, err
	}
	return &Sweep{tokens: t, seq: seq, window: make([]int32, seq+1)}, nil
}

// Rows is the number of windows.
func (s *Sweep) Rows() int64 { return (s.Targets() + int64(s.seq) - 1) / int64(s.seq) }

// Targets is the number of targets in all windows together.
func (s *Sweep) Targets() int64 { return s.tokens.Len() - 1 }

// Batch fills inputs and targets, [rows, seq] each, with the windows from first
// on, and returns how many targets count. Rows past the end are all padding, so
// the last batch may have the shape of the others.
func (s *Sweep) Batch(first int64, inputs, targets []int32) (valid int, err error) {
	rows, err := rowsOf(inputs, targets, s.seq)
	if err != nil {
		return 0, err
	}
	for row := range rows {
		start := (first + int64(row)) * int64(s.seq)
		n := int(max(0, min(int64(s.seq), s.Targets()-start)))
		in, out := inputs[row*s.seq:][:s.seq], targets[row*s.seq:][:s.seq]
		if n > 0 {
			if err := s.tokens.ReadTokens(s.window[:n+1], start); err != nil {
				return 0, err
			}
			copy(in, s.window[:n])
			copy(out, s.window[1:n+1])
		}
		clear(in[n:])
		for i := n; i < s.seq; i++ {
			out[i] = IgnoreTarget
		}
		valid += n
	}
	return valid, nil
}
