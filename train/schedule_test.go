package train

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLRAt(t *testing.T) {
	o := Optimizer{LR: 1, MinLR: 0.1, Warmup: 0.1}
	for _, test := range []struct {
		schedule string
		done     int
		want     float64
	}{
		{"cosine", 0, 0.1}, // the first ten of 100 updates are warm-up
		{"cosine", 4, 0.5},
		{"cosine", 9, 1},
		{"cosine", 54, 0.55}, // half way down
		{"cosine", 99, 0.1},
		{"cosine", 500, 0.1},
		{"cosine", -1, 0.1},
		{"constant", 0, 0.1},
		{"constant", 10, 1},
		{"constant", 99, 1},
		{"wsd", 4, 0.5},
		{"wsd", 9, 1},
		{"wsd", 79, 1}, // the last twenty fall
		{"wsd", 80, 1 - 0.9/20},
		{"wsd", 89, 0.55},
		{"wsd", 99, 0.1},
	} {
		o.Schedule = test.schedule
		require.InDelta(t, test.want, o.LRAt(test.done, 100), 1e-15, "%s after %d", test.schedule, test.done)
	}
}

// For any warm-up and length: rates are within (0, LR], rise during warm-up, never
// rise after it, and are exact at its end and at the end of the run.
func TestLRAtShape(t *testing.T) {
	for _, schedule := range []string{"cosine", "wsd", "constant"} {
		for _, warmup := range []float64{0, 0.003, 0.05, 0.5, 0.9, 0.999, 1} {
			for _, steps := range []int{1, 2, 3, 7, 100, 401} {
				o := Optimizer{LR: 3e-3, MinLR: 3e-4, Warmup: warmup, Schedule: schedule}
				warm := int(math.Round(warmup * float64(steps)))
				previous := 0.0
				for done := range steps {
					lr := o.LRAt(done, steps)
					require.Greater(t, lr, 0.0, "%s %v %d/%d", schedule, warmup, done, steps)
					require.LessOrEqual(t, lr, o.LR)
					if done < warm {
						require.Greater(t, lr, previous)
					} else if done > warm {
						require.LessOrEqual(t, lr, previous)
					}
					previous = lr
				}
				switch {
				case warm >= steps, schedule == "constant":
					require.Equal(t, o.LR, previous)
				default:
					require.Equal(t, o.MinLR, previous)
				}
				if warm > 0 {
					require.Equal(t, o.LR, o.LRAt(warm-1, steps))
				}
			}
		}
	}
}
