package gemm

import (
	"slices"

	"octet/backend/emu/pool"
)

// Grouped is a grouped GEMM: several GEMMs as one list of tasks. A worker that finishes its tasks of
// one GEMM starts those of the next; separate runs would make it wait for the other workers.
type Grouped struct {
	gemms []Bound
	pool  *pool.Pool
	ends  []int           // of each GEMM's tasks in the list
	last  []groupedWorker // of each worker
	task  func(worker, task int)
}

// Bound is a GEMM with the epilogue of its runs.
type Bound struct {
	GEMM     *GEMM
	Epilogue Epilogue
}

// groupedWorker holds the GEMM of a worker's last task, padded to cache lines of its own.
type groupedWorker struct {
	gemm int
	_    [128]byte
}

// NewGrouped returns the grouped GEMM of a list, made for the pool p. No GEMM may read or write an
// output of another.
func NewGrouped(p *pool.Pool, gemms []Bound) *Grouped {
	g := &Grouped{gemms: gemms, pool: p, ends: make([]int, len(gemms)), last: make([]groupedWorker, p.Size())}
	g.task = g.runTask
	return g
}

// Run computes all GEMMs.
func (g *Grouped) Run() {
	tasks := 0
	for i := range g.gemms {
		tasks += g.gemms[i].GEMM.begin(g.gemms[i].Epilogue)
		g.ends[i] = tasks
	}
	for w := range g.last {
		g.last[w].gemm = -1
	}
	g.pool.Run(tasks, g.task)
	for i := range g.gemms {
		g.gemms[i].GEMM.end(g.gemms[i].Epilogue.Amax)
	}
}

// runTask runs a task of the list.
func (g *Grouped) runTask(worker, task int) {
	i, _ := slices.BinarySearch(g.ends, task+1) // the first that ends beyond task
	x := g.gemms[i].GEMM
	if g.last[worker].gemm != i {
		g.last[worker].gemm = i
		x.workers[worker].packed = 0 // another GEMM has used the scratch
	}
	if i > 0 {
		task -= g.ends[i-1]
	}
	x.task(worker, task)
}
