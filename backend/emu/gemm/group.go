package gemm

import (
	"slices"

	"octet/backend/emu/pool"
)

// Group is a grouped GEMM: several GEMMs as one list of tasks. A worker that has ended its share
// of one GEMM goes on with the next, where separate runs would let it wait for the others.
type Group struct {
	gemms []Bound
	pool  *pool.Pool
	ends  []int         // of each GEMM's tasks in the list
	last  []groupWorker // of each worker
	task  func(worker, task int)
}

// Bound is a GEMM with its epilogue.
type Bound struct {
	*GEMM
	Epilogue
}

// groupWorker holds the GEMM of a worker's last task, padded to cache lines of its own.
type groupWorker struct {
	gemm int
	_    [128]byte
}

// NewGroup returns the group of gemms, made for the pool p. None may read or write what another
// one writes.
func NewGroup(p *pool.Pool, gemms []Bound) *Group {
	s := &Group{gemms: gemms, pool: p, ends: make([]int, len(gemms)), last: make([]groupWorker, p.Size())}
	s.task = s.runTask
	return s
}

// Run computes all GEMMs.
func (s *Group) Run() {
	tasks := 0
	for i, g := range s.gemms {
		tasks += g.begin(g.Epilogue)
		s.ends[i] = tasks
	}
	for w := range s.last {
		s.last[w].gemm = -1
	}
	s.pool.Run(tasks, s.task)
	for _, g := range s.gemms {
		g.end(g.Amax)
	}
}

// runTask runs a task of the list.
func (s *Group) runTask(worker, task int) {
	i, _ := slices.BinarySearch(s.ends, task+1) // the first that ends beyond task
	g := s.gemms[i]
	if s.last[worker].gemm != i {
		s.last[worker].gemm = i
		g.workers[worker].packed = 0 // another GEMM has used the scratch
	}
	if i > 0 {
		task -= s.ends[i-1]
	}
	g.task(worker, task)
}
