package bench

import (
	"math"
	"slices"
	"time"
)

// burst measures once and returns seconds or a rate.
type burst func() (float64, error)

const (
	// minBursts is the least number of samples with a median worth the name.
	minBursts = 3
	// burstSeconds is how long a burst of short work lasts at least: the clock
	// and the wake-up of workers must not count.
	burstSeconds = 0.01
)

// rate is a burst of a meter, which cannot fail: the mean of as many of its own
// as take burstSeconds, so that it is interrupted as often as the work is.
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

// inTurns runs one burst of each after the other until the seconds are over,
// and returns what each measured. Samples of one index were taken together.
func inTurns(seconds float64, bursts ...burst) ([][]float64, error) {
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

// repeated makes a burst of some work: as many runs as take burstSeconds, after
// two that warm up. wait returns when all of them are done. It measures the
// seconds of one.
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

// median is the lower of the two in the middle of an even number.
func median(samples []float64) float64 {
	return slices.Sorted(slices.Values(samples))[(len(samples)-1)/2]
}

// ratio is the median of a over b, of samples that were taken together.
func ratio(a, b []float64) float64 {
	list := make([]float64, len(a))
	for i := range list {
		list[i] = a[i] / b[i]
	}
	return median(list)
}
