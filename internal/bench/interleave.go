package bench

import (
	"math"
	"slices"
	"time"
)

// burst takes one measurement and returns seconds or a rate.
type burst func() (float64, error)

const (
	// minBursts is the smallest number of samples for a median.
	minBursts = 3
	// burstSeconds is the shortest duration of a burst, long enough for the resolution of
	// the clock and the wake-up of worker threads not to matter.
	burstSeconds = 0.01
)

// rate returns a burst of a meter, which cannot fail: the mean of as many rates as take
// burstSeconds. It is as long as a burst of the work, and thus interrupted as often.
func rate(f func() float64) burst {
	return func() (float64, error) {
		sum, n, start := 0.0, 0, time.Now()
		for n == 0 || time.Since(start).Seconds() < burstSeconds {
			sum += f()
			n++
		}
		return sum / float64(n), nil
	}
}

// interleave runs the bursts in turn until the seconds are over, and returns the samples of
// each. Samples with the same index were taken in the same round.
func interleave(seconds float64, bursts ...burst) ([][]float64, error) {
	samples := make([][]float64, len(bursts))
	start := time.Now()
	for n := 0; n < minBursts || time.Since(start).Seconds() < seconds; n++ {
		for i, b := range bursts {
			x, err := b()
			if err != nil {
				return nil, err
			}
			samples[i] = append(samples[i], x)
		}
	}
	return samples, nil
}

// repeated returns a burst of work, after two executions to warm up. The burst executes the
// work as often as fits burstSeconds, calls wait, which returns when all work is done, and
// returns the seconds of one execution.
func repeated(work, wait func() error) (burst, error) {
	times := func(n int) (float64, error) {
		start := time.Now()
		for range n {
			if err := work(); err != nil {
				return 0, err
			}
		}
		err := wait()
		return time.Since(start).Seconds(), err
	}
	if _, err := times(1); err != nil {
		return nil, err
	}
	once, err := times(1)
	if err != nil {
		return nil, err
	}
	n := int(math.Ceil(burstSeconds / max(once, 1e-7)))
	return func() (float64, error) {
		s, err := times(n)
		return s / float64(n), err
	}, nil
}

// median returns the median, the lower one of an even number of samples.
func median(samples []float64) float64 {
	return slices.Sorted(slices.Values(samples))[(len(samples)-1)/2]
}

// ratio returns the median of a over b, sample by sample.
func ratio(a, b []float64) float64 {
	list := make([]float64, len(a))
	for i := range list {
		list[i] = a[i] / b[i]
	}
	return median(list)
}
