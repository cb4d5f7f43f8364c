package cost

import (
	"fmt"
	"maps"
	"slices"
)

// Bound names the limit of an op.
type Bound uint8

// The bounds.
const (
	ByFLOPs Bound = iota
	ByBytes
	ByLatency
	ByWire
	bounds
)

var boundNames = [...]string{"flops", "bytes", "latency", "wire"}

func (b Bound) String() string { return boundNames[b] }

// Prediction is the time of a training step, in seconds, of one device and so of all.
type Prediction struct {
	Step    float64
	Classes []ClassTime // sums to Step
	// Wire is the time of all collectives, of which the class communication holds what the
	// device waits for.
	Wire float64
	Used []string // names of the numbers that the prediction depends on, sorted
	// Residual is the relative error of the calibration's curves, the time of each op weighing
	// its own; 0 without a calibration.
	Residual float64
	// Extended is the share of Step in ops that take less than half the time of the shortest op
	// that the calibration measured; 0 without a calibration.
	Extended float64
	// Unmeasured lists the keys of ops, sorted, whose curve the calibration lacks; empty
	// without a calibration.
	Unmeasured []string
}

// ClassTime is the time of one class in a step. GEMMs have a line for each format.
type ClassTime struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"s"`
	Share   float64 `json:"share"` // of the step
	Bound   string  `json:"bound"` // what limits most of the time: flops, bytes, latency or wire
}

// Predict returns the time of a step. The error wraps ErrNoData if a number has no source.
//
// Ops on the compute queue run one after the other, collectives among them. A collective on the
// communication queue starts when the ops before it have ended, after the collectives before it, and
// an op that uses its result waits for it. While the device computes, such collectives progress at
// the rate hidden. All end with their program.
func (m *Machine) Predict(s *Step) (Prediction, error) {
	r := newRates(m)
	sums := newSums(s)
	p := Prediction{}
	for _, program := range s.programs {
		sums.times = program.times
		q := queue{}
		for i := range program.work {
			w := &program.work[i]
			t, bound := r.time(w)
			r.residual += program.times * t * r.rms
			if r.small {
				r.extended += program.times * t
			}
			switch {
			case w.class == Communication && !w.comm: // it blocks the compute queue, after the others
				p.Wire += program.times * t
				q.drain(i, sums)
				sums.add(w, t, bound)
			case w.comm:
				p.Wire += program.times * t
				if t > 0 {
					q.hidden = r.get("hidden")
					q.add(i, t, bound)
				}
			default:
				if w.waits >= 0 {
					q.drain(w.waits, sums)
				}
				q.overlap(t)
				sums.add(w, t, bound)
			}
		}
		q.drain(len(program.work), sums)
	}
	if r.err != nil {
		return Prediction{}, r.err
	}
	p.Classes = sums.list()
	for _, c := range p.Classes {
		p.Step += c.Seconds
	}
	for i := range p.Classes {
		p.Classes[i].Share = p.Classes[i].Seconds / p.Step
	}
	if p.Step > 0 {
		p.Residual, p.Extended = r.residual/p.Step, r.extended/p.Step
	}
	p.Used, p.Unmeasured = r.names(), slices.Sorted(maps.Keys(r.unmeasured))
	return p, nil
}

// queue holds the collectives that have started or wait, first in, first out.
type queue struct {
	hidden float64
	jobs   []job
}

type job struct {
	index int // of the op in its program
	left  float64
	bound Bound
}

func (q *queue) add(index int, seconds float64, b Bound) {
	q.jobs = append(q.jobs, job{index, seconds, b})
}

// overlap lets the queue progress while the device computes.
func (q *queue) overlap(seconds float64) {
	if q.hidden <= 0 {
		return
	}
	progress := seconds * q.hidden
	for len(q.jobs) > 0 && progress > 0 {
		done := min(progress, q.jobs[0].left)
		q.jobs[0].left -= done
		progress -= done
		if q.jobs[0].left > 0 {
			return
		}
		q.jobs = q.jobs[1:]
	}
}

// drain waits for all ops up to an index, and adds the time to the class communication.
func (q *queue) drain(index int, s *sums) {
	for len(q.jobs) > 0 && q.jobs[0].index <= index {
		s.add(&work{class: Communication}, q.jobs[0].left, q.jobs[0].bound)
		q.jobs = q.jobs[1:]
	}
}

// sums adds up times by class, format and bound.
type sums struct {
	times   float64 // of the program
	formats []string
	byGEMM  map[string]*[bounds]float64
	by      [classes][bounds]float64
}

func newSums(s *Step) *sums {
	sums := &sums{formats: s.formats, byGEMM: map[string]*[bounds]float64{}}
	for _, f := range s.formats {
		sums.byGEMM[f] = &[bounds]float64{}
	}
	return sums
}

func (s *sums) add(w *work, seconds float64, b Bound) {
	if w.class == GEMM {
		s.byGEMM[w.format][b] += s.times * seconds
		return
	}
	s.by[w.class][b] += s.times * seconds
}

func (s *sums) list() (list []ClassTime) {
	add := func(name string, by [bounds]float64) {
		c := ClassTime{Name: name}
		most := Bound(0)
		for b, t := range by {
			c.Seconds += t
			if t > by[most] {
				most = Bound(b)
			}
		}
		c.Bound = most.String()
		if c.Seconds > 0 {
			list = append(list, c)
		}
	}
	for _, f := range s.formats {
		add(fmt.Sprintf("GEMMs, %s", f), *s.byGEMM[f])
	}
	for c := Attention; c < classes; c++ {
		add(c.String(), s.by[c])
	}
	return list
}
