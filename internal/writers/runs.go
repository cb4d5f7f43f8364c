package writers

import (
	"fmt"
	"strings"
	"time"
)

// Runs holds the values of several runs that the status line shows.
type Runs struct {
	Ended, Running, All int
	Steps, AllSteps     int            // of all runs
	ETA                 *time.Duration // nil: unknown
}

func (r Runs) fields() []string {
	eta := "-:--"
	if r.ETA != nil {
		eta = Clock(*r.ETA)
	}
	return []string{
		fmt.Sprintf("%d of %d runs", r.Ended, r.All),
		fmt.Sprintf("%d running", r.Running),
		fmt.Sprintf("step %s of %s", Count(int64(r.Steps)), Count(int64(r.AllSteps))),
		"ETA " + eta,
	}
}

// String returns the whole line.
func (r Runs) String() string { return strings.Join(r.fields(), "  ") }

func (r Runs) fit(columns int) string { return fit(r.fields(), columns) }

func (r Runs) done() bool { return r.Ended == r.All }
