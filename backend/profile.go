package backend

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Profile records how long each node takes, for programs that run through it between
// Begin and End. Begin and End enclose a span, usually a step. The programs compute the
// same results, node by node, and the profile reads the clock after each node: the
// device's clock if the Executable is Timed. Only one goroutine may use a Profile.
//
//	p := backend.NewProfile()
//	trainer.Execute = p.Run // or p.Run(ctx, "name", x) in place of x.Run(ctx)
//	p.Begin(); …; p.End()   // records a span, any number of times
//	rows := p.Rows(peaks, backend.OpKind)
type Profile struct {
	now     func() time.Time
	on      bool
	began   time.Time // of the span in progress
	origin  time.Time // of the first span
	elapsed time.Duration
	spans   int
	events  []event
}

// event is one run of a node.
type event struct {
	node       *Node
	program    string
	start, end time.Duration // since origin
}

// NewProfile returns a profile that has recorded nothing.
func NewProfile() *Profile { return &Profile{now: time.Now} }

// Begin starts a span.
func (p *Profile) Begin() {
	p.on, p.began = true, p.now()
	if p.spans == 0 {
		p.origin = p.began
	}
}

// End ends the span that Begin started.
func (p *Profile) End() {
	p.on = false
	p.elapsed += p.now().Sub(p.began)
	p.spans++
}

// Spans returns the number of recorded spans.
func (p *Profile) Spans() int { return p.spans }

// Elapsed returns the total length of all spans. Time outside the nodes is the host's,
// which writes inputs and reads results.
func (p *Profile) Elapsed() time.Duration { return p.elapsed }

// Timed is an Executable of an asynchronous device that has a clock. Measured by the
// host's clock, each node would include a wait for the device.
type Timed interface {
	Executable
	// RunTimed executes the program node by node, waits for the device, and calls took
	// for every node in order. start and end are the device's times, counted from the
	// program's start. Nodes launched back to back leave no gap between end and start;
	// gaps between other nodes are the host's time.
	RunTimed(ctx context.Context, took func(n *Node, start, end time.Duration)) error
}

// Run executes a program, and records it between Begin and End.
func (p *Profile) Run(ctx context.Context, program string, x Executable) error {
	if !p.on {
		return x.Run(ctx)
	}
	begin := p.now().Sub(p.origin)
	if timed, ok := x.(Timed); ok {
		return timed.RunTimed(ctx, func(n *Node, start, end time.Duration) {
			p.events = append(p.events, event{n, program, begin + start, begin + end})
		})
	}
	last := begin
	return x.RunObserved(ctx, func(n *Node, _ Memory) error {
		now := p.now().Sub(p.origin)
		p.events = append(p.events, event{n, program, last, now})
		last = now
		return nil
	})
}

// Times returns the recorded times of each node, in the order of its runs.
func (p *Profile) Times() map[*Node][]time.Duration {
	times := map[*Node][]time.Duration{}
	for _, e := range p.events {
		times[e.node] = append(times[e.node], e.end-e.start)
	}
	return times
}

// Row sums up the runs of all nodes of one name.
type Row struct {
	Name  string
	Calls int
	Time  time.Duration
	Cost  Cost
	// Floor is the time at the roofline: for each run, the larger of FLOPs over peak
	// and bytes over bandwidth. It can exceed Time if operands were in a cache or were
	// updated in place; see Meter.
	Floor time.Duration
}

// Rows sums up the recorded runs by the name of their nodes, longest time first.
func (p *Profile) Rows(peaks Peaks, name func(*Node) string) []Row {
	byNode := map[*Node]*Row{} // names and costs are computed once per node
	for _, e := range p.events {
		r := byNode[e.node]
		if r == nil {
			r = &Row{Name: name(e.node)}
			byNode[e.node] = r
		}
		r.Calls++
		r.Time += e.end - e.start
	}
	byName := map[string]*Row{}
	for n, r := range byNode {
		sum := byName[r.Name]
		if sum == nil {
			sum = &Row{Name: r.Name}
			byName[r.Name] = sum
		}
		c := n.Cost()
		sum.Calls += r.Calls
		sum.Time += r.Time
		sum.Cost.FLOPs += int64(r.Calls) * c.FLOPs
		sum.Cost.Bytes += int64(r.Calls) * c.Bytes
		sum.Floor += time.Duration(float64(r.Calls) * peaks.Floor(c) * float64(time.Second))
	}
	var rows []Row
	for _, r := range byName {
		rows = append(rows, *r)
	}
	slices.SortFunc(rows, func(a, b Row) int {
		return cmp.Or(cmp.Compare(b.Time, a.Time), strings.Compare(a.Name, b.Name))
	})
	return rows
}

// OpKind returns a node's op, for a MatMul with its layout and formats:
// "MatMul NT e4m3 e4m3 bf16".
func OpKind(n *Node) string {
	o, ok := n.Op.(*MatMul)
	if !ok {
		return opType(n.Op)
	}
	layout := func(t bool) string {
		if t {
			return "T"
		}
		return "N"
	}
	return strings.Join([]string{
		"MatMul", layout(o.TransA) + layout(o.TransB),
		o.A.DType.String(), o.B.DType.String(), o.Out.DType.String(),
	}, " ")
}

// Module returns a node's part of the model: FoldLayers of its scope, "no module" for the ops
// of the whole step, such as those that update amax histories.
func Module(n *Node) string { return cmp.Or(FoldLayers(n.Scope), "no module") }

// FoldLayers shortens a module path to a part of the model, with all layers merged:
// "layers.*.mlp" for layers.3.mlp.down_proj, "lm_head" for lm_head.weight.
func FoldLayers(path string) string {
	parts := strings.Split(path, ".")
	for i, part := range parts {
		if _, err := strconv.Atoi(part); err == nil {
			parts[i] = "*"
			return strings.Join(parts[:min(i+2, len(parts))], ".")
		}
	}
	return parts[0]
}
