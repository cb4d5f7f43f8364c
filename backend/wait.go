package backend

import (
	"fmt"
	"os"
	"time"
)

// WaitLimit returns how long a rank waits for its device, and thus for the other ranks,
// before it stops all ranks: the duration in an environment variable ("90s"), or ten
// minutes. A wait is for one step at most, which takes seconds. Ten minutes is also
// PyTorch's timeout for NCCL collectives.
func WaitLimit(variable string) (time.Duration, error) {
	text := os.Getenv(variable)
	if text == "" {
		return 10 * time.Minute, nil
	}
	limit, err := time.ParseDuration(text)
	if err != nil || limit <= 0 {
		return 0, fmt.Errorf("%s is %q: a duration such as 10m or 1h30m is needed", variable, text)
	}
	return limit, nil
}
