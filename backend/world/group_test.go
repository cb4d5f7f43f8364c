package world

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// quick has short intervals, but no false alarm on a machine under load.
var quick = timing{beat: 20 * time.Millisecond, silent: 100, stall: 20}

// each runs f for every group at once.
func each(groups []*Group, f func(*Group)) {
	var all sync.WaitGroup
	for _, g := range groups {
		all.Go(func() { f(g) })
	}
	all.Wait()
}

// requireLost requires that all groups end with one error.
func requireLost(t *testing.T, groups []*Group, rank int, cause string) *Lost {
	t.Helper()
	var first *Lost
	for _, g := range groups {
		select {
		case <-g.Done():
		case <-time.After(20 * time.Second):
			require.Fail(t, "the group did not end", "rank %d", g.Rank())
		}
		lost, ok := errors.AsType[*Lost](g.Err())
		require.True(t, ok, "%v", g.Err())
		require.Equal(t, rank, lost.Rank)
		require.Contains(t, lost.Error(), cause)
		if first == nil {
			first = lost
		}
		require.Equal(t, first.Error(), lost.Error(), "rank %d", g.Rank())
		require.Equal(t, first.Code, lost.Code)
		_, err := g.Exchange(t.Context(), "later", nil)
		require.Equal(t, g.Err(), err)
	}
	return first
}

// worlds are a world of goroutines and one of connections.
var worlds = map[string]func(t *testing.T, n int, w timing) []*Group{
	"local": func(_ *testing.T, n int, w timing) []*Group { return localGroups(n, w) },
	"TCP":   func(t *testing.T, n int, w timing) []*Group { return join(t, n, func(o *Options) { o.timing = w }) },
}

func TestExchange(t *testing.T) {
	for name, open := range worlds {
		t.Run(name, func(t *testing.T) {
			groups := open(t, 5, quick)
			each(groups, func(g *Group) {
				for round := range 50 {
					list, err := g.Exchange(t.Context(), "round", fmt.Appendf(nil, "%d of rank %d", round, g.Rank()))
					require.NoError(t, err)
					require.Len(t, list, 5)
					for rank, data := range list {
						require.Equal(t, fmt.Sprintf("%d of rank %d", round, rank), string(data))
					}
				}
				for _, n := range []int{maxData - 1, maxData, maxData + 1, 3*maxData + 5} {
					mine := bytes.Repeat([]byte{byte(g.Rank())}, n*g.Rank())
					list, err := g.Exchange(t.Context(), "large", mine)
					require.NoError(t, err)
					for rank, data := range list {
						require.True(t, bytes.Equal(bytes.Repeat([]byte{byte(rank)}, n*rank), data))
					}
				}
				list, err := g.Exchange(t.Context(), "full", make([]byte, maxData))
				require.NoError(t, err)
				require.Len(t, list[4], maxData)
				require.NoError(t, g.Leave(t.Context()))
				_, err = g.Exchange(t.Context(), "after the end", nil)
				require.Equal(t, errLeft, err)
				<-g.Done()
			})
		})
	}
}

// All ranks return the error of the one that fails.
func TestFail(t *testing.T) {
	for name, open := range worlds {
		t.Run(name, func(t *testing.T) {
			for rank := range 3 {
				groups := open(t, 3, quick)
				each(groups, func(g *Group) {
					g.AtStep(7)
					if g.Rank() == rank {
						time.Sleep(2 * quick.beat) // a sign of life tells the step
						g.Fail(CodeInput, errors.New("the disk is full"))
						return
					}
					_, err := g.Exchange(t.Context(), "round", nil)
					require.Error(t, err)
				})
				lost := requireLost(t, groups, rank, ", in step 7: the disk is full")
				require.Equal(t, CodeInput, lost.Code)
			}
		})
	}
}

// slowSender is a connection whose rank begins to wait late.
type slowSender struct{ link }

func (s slowSender) send(m message) error {
	err := s.link.send(m)
	if m.Kind == part {
		time.Sleep(100 * time.Millisecond)
	}
	return err
}

