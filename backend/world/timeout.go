package world

import (
	"fmt"
	"os"
	"time"
)

// TimeoutVariable names the environment variable of the timeout.
const TimeoutVariable = "OCTET_TIMEOUT"

// Timeout returns how long ranks wait while no rank runs an op, before all ranks end: the
// duration in the environment variable OCTET_TIMEOUT ("90s"), or ten minutes, which is also
// PyTorch's timeout for NCCL collectives. It does not limit the duration of a step.
func Timeout() (time.Duration, error) {
	text := os.Getenv(TimeoutVariable)
	if text == "" {
		return 10 * time.Minute, nil
	}
	limit, err := time.ParseDuration(text)
	if err != nil || limit <= 0 {
		return 0, fmt.Errorf("%s is %q: a duration such as 10m or 1h30m is needed", TimeoutVariable, text)
	}
	return limit, nil
}

// timingOf returns the intervals for a timeout.
func timingOf(timeout time.Duration) timing {
	const silence = 10 * time.Second
	beat := min(time.Second, max(timeout/10, time.Millisecond))
	return timing{beat: beat, silent: int(silence / beat), stall: max(1, int(timeout/beat))}
}
