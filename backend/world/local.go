package world

import (
	"sync"
	"time"
)

// Local returns the groups of n ranks in one process, in order of rank; that of a single rank
// is nil. timeout is how long ranks wait while no rank runs an op.
func Local(n int, timeout time.Duration) []*Group {
	if n == 1 {
		return []*Group{nil}
	}
	return localGroups(n, timingOf(timeout))
}

func localGroups(n int, t timing) []*Group {
	var ends, conns []link
	for range n {
		a, b := newLocal()
		ends, conns = append(ends, a), append(conns, b)
	}
	h := newHub(t, make([]string, n), conns)
	list := make([]*Group, n)
	memory := new(shared)
	for rank := range list {
		list[rank] = newGroup(Place{Rank: rank, Size: n, LocalRank: rank, LocalSize: n}, ends[rank], t)
		list[rank].hub, list[rank].shared = h, memory
	}
	return list
}

// shared is a value that the ranks of one process have in common.
type shared struct {
	once  sync.Once
	value any
}

// InProcess reports whether all ranks are in this process.
func (g *Group) InProcess() bool { return g == nil || g.shared != nil }

// Shared returns a value that all ranks have in common if they are in one process: the first
// call creates it. It returns nil if the ranks are processes. Each call on a nil Group creates a
// value.
func (g *Group) Shared(create func() any) any {
	if g == nil {
		return create()
	}
	if g.shared == nil {
		return nil
	}
	g.shared.once.Do(func() { g.shared.value = create() })
	return g.shared.value
}

// Each calls f for the ranks of Local concurrently. If a call fails, the group ends, so that
// the other ranks do not wait for that rank. Each returns the error of the rank that failed
// first.
func Each(groups []*Group, f func(*Group) error) error {
	errs := make([]error, len(groups))
	var wait sync.WaitGroup
	for rank, g := range groups {
		wait.Go(func() {
			if errs[rank] = f(g); errs[rank] != nil {
				g.Fail(CodeFailed, errs[rank])
			}
		})
	}
	wait.Wait()
	if lost := groups[0].lost(); lost != nil && errs[lost.Rank] != nil {
		return errs[lost.Rank]
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
