package world

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Each runs all ranks concurrently: each waits for the others.
func TestEach(t *testing.T) {
	groups := Local(4, time.Minute)
	var called [4]atomic.Int32
	require.NoError(t, Each(groups, func(g *Group) error {
		called[g.Rank()].Add(1)
		_, err := g.Exchange(t.Context(), "round", nil)
		return err
	}))
	for rank := range called {
		require.EqualValues(t, 1, called[rank].Load(), "rank %d", rank)
	}
	for _, g := range groups {
		require.NoError(t, g.Err())
	}
}

// Each returns the error of the rank that failed, not those of the ranks that waited for it, and
// the group has ended.
func TestEachFails(t *testing.T) {
	disk := errors.New("the disk is full")
	for failing := range 3 {
		groups := Local(3, time.Minute)
		err := Each(groups, func(g *Group) error {
			if g.Rank() == failing {
				return disk
			}
			_, err := g.Exchange(t.Context(), "round", nil)
			if err == nil {
				return errors.New("the exchange succeeded")
			}
			return fmt.Errorf("rank %d: %w", g.Rank(), err)
		})
		require.Equal(t, disk, err)
		lost := requireLost(t, groups, failing, "the disk is full")
		require.Equal(t, CodeFailed, lost.Code)
	}
}

// If a rank returns an error after the group has ended because of another, Each returns the
// error of the other.
func TestEachReturnsTheFirstError(t *testing.T) {
	groups := Local(2, time.Minute)
	err := Each(groups, func(g *Group) error {
		if g.Rank() == 1 {
			return errors.New("first")
		}
		<-g.Done()
		return errors.New("second")
	})
	require.EqualError(t, err, "first")
}

// If the rank that was lost returns no error itself, Each returns that of a rank that noticed.
func TestEachReturnsAnError(t *testing.T) {
	groups := Local(3, time.Minute)
	err := Each(groups, func(g *Group) error {
		if g.Rank() == 0 {
			g.Fail(CodeFailed, errors.New("the disk is full"))
			return nil
		}
		_, err := g.Exchange(t.Context(), "round", nil)
		return err
	})
	require.EqualError(t, err, "rank 0: the disk is full")
}

// The ranks of one process share one value, whichever asks first; two worlds do not.
func TestShared(t *testing.T) {
	var created atomic.Int32
	create := func() any {
		n := created.Add(1)
		return &n
	}
	groups := Local(4, time.Minute)
	var values [4]any
	require.NoError(t, Each(groups, func(g *Group) error {
		values[g.Rank()] = g.Shared(create)
		return nil
	}))
	require.EqualValues(t, 1, created.Load())
	for rank, g := range groups {
		require.True(t, g.InProcess())
		require.Same(t, values[0], values[rank])
		require.Same(t, values[0], g.Shared(create))
	}
	require.NotSame(t, values[0], Local(2, time.Minute)[0].Shared(create))
}

// Ranks that are processes share nothing.
func TestSharedOverTCP(t *testing.T) {
	groups := worlds["TCP"](t, 2, quick)
	for _, g := range groups {
		require.False(t, g.InProcess())
		require.Nil(t, g.Shared(func() any {
			require.Fail(t, "a value was created")
			return nil
		}))
	}
	each(groups, func(g *Group) { require.NoError(t, g.Leave(t.Context())) })
}

// A nil group is that of one rank: no call waits, and the group never ends.
func TestNilGroup(t *testing.T) {
	groups := Local(1, time.Minute)
	require.Equal(t, []*Group{nil}, groups)
	g := groups[0]
	require.Equal(t, Place{Size: 1}, g.Place())
	require.Equal(t, 0, g.Rank())
	require.Equal(t, 1, g.Size())
	require.True(t, g.InProcess())
	require.Equal(t, 7, g.Shared(func() any { return 7 }))

	g.AtStep(1)
	g.RanOp()
	g.AtOp(2)
	what := "all-reduce"
	g.Waits(&what)
	g.Continues()
	g.AddWait(time.Second)
	require.Zero(t, g.WaitTime())
	require.Zero(t, g.Silence(0))
	require.Empty(t, g.Host(0))
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	type exchange = func(context.Context, string, []byte) ([][]byte, error)
	for _, f := range []exchange{g.Exchange, g.ExchangeInBackground} {
		list, err := f(canceled, "round", []byte("mine"))
		require.NoError(t, err)
		require.Equal(t, [][]byte{[]byte("mine")}, list)
	}

	g.Fail(CodeFailed, errors.New("the disk is full"))
	require.NoError(t, g.Leave(canceled))
	require.NoError(t, g.Err())
	select {
	case <-g.Done():
		require.Fail(t, "the group ended")
	default:
	}
	failure := errors.New("the disk is full")
	require.Equal(t, failure, Each(groups, func(*Group) error { return failure }))
	require.NoError(t, Each(groups, func(*Group) error { return nil }))
}
