package train

import (
	"math"
	"slices"
)

// What makes a loss stand out, after Wortsman et al., arXiv 2304.13013: by more
// than spikeStds standard deviations above the mean of the last steps, and
// again within spikeSteps steps, since one batch may well be hard. The
// statistics are those of up to spikeWindow losses; fewer than spikeLeast tell
// nothing.
const (
	spikeStds   = 3.2
	spikeSteps  = 10
	spikeWindow = 128
	spikeLeast  = 64
)

// Spike is a loss that left what was usual.
type Spike struct {
	Begin     int     // its first step; 0: there is none
	Mean, Std float64 // of the losses before the step that was reported
}

// spikes finds them in a run's losses. Its fields are what a resumed run needs
// to find the same ones.
type spikes struct {
	Losses   []float64 `json:"losses"`   // of the last steps, oldest first; finite
	Begin    int       `json:"begin"`    // the first step that stood out
	Last     int       `json:"last"`     // the last one, fewer than spikeSteps after another; 0: none yet
	Reported bool      `json:"reported"` // as one spike, however long it lasts
}

// observe takes the loss of a step, 1 for the first, and returns the spike that
// it completes: by standing out for the second time, or by not being finite.
// Within the warm-up, where the loss falls steeply, only the latter counts.
func (s *spikes) observe(step int, loss float64, warmup int) (found Spike) {
	finite := !math.IsNaN(loss) && !math.IsInf(loss, 0)
	mean, std := meanStd(s.Losses)
	out := !finite || len(s.Losses) >= spikeLeast && step > warmup && loss > mean+spikeStds*std
	if finite {
		s.push(loss)
	}
	if !out {
		return Spike{}
	}
	again := s.Last > 0 && step-s.Last < spikeSteps
	if !again {
		s.Begin, s.Reported = step, false
	}
	s.Last = step
	if s.Reported || finite && !again {
		return Spike{}
	}
	s.Reported = true
	return Spike{Begin: s.Begin, Mean: mean, Std: std}
}

func (s *spikes) push(loss float64) {
	if cap(s.Losses) < spikeWindow {
		s.Losses = slices.Grow(s.Losses, spikeWindow-len(s.Losses))
	}
	if len(s.Losses) >= spikeWindow {
		s.Losses = s.Losses[:copy(s.Losses, s.Losses[len(s.Losses)-spikeWindow+1:])]
	}
	s.Losses = append(s.Losses, loss)
}

func (s *spikes) clone() spikes {
	c := *s
	c.Losses = slices.Clone(s.Losses)
	return c
}

// meanStd is summed in the order of the losses, so that a resumed run finds the
// same bits; each product is rounded before it is added, since compilers may
// fuse the two.
func meanStd(x []float64) (mean, std float64) {
	if len(x) == 0 {
		return 0, 0
	}
	for _, v := range x {
		mean += v
	}
	mean /= float64(len(x))
	for _, v := range x {
		std += float64((v - mean) * (v - mean))
	}
	return mean, math.Sqrt(std / float64(len(x)))
}
