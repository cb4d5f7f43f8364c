package backend

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// traceEvent is a complete event of the trace event format, which
// chrome://tracing and Perfetto read. Times are microseconds.
type traceEvent struct {
	Name     string    `json:"name"`
	Category string    `json:"cat"`
	Phase    string    `json:"ph"`
	Start    float64   `json:"ts"`
	Duration float64   `json:"dur"`
	Process  int       `json:"pid"`
	Thread   int       `json:"tid"`
	Args     traceArgs `json:"args"`
}

type traceArgs struct {
	Path    string `json:"path"` // of the module
	Program string `json:"program"`
	FLOPs   int64  `json:"flops"`
	Bytes   int64  `json:"bytes"`
}

// WriteTrace writes each run of a node as one event, in the order of time. The event's
// name is OpKind, its category the phase, its thread the queue.
func (p *Profile) WriteTrace(w io.Writer) error {
	b := bufio.NewWriter(w)
	separator := `{"displayTimeUnit":"ms","traceEvents":[` + "\n"
	for _, e := range p.events {
		c := e.node.Cost()
		line, err := json.Marshal(traceEvent{
			Name: OpKind(e.node), Category: e.node.Phase.String(), Phase: "X",
			Start: microseconds(e.start), Duration: microseconds(e.end - e.start),
			Thread: int(e.node.Queue),
			Args:   traceArgs{Path: e.node.Scope, Program: e.program, FLOPs: c.FLOPs, Bytes: c.Bytes},
		})
		if err != nil {
			return err
		}
		fmt.Fprintf(b, "%s%s", separator, line)
		separator = ",\n"
	}
	if len(p.events) == 0 {
		fmt.Fprint(b, separator)
	}
	fmt.Fprintln(b, "]}")
	return b.Flush()
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
