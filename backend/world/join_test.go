package world

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// freeAddress returns an address of the loopback interface at which nothing listens.
func freeAddress(t testing.TB) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

// attempts calls Join for n ranks at once; edit changes their options.
func attempts(t testing.TB, n int, edit func(*Options)) (groups []*Group, errs []error) {
	address := freeAddress(t)
	groups, errs = make([]*Group, n), make([]error, n)
	var all sync.WaitGroup
	for rank := range n {
		all.Go(func() {
			o := Options{
				Place: Place{Rank: rank, Size: n, Address: address}, Secret: []byte("a secret of the test"), Wait: 20 * time.Second,
				Identity: Identity{{"configuration", "c1"}, {"binary", "b1"}}, timing: quick,
			}
			edit(&o)
			groups[rank], errs[rank] = Join(t.Context(), o)
		})
	}
	all.Wait()
	return groups, errs
}

func join(t testing.TB, n int, edit func(*Options)) []*Group {
	groups, errs := attempts(t, n, edit)
	for _, err := range errs {
		require.NoError(t, err)
	}
	return groups
}

// Join of 64 ranks takes less than three seconds.
func TestJoinMany(t *testing.T) {
	start := time.Now()
	groups := join(t, 64, func(o *Options) { o.timing = timingOf(time.Minute) })
	each(groups, func(g *Group) {
		list, err := g.Exchange(t.Context(), "ranks", []byte{byte(g.Rank())})
		require.NoError(t, err)
		for rank, data := range list {
			require.Equal(t, []byte{byte(rank)}, data)
		}
	})
	t.Logf("joined and gathered in %v", time.Since(start))
	require.Less(t, time.Since(start), 3*time.Second)
	each(groups, func(g *Group) { require.NoError(t, g.Leave(t.Context())) })
}

// Rank 0 may start last.
func TestJoinLate(t *testing.T) {
	groups := join(t, 2, func(o *Options) {
		if o.Place.Rank == 0 {
			time.Sleep(100 * time.Millisecond)
		}
	})
	each(groups, func(g *Group) { require.NoError(t, g.Leave(t.Context())) })
}

// What differs between the ranks is named, with both values and the exit status of bad input.
func TestJoinRefuses(t *testing.T) {
	for want, edit := range map[string]func(*Options){
		"its binary differs: b2, rank 0 on": func(o *Options) {
			o.Identity = Identity{{"configuration", "c1"}, {"binary", "b2"}}
		},
		"its configuration differs: none, rank 0 on": func(o *Options) { o.Identity = o.Identity[1:] },
		"two processes say they are rank 1:":         func(o *Options) { o.Place.Rank = 1 },
		"it is one of 4 ranks, rank 0 one of 3":      func(o *Options) { o.Place.Size = 4 },
		"ranks are 0 to 2":                           func(o *Options) { o.Place.Rank = 7 },
	} {
		t.Run(want, func(t *testing.T) {
			start := time.Now()
			_, errs := attempts(t, 3, func(o *Options) {
				if o.Place.Rank == 2 {
					edit(o)
				}
			})
			require.Less(t, time.Since(start), 5*time.Second)
			lost, ok := errors.AsType[*Lost](errs[0])
			require.True(t, ok, "%v", errs[0])
			require.ErrorContains(t, lost, want)
			require.Equal(t, CodeInput, lost.Code)
			require.Error(t, errs[1])
			require.Error(t, errs[2])
		})
	}
}

// The rank that differs ends the group itself: all ranks have its word, and where it runs.
func TestCompare(t *testing.T) {
	groups := join(t, 3, func(*Options) {})
	each(groups, func(g *Group) { require.NoError(t, g.Compare(t.Context(), Identity{{"text", "a"}})) })
	errs := make([]error, len(groups))
	each(groups, func(g *Group) {
		text := "a"
		if g.Rank() > 0 {
			text = "b"
		}
		errs[g.Rank()] = g.Compare(t.Context(), Identity{{"text", text}})
	})
	host, err := os.Hostname()
	require.NoError(t, err)
	for _, err := range errs {
		require.EqualError(t, err, "rank 1 on "+host+": its text differs: b, rank 0 has a")
	}
	require.Equal(t, CodeInput, requireLost(t, groups, 1, "its text differs").Code)
}

// A process with another secret is told so; rank 0 keeps waiting, since strangers can connect.
func TestJoinSecrets(t *testing.T) {
	_, errs := attempts(t, 2, func(o *Options) {
		o.Wait = time.Second
		if o.Place.Rank == 1 {
			o.Secret = []byte("another secret")
		}
	})
	lost, ok := errors.AsType[*Lost](errs[1])
	require.True(t, ok, "%v", errs[1])
	require.ErrorContains(t, lost, "another secret: all need the same OCTET_SECRET_FILE")
	require.Equal(t, CodeInput, lost.Code)
	require.ErrorContains(t, errs[0], "rank 1: it did not join (missing: rank 1 of 2)")
	require.ErrorContains(t, errs[0], "a connection from 127.0.0.1:")

	_, err := Join(t.Context(), Options{Place: Place{Size: 2, Address: "192.0.2.1:29500"}})
	require.ErrorContains(t, err, "192.0.2.1:29500 is reachable from other machines, so it needs a secret: set OCTET_SECRET_FILE")
}

