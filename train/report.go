package train

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"octet/backend"
	"octet/nn"
)

// Group is a named number of parameters or bytes.
type Group struct {
	Name string `json:"name"`
	N    int64  `json:"n"`
}

// ParamGroups counts parameters by the kind of their layer, padding rows excluded.
func (j *Job) ParamGroups() []Group {
	count := map[string]int64{}
	for p, part := range j.Model.PartOf() {
		count[part] += int64(p.Rows) * int64(p.Cols())
	}
	return ordered(count, nn.Parts...)
}

// Memory is the planned device memory of a run, in bytes.
type Memory struct {
	Persistent []Group `json:"persistent"`       // by class
	Lines      []Line  `json:"lines"`            // persistent bytes by use, see [Job.Lines]
	Arena      int64   `json:"arena"`            // temporaries of all programs
	Beside     []Group `json:"beside,omitempty"` // other allocations of the backend
	Scopes     []Group `json:"scopes"`           // persistent bytes by module, largest first
	// Snapshot is the size of the host's copy of a checkpoint, one for all ranks.
	// Total excludes it: it is in device memory only if that is host memory.
	Snapshot int64 `json:"snapshot"`
	// Outside estimates the memory of the device's driver and libraries. Total
	// excludes it.
	Outside []Group `json:"outside_estimated,omitempty"`

	// Launches counts the launches of each program on a device with compiled graphs;
	// empty for other devices.
	Launches []backend.Launches `json:"-"`
}

// Total returns the bytes that the backend allocates.
func (m Memory) Total() int64 {
	n := m.Arena
	for _, g := range slices.Concat(m.Persistent, m.Beside) {
		n += g.N
	}
	return n
}

// MemoryOf returns the memory that the job's programs, as backend.Lower returned them for
// s, and their variables need.
func (j *Job) MemoryOf(s backend.Spec, lowered ...*backend.Program) (Memory, error) {
	classes, scopes := map[string]int64{}, map[string]int64{}
	for t := range j.Vars.All() {
		classes[t.Class.String()] += t.Bytes()
		scopes[backend.FoldLayers(strings.TrimPrefix(t.Name, j.Model.ParamPrefix))] += t.Bytes()
	}
	m := Memory{Persistent: ordered(classes, "param", "state", "stash", "input", "output"), Lines: j.Lines(), Snapshot: j.snapshotBytes()}
	o, err := backend.OutlineOf(s, lowered...)
	if err != nil {
		return m, err
	}
	m.Arena, m.Beside, m.Outside, m.Launches = o.Temps, groups(o.Extra), groups(o.Outside), o.Launches
	for _, name := range slices.Sorted(maps.Keys(scopes)) {
		m.Scopes = append(m.Scopes, Group{name, scopes[name]})
	}
	slices.SortStableFunc(m.Scopes, func(a, b Group) int { return cmp.Compare(b.N, a.N) })
	return m, nil
}

func groups(shares []backend.Share) (list []Group) {
	for _, s := range shares {
		list = append(list, Group{s.Name, s.Bytes})
	}
	return list
}

// Exchange counts the collectives of one kind in a program.
type Exchange struct {
	Program string `json:"program"`
	Op      string `json:"op"`
	Count   int    `json:"count"`
	Bytes   int64  `json:"bytes"` // full size of the tensors that all ranks reduce, scatter, gather or exchange
}

// Exchanges lists the collectives of a step's programs, with each variant of micro-batch once.
func (j *Job) Exchanges() (list []Exchange) {
	for _, p := range j.Programs() {
		if p == j.Calibrate || p == j.Prepare || p == j.Eval {
			continue // not part of a step
		}
		at := map[string]int{}
		for _, n := range p.Nodes() {
			op, whole, _ := backend.Exchanged(n.Op)
			if whole == nil {
				continue
			}
			i, known := at[op]
			if !known {
				i, at[op] = len(list), len(list)
				list = append(list, Exchange{Program: p.Name(), Op: op})
			}
			list[i].Count++
			list[i].Bytes += whole.Bytes()
		}
	}
	return list
}

// FLOPsPerToken returns the multiplications and additions of matrix products per
// training token, counted over the recorded forward and backward. It excludes
// recomputation, as MFU does (Chowdhery et al., arXiv 2204.02311, appendix B).
func (j *Job) FLOPsPerToken() float64 {
	total := int64(0)
	for _, n := range j.anyMicro().Nodes() {
		if n.Phase != backend.Recompute {
			total += n.Cost().FLOPs
		}
	}
	return float64(total) / float64(j.Tokens.Elems()) * float64(j.Config.tensor())
}

func (j *Job) anyMicro() *backend.Program {
	for _, v := range []Variant{{true, true}, {true, false}} {
		if p := j.Micro[v]; p != nil {
			return p
		}
	}
	return nil
}

// ordered returns the non-zero counts as groups, in the order of names.
func ordered(count map[string]int64, names ...string) []Group {
	var list []Group
	for _, name := range names {
		if count[name] > 0 {
			list = append(list, Group{name, count[name]})
		}
	}
	return list
}

// ActivationBytes returns what an element that the forward pass of a layer leaves for its backward
// pass takes on average, in bytes, with all copies and scales, as recorded: recomputation drops some
// of them later. It is NaN for a model without layers.
func (j *Job) ActivationBytes() float64 {
	bytes, elems := int64(0), int64(0)
	forward, counted := map[*backend.Tensor]bool{}, map[string]bool{}
	for _, n := range j.anyMicro().Nodes() {
		for _, o := range n.Operands() {
			t := o.Tensor.Root()
			switch {
			case t.Class != backend.Temp:
			case n.Phase == backend.Forward:
				forward[t] = true
			case forward[t] && n.Block != "":
				delete(forward, t) // count it once
				bytes += t.Bytes()
				if strings.Contains(o.Field, "Scale") || strings.Contains(o.Field, "Outer") {
					continue
				}
				// Copies are named NAME.FORMAT, with more behind it where formats are equal.
				if name, _, _ := strings.Cut(t.Name, "."+t.DType.String()); !counted[name] {
					counted[name] = true
					elems += int64(t.Elems())
				}
			}
		}
	}
	return float64(bytes) / float64(elems)
}
