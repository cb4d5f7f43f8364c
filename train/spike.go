package train

import (
	"math"
	"slices"
)

// Constants of spike detection, after Wortsman et al., arXiv 2304.13013. A loss is
// an outlier if it exceeds the mean of the last losses by more than spikeStds
// standard deviations. Two outliers within spikeSteps steps are a spike; a single
// one may be a hard batch. Mean and deviation are of the last spikeWindow losses; with
// fewer than spikeMin losses nothing is an outlier.
const (
	spikeStds   = 3.2
	spikeSteps  = 10
	spikeWindow = 128
	spikeMin    = 64
)

// Spike describes a spike of the loss.
type Spike struct {
	Begin     int     // first step of the spike; 0: no spike
	Mean, Std float64 // of the losses before the step that completes it
}

// spikes detects spikes of the loss. Its fields are saved, so that a resumed run
// detects the same spikes.
type spikes struct {
	Losses   []float64 `json:"losses"`   // finite losses of the last steps, oldest first
	Begin    int       `json:"begin"`    // step of the first outlier
	Last     int       `json:"last"`     // step of the last outlier; 0: none yet
	Reported bool      `json:"reported"` // whether this spike was reported; it is reported once
}

// observe takes the loss of a step, numbered from 1, and returns the spike that it
// completes: as the second outlier, or as a non-finite loss. During warm-up, where
// the loss falls steeply, only a non-finite loss counts.
func (s *spikes) observe(step int, loss float64, warmup int) (found Spike) {
	finite := !math.IsNaN(loss) && !math.IsInf(loss, 0)
	mean, std := meanStd(s.Losses)
	out := !finite || len(s.Losses) >= spikeMin && step > warmup && loss > mean+spikeStds*std
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

// meanStd returns the mean and standard deviation of x. The order of the sums is
// fixed, so that a resumed run gets the same bits, and each square is rounded
// before it is added, since compilers may fuse the two.
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
