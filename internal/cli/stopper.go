package cli

import (
	"strings"
)

// stopper passes text on in whole characters, up to the first of its stop texts.
type stopper struct {
	stops []string
	to    func(part []byte)
	held  []byte // what may begin a stop text, or an incomplete character
	done  bool
}

// write takes more of the text, and reports whether it goes on.
func (s *stopper) write(part []byte) bool {
	if s.done {
		return false
	}
	s.held = append(s.held, part...)
	text := string(s.held)
	end, hold := len(text), 0
	for _, stop := range s.stops {
		if i := strings.Index(text, stop); i >= 0 && i < end {
			end, s.done = i, true
		}
		for n := min(len(stop)-1, len(text)); n > hold; n-- {
			if strings.HasSuffix(text, stop[:n]) {
				hold = n
			}
		}
	}
	if !s.done {
		end -= max(hold, incomplete(s.held))
	}
	if end > 0 {
		s.to(s.held[:end])
	}
	s.held = append(s.held[:0], s.held[end:]...)
	return !s.done
}

// flush passes on what is left.
func (s *stopper) flush() {
	if !s.done && len(s.held) > 0 {
		s.to(s.held)
	}
	s.held = nil
}