// All ranks get the data of an exchange that was complete before a rank failed.
func TestCompleteExchangeBeatsAFailure(t *testing.T) {
	for range 8 {
		a, toA := newLocal()
		b, toB := newLocal()
		newHub(quick, make([]string, 2), []link{toA, toB})
		groups := []*Group{newGroup(Place{Size: 2}, slowSender{a}, quick), newGroup(Place{Rank: 1, Size: 2}, b, quick)}
		each(groups, func(g *Group) {
			all, err := g.Exchange(t.Context(), "data", []byte{byte(g.Rank())})
			require.NoError(t, err)
			require.Equal(t, [][]byte{{0}, {1}}, all)
			if g.Rank() == 1 {
				g.Fail(CodeFailed, errors.New("broken"))
			}
		})
		requireLost(t, groups, 1, "broken")
	}
}

// An exchange tells the step of its rank, without waiting for a sign of life.
func TestExchangeTellsTheStep(t *testing.T) {
	for name, open := range worlds {
		t.Run(name, func(t *testing.T) {
			groups := open(t, 2, timing{beat: time.Hour, silent: 2, stall: 2})
			each(groups, func(g *Group) {
				g.AtStep(7)
				_, err := g.Exchange(t.Context(), "round", nil)
				require.NoError(t, err)
			})
			groups[1].Fail(CodeFailed, errors.New("the disk is full"))
			requireLost(t, groups, 1, ", in step 7: the disk is full")
		})
	}
}

// Ranks of one process get the error itself.
func TestFailWraps(t *testing.T) {
	groups := localGroups(3, quick)
	groups[1].Fail(CodeFailed, fmt.Errorf("read: %w", context.DeadlineExceeded))
	for _, g := range groups {
		<-g.Done()
		require.ErrorIs(t, g.Err(), context.DeadlineExceeded)
	}
}

// A rank whose context ends in Exchange ends the group.
func TestCancel(t *testing.T) {
	groups := localGroups(2, quick)
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		time.Sleep(quick.beat)
		cancel(errors.New("an interrupt"))
	}()
	_, err := groups[1].Exchange(ctx, "a round", nil)
	require.ErrorIs(t, err, context.Canceled)
	requireLost(t, groups, 1, "it stopped waiting in a round: an interrupt")
}

// A rank whose connection closes is lost; so is rank 0.
func TestConnectionCloses(t *testing.T) {
	for rank := range 3 {
		groups := worlds["TCP"](t, 3, quick)
		groups[rank].conn.close()
		if rank == 0 {
			requireLost(t, groups[1:], 0, closedCause)
		} else {
			requireLost(t, append(groups[:rank:rank], groups[rank+1:]...), rank, closedCause)
		}
	}
}

// A rank without a sign of life is lost.
func TestSilence(t *testing.T) {
	w := timing{beat: 10 * time.Millisecond, silent: 50, stall: 1000}
	here, there := newLocal()
	h := newHub(w, []string{"a", "b"}, []link{here, pipe(t)})
	g := newGroup(Place{Size: 2}, there, w)
	g.hub = h
	requireLost(t, []*Group{g}, 1, "rank 1 on b: no sign of life for 500ms")
	<-h.finished

	// Nor does a member wait forever for rank 0.
	g = newGroup(Place{Rank: 1, Size: 2}, pipe(t), w)
	requireLost(t, []*Group{g}, 0, "rank 0: no sign of life for 500ms")
}

// pipe returns a connection whose other end reads, but says nothing.
func pipe(t *testing.T) link {
	a, b := net.Pipe()
	t.Cleanup(func() { _ = b.Close() })
	go func() {
		buffer := make([]byte, 1000)
		for {
			if _, err := b.Read(buffer); err != nil {
				return
			}
		}
	}()
	return newConn(a)
}

