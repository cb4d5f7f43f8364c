package run

import (
	"encoding/binary"
	"slices"
	"time"
)

// pace is how a rank spent a step.
type pace struct {
	own  time.Duration // of the step, outside collectives
	wait time.Duration // in the step's collectives, and before it in the exchange between two steps
}

const paceBytes = 16

func (p pace) append(message []byte) []byte {
	message = binary.LittleEndian.AppendUint64(message, uint64(p.own))
	return binary.LittleEndian.AppendUint64(message, uint64(p.wait))
}

func paceOf(message []byte) pace {
	return pace{time.Duration(binary.LittleEndian.Uint64(message)), time.Duration(binary.LittleEndian.Uint64(message[8:]))}
}

// paceMeter measures the pace of this rank. Of steps in flight, it divides the time between two
// results, as train.StepResult.Elapsed does.
type paceMeter struct {
	waited   time.Duration // Group.WaitTime at the begin of the step
	exchange time.Duration // of the last exchange between two steps
	last     pace
}

// begin begins a step, unless it was in flight already.
func (m *paceMeter) begin(waited time.Duration) { m.waited = waited }

// end ends a step. On accelerators the time in collectives is sampled, so it may exceed the step.
func (m *paceMeter) end(elapsed, waited time.Duration) {
	in := waited - m.waited
	m.waited = waited
	m.last = pace{own: max(0, elapsed-in), wait: in + m.exchange}
}

// exchanged records the duration of an exchange. While a step is in flight, the device computes
// during the exchange, so this rank does not wait.
func (m *paceMeter) exchanged(took time.Duration, inFlight bool) {
	if m.exchange = took; inFlight {
		m.exchange = 0
	}
}

const (
	// slowFactor is the limit of a rank's own time, relative to the median of all ranks. Every
	// rank has the same work, so that healthy ranks of like devices differ by less.
	slowFactor = 1.1
	// A rank is a straggler after stragglerSteps steps in a row over the limit. Another load that
	// passes, such as a backup, must name no rank.
	stragglerSteps = 100
	// blockSteps is the number of steps whose mean counts as one time. The host samples the
	// collectives of accelerators, which is too coarse for a single step.
	blockSteps = 10
)

// Straggler is a rank whose own time, outside collectives, exceeds the median of all ranks for
// long. All other ranks wait for it in every step.
type Straggler struct {
	Rank        int
	Host        string        // of its process; empty if all ranks are in this process
	Own, Median time.Duration // of the last steps, means
}

// stragglers finds the stragglers of a run. It is for rank 0.
type stragglers struct {
	paces  []pace // of all ranks, in the last step; nil before the first
	steps  int    // of the current block
	sums   []time.Duration
	sorted []time.Duration
	// blocks counts each rank's blocks in a row over the limit, or of a straggler below it.
	blocks []int
	named  []bool
}

// add adds a step. It returns the ranks that became stragglers with it, and those that recovered;
// their Host is not set.
func (s *stragglers) add(paces []pace) (slow, recovered []Straggler) {
	if s.paces == nil {
		n := len(paces)
		s.paces, s.sums, s.sorted = make([]pace, n), make([]time.Duration, n), make([]time.Duration, n)
		s.blocks, s.named = make([]int, n), make([]bool, n)
	}
	copy(s.paces, paces)
	for rank, p := range paces {
		s.sums[rank] += p.own
	}
	if s.steps++; s.steps < blockSteps {
		return nil, nil
	}
	copy(s.sorted, s.sums)
	slices.Sort(s.sorted)
	median := s.sorted[(len(s.sorted)-1)/2] // of two ranks, the faster one
	for rank, sum := range s.sums {
		over := float64(sum) > slowFactor*float64(median)
		if s.blocks[rank]++; over == s.named[rank] {
			s.blocks[rank] = 0
		}
		if s.blocks[rank] < stragglerSteps/blockSteps {
			continue
		}
		s.blocks[rank], s.named[rank] = 0, over
		x := Straggler{Rank: rank, Own: sum / blockSteps, Median: median / blockSteps}
		if over {
			slow = append(slow, x)
		} else {
			recovered = append(recovered, x)
		}
	}
	s.steps = 0
	clear(s.sums)
	return slow, recovered
}

// addPaces adds the paces of all ranks in a step on rank 0. It logs what changes, and returns the
// new stragglers.
func (r *Run) addPaces(step int, paces []pace) []Straggler {
	slow, recovered := r.stragglers.add(paces)
	for i := range slow {
		x := &slow[i]
		x.Host = r.group.Host(x.Rank)
		r.records.log.Warn("slow rank", "step", step, "rank", x.Rank, "host", x.Host,
			"own_s", x.Own.Seconds(), "median_s", x.Median.Seconds(), "steps", stragglerSteps)
	}
	for _, x := range recovered {
		r.records.log.Info("slow rank recovered", "step", step, "rank", x.Rank, "own_s", x.Own.Seconds(), "median_s", x.Median.Seconds())
	}
	return slow
}
