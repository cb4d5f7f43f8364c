package run

import (
	"testing"

	"github.com/stretchr/testify/require"

	"octet/train"
)

// A longer run's rate rises where a schedule falls, and is said to only where that is
// not what it would have done.
func TestRiseOfRate(t *testing.T) {
	o := train.Optimizer{LR: 1, MinLR: 0.1, Warmup: 0.1}
	for _, test := range []struct {
		schedule            string
		done, before, steps int
		want                *Rise
	}{
		{"wsd", 100, 100, 1000, &Rise{0.1, 1}},
		{"wsd", 50, 100, 1000, nil}, // it was not falling yet, and warms up again
		{"wsd", 50, 100, 200, nil},  // nor here
		{"constant", 100, 100, 200, nil},
		{"cosine", 100, 100, 100, nil}, // of the same length
		{"cosine", 5, 100, 60, nil},    // shorter, and warms up faster
		{"cosine", 60, 100, 80, nil},   // shorter
		{"cosine", 5, 100, 110, nil},   // it warms up
		{"cosine", 0, 100, 200, nil},   // nothing is done
		{"cosine", 100, 100, 101, nil}, // its last update has the least rate too
		{"cosine", 10, 100, 300, nil},  // a longer warm-up, at a lower rate
	} {
		o.Schedule = test.schedule
		require.Equal(t, test.want, riseOfRate(o, test.done, test.before, test.steps), test)
	}
	o.Schedule = "cosine"
	for _, done := range []int{50, 100} {
		r := riseOfRate(o, done, 100, 200)
		require.NotNil(t, r)
		require.Equal(t, Rise{o.LRAt(done-1, 100), o.LRAt(done, 200)}, *r)
		require.Greater(t, r.To, r.From)
	}
}