// The rank that others wait for is lost if no rank runs an op within the timeout.
func TestStall(t *testing.T) {
	for name, open := range worlds {
		t.Run(name, func(t *testing.T) {
			groups := open(t, 4, quick)
			busy := time.Now().Add(3 * quick.beat * time.Duration(quick.stall))
			collective := "all-reduce of grads"
			each(groups, func(g *Group) {
				g.AtStep(3)
				switch g.Rank() {
				case 1: // in another kind of collective
					g.Waits(&collective)
				case 2: // is slow, and then hangs
					for time.Now().Before(busy) {
						g.RanOp()
						time.Sleep(quick.beat)
					}
				case 3: // has come further than rank 2, and hangs too
					g.AtStep(4)
				default:
					_, err := g.Exchange(t.Context(), "round", nil)
					require.Error(t, err)
					require.True(t, time.Now().After(busy), "the slow rank was waited for")
				}
			})
			requireLost(t, groups, 2, "in step 3: the other ranks waited for it for 400ms; its last collective is none (OCTET_TIMEOUT gives more time)")
		})
	}
}

// No rank is lost while all compute, however long an op takes.
func TestNoStallWithoutWait(t *testing.T) {
	groups := localGroups(2, timing{beat: time.Millisecond, silent: 10_000, stall: 5})
	time.Sleep(200 * time.Millisecond)
	each(groups, func(g *Group) { require.NoError(t, g.Leave(t.Context())) })
}

// Ranks that are in different collectives are told so.
func TestDifferentPrograms(t *testing.T) {
	groups := localGroups(2, quick)
	each(groups, func(g *Group) {
		_, err := g.Exchange(t.Context(), []string{"the loss", "the norm"}[g.Rank()], nil)
		require.Error(t, err)
	})
	requireLost(t, groups, 1, "the ranks run different programs: rank 0 is in the loss, rank 1 in the norm")

	groups = localGroups(2, quick)
	collective := "all-reduce of grads"
	groups[0].Waits(&collective)
	_, err := groups[1].Exchange(t.Context(), "the loss", nil)
	require.Error(t, err)
	requireLost(t, groups, 0, "all ranks waited for 400ms, this one in all-reduce of grads: their programs differ")
}

// A collective of devices that hangs is not a difference of programs.
func TestCollectiveThatHangs(t *testing.T) {
	groups := localGroups(3, quick)
	collective := "all-reduce of grads"
	for _, g := range groups {
		g.AtStep(3)
		g.Waits(&collective)
	}
	requireLost(t, groups, 0, "in step 3: all ranks waited for 400ms in all-reduce of grads, which does not complete: a device hangs, or the network between the devices failed (OCTET_TIMEOUT gives more time)")
}

// Rank 0 knows the host of each rank, and since when a rank is silent.
func TestHostsAndSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, toFirst := newLocal()
		second, toSecond := newLocal()
		h := newHub(timing{beat: time.Minute, silent: 10, stall: 10}, []string{"node1", "node2"}, []link{toFirst, toSecond})
		g := &Group{hub: h}
		time.Sleep(3 * time.Second)
		require.NoError(t, second.send(message{Kind: alive}))
		synctest.Wait()
		time.Sleep(2 * time.Second)
		require.Equal(t, 5*time.Second, g.Silence(0))
		require.Equal(t, 2*time.Second, g.Silence(1))
		require.Equal(t, "node2", g.Host(1))
		first.close()
		second.close()
		<-h.finished
	})
}

// RanOp and Waits are called for every op, and the beats of a world in one process run beside
// them.
func TestOpsDoNotAllocate(t *testing.T) {
	g := localGroups(1, timing{beat: time.Millisecond, silent: 10_000, stall: 10_000})[0]
	what := "all-reduce"
	require.Zero(t, testing.AllocsPerRun(100, func() {
		g.RanOp()
		g.Waits(&what)
		g.AddWait(time.Second)
		g.Continues()
		time.Sleep(time.Millisecond)
	}))
	require.Equal(t, 101*time.Second, g.WaitTime(), "the first call warms up")
	require.NoError(t, g.Leave(t.Context()))
}

func BenchmarkExchange(b *testing.B) {
	groups := localGroups(2, timingOf(time.Minute))
	b.ResetTimer()
	each(groups, func(g *Group) {
		for range b.N {
			_, err := g.Exchange(b.Context(), "round", nil)
			require.NoError(b, err)
		}
	})
}