func TestSecretFromEnv(t *testing.T) {
	secret, err := SecretFromEnv(env(""))
	require.NoError(t, err)
	require.Nil(t, secret)
	path := filepath.Join(t.TempDir(), "secret")
	_, err = SecretFromEnv(env("OCTET_SECRET_FILE=" + path))
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(path, []byte("short"), 0o600))
	_, err = SecretFromEnv(env("OCTET_SECRET_FILE=" + path))
	require.ErrorContains(t, err, "has 5 bytes: a secret has 16 or more")
	require.NoError(t, os.WriteFile(path, []byte("0123456789abcdef"), 0o600))
	secret, err = SecretFromEnv(env("OCTET_SECRET_FILE=" + path))
	require.NoError(t, err)
	require.Equal(t, Secret("0123456789abcdef"), secret)
}

// Strangers do not disturb a rendezvous: a port scan, random bytes, a hello without a secret.
func TestJoinStrangers(t *testing.T) {
	groups := join(t, 2, func(o *Options) {
		if o.Place.Rank == 0 {
			return
		}
		var c net.Conn
		require.Eventually(t, func() (ok bool) {
			var err error
			c, err = net.Dial("tcp", o.Place.Address)
			return err == nil
		}, 10*time.Second, 10*time.Millisecond)
		require.NoError(t, c.Close())
		c, err := net.Dial("tcp", o.Place.Address)
		require.NoError(t, err)
		_, err = c.Write(bytes.Repeat([]byte{0xff}, 1000))
		require.NoError(t, err)
		_, err = tls.Dial("tcp", o.Place.Address, &tls.Config{InsecureSkipVerify: true})
		if err == nil {
			t.Log("TLS 1.3 tells a client only later that it was refused")
		}
	})
	each(groups, func(g *Group) { require.NoError(t, g.Leave(t.Context())) })
}

// An occupied port is bad input.
func TestJoinOccupied(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	_, err = Join(t.Context(), Options{Place: Place{Size: 2, Address: l.Addr().String()}})
	lost, ok := errors.AsType[*Lost](err)
	require.True(t, ok)
	require.ErrorContains(t, err, "rank 0: it cannot listen at the rendezvous: ")
	require.Equal(t, CodeInput, lost.Code)
}

// A rank that is missing is named after the wait, by rank 0 and the others.
func TestJoinMissing(t *testing.T) {
	address := freeAddress(t)
	var all sync.WaitGroup
	for _, rank := range []int{0, 2} {
		all.Go(func() {
			_, err := Join(t.Context(), Options{Place: Place{Rank: rank, Size: 4, Address: address}, Wait: 500*time.Millisecond + time.Duration(rank)*time.Second})
			require.ErrorContains(t, err, "rank 1: it did not join (missing: rank 1, 3 of 4): context deadline exceeded")
		})
	}
	all.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := Join(ctx, Options{Place: Place{Rank: 1, Size: 2, Address: address}})
	require.ErrorContains(t, err, "rank 0: it does not answer at "+address)
}

// Broken frames are errors, and do not make the reader allocate what they announce.
func FuzzReceive(f *testing.F) {
	frame := func(m message) []byte {
		a, b := net.Pipe()
		go func() { _ = newConn(a).send(m); _ = a.Close() }()
		var all bytes.Buffer
		_, err := all.ReadFrom(b)
		require.NoError(f, err)
		return all.Bytes()
	}
	f.Add(frame(message{Kind: part, What: "round", Data: []byte{1, 2}}))
	f.Add(frame(message{Kind: ended, Lost: &Lost{Rank: 1, Cause: "c"}}))
	f.Add(binary.BigEndian.AppendUint32(nil, maxMessage))
	f.Add(binary.BigEndian.AppendUint32(nil, maxMessage+1))
	f.Fuzz(func(t *testing.T, frame []byte) {
		a, b := net.Pipe()
		go func() { _, _ = b.Write(frame); _ = b.Close() }()
		m, err := newConn(a).receive()
		_ = a.Close()
		if err == nil {
			require.LessOrEqual(t, len(m.Data), len(frame))
		}
	})
}

// Fail of rank 0 returns when all ranks were told why the group ended, whichever rank ended it: the
// process of rank 0 ends then.
func TestFailAfterTheEnd(t *testing.T) {
	for range 20 {
		groups := join(t, 4, func(*Options) {})
		each(groups, func(g *Group) {
			if g.Rank() == 3 {
				g.Fail(CodeInput, errors.New("no device"))
				return
			}
			<-g.Done()
			g.Fail(CodeFailed, g.Err())
			if g.Rank() == 0 {
				select {
				case <-g.hub.finished:
				default:
					t.Error("a rank may not know it yet")
				}
			}
		})
	}
}
