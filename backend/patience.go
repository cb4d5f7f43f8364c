package backend

import (
	"fmt"
	"os"
	"time"
)

// Patience is how long a rank waits for its device, and so for the other ranks, before
// it ends them all: the duration that an environment variable gives ("90s"), or ten
// minutes. A wait is for one step at most, which takes seconds; ten minutes are also
// what PyTorch gives to collectives of NCCL.
func Patience(variable string) (time.Duration, error) {
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
