//go:build mpi && cgo && linux

package libmpi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/csrc/standin"
)

func TestMain(m *testing.M) { Exit(m.Run()) }

// ranks runs a test in n processes; each calls body with its world.
func ranks(t *testing.T, n int, body func(t *testing.T, w *World)) {
	if !standin.InRank() {
		standin.Succeeded(t, standin.RunRanks(t, n))
		return
	}
	w, err := Open(t.Context())
	require.NoError(t, err)
	body(t, w)
	require.NoError(t, w.Close(t.Context()))
	require.ErrorIs(t, w.Bcast(t.Context(), nil, 0), ErrClosed)
}

// content is the bytes that a rank sends to another one, in a call.
func content(call, from, to, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8 + call*31 + from*5 + to*3)
	}
	return b
}

// layout returns parts of these sizes, with gaps, and the size of a buffer for them.
func layout(sizes []int) (parts []Part, total int) {
	for i, n := range sizes {
		total += i // a gap
		parts = append(parts, Part{total, n})
		total += n
	}
	return parts, total + 1
}

func TestCollectives(t *testing.T) {
	for n := 1; n <= 4; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			ranks(t, n, func(t *testing.T, w *World) {
				if n > 1 || !standin.RealMPI() {
					require.Equal(t, n, w.Size())
				}
				for call, scale := range []int{0, 1, 1000, 1<<20 + 1} {
					testBcast(t, w, call, scale)
					testAllToAll(t, w, call, scale)
					testAllGather(t, w, call, scale, false)
					testAllGather(t, w, call, scale, true)
				}
			})
		})
	}
}

func testBcast(t *testing.T, w *World, call, scale int) {
	for root := range w.Size() {
		buffer := make([]byte, scale)
		if w.Rank() == root {
			buffer = content(call, root, 0, scale)
		}
		require.NoError(t, w.Bcast(t.Context(), buffer, root))
		require.True(t, bytes.Equal(content(call, root, 0, scale), buffer), "from %d", root)
	}
}

func testAllToAll(t *testing.T, w *World, call, scale int) {
	size := func(from, to int) int { return scale * (from + 2*to) / 3 }
	var sends, receives []int
	for r := range w.Size() {
		sends, receives = append(sends, size(w.Rank(), r)), append(receives, size(r, w.Rank()))
	}
	sendParts, n := layout(sends)
	recvParts, m := layout(receives)
	send, recv, want := make([]byte, n), bytes.Repeat([]byte{9}, m), bytes.Repeat([]byte{9}, m)
	for r := range w.Size() {
		copy(send[sendParts[r].Offset:], content(call, w.Rank(), r, sends[r]))
		copy(want[recvParts[r].Offset:], content(call, r, w.Rank(), receives[r]))
	}
	require.NoError(t, w.AllToAll(t.Context(), send, sendParts, recv, recvParts))
	require.True(t, bytes.Equal(want, recv), "scale %d", scale)
}

func testAllGather(t *testing.T, w *World, call, scale int, inPlace bool) {
	var sizes []int
	for r := range w.Size() {
		sizes = append(sizes, scale*((r+1)%3))
	}
	parts, n := layout(sizes)
	recv, want := bytes.Repeat([]byte{9}, n), bytes.Repeat([]byte{9}, n)
	for r, p := range parts {
		copy(want[p.Offset:], content(call, r, 0, p.Bytes))
	}
	send := content(call, w.Rank(), 0, sizes[w.Rank()])
	if inPlace {
		copy(recv[parts[w.Rank()].Offset:], send)
		send = nil
	}
	require.NoError(t, w.AllGather(t.Context(), send, recv, parts))
	require.True(t, bytes.Equal(want, recv), "scale %d, in place %t", scale, inPlace)
}

// A bad argument is an error before MPI is called, and the World still works.
func TestArguments(t *testing.T) {
	ranks(t, 2, func(t *testing.T, w *World) {
		ctx, b := t.Context(), make([]byte, 8)
		halves := []Part{{0, 4}, {4, 4}}
		require.EqualError(t, w.Bcast(ctx, b, 2), "broadcast from rank 2: ranks are 0 to 1")
		require.EqualError(t, w.AllToAll(ctx, b, halves[:1], b, halves), "all-to-all: 1 parts of the send buffer for 2 ranks")
		require.EqualError(t, w.AllGather(ctx, nil, b, []Part{{0, 4}, {5, 4}}),
			"all-gather: the part of rank 1, 4 bytes at 5, is outside the receive buffer of 8 bytes")
		require.ErrorContains(t, w.AllGather(ctx, nil, b, []Part{{-1, 4}, {4, 4}}), "the part of rank 0")
		require.ErrorContains(t, w.AllGather(ctx, nil, b, []Part{{0, -1}, {4, 4}}), "the part of rank 0")
		require.ErrorContains(t, w.AllGather(ctx, b, make([]byte, 8), halves), "sends 8 bytes, but its part has 4")
		require.NoError(t, w.AllGather(ctx, nil, b, halves))

		_, err := Open(ctx)
		require.ErrorContains(t, err, "a process can initialize it once")
	})
}

func TestACollectiveAllocatesNothing(t *testing.T) {
	ranks(t, 2, func(t *testing.T, w *World) {
		b, parts := make([]byte, 8), []Part{{0, 4}, {4, 4}}
		require.Zero(t, testing.AllocsPerRun(100, func() {
			if err := w.AllGather(t.Context(), nil, b, parts); err != nil {
				panic(err)
			}
		}))
	})
}

// Stop and the end of a context end a wait for a rank that does not come, and every later
// call.
func TestStop(t *testing.T) {
	lost := errors.New("rank 1 is lost")
	for name, wait := range map[string]func(w *World) error{
		"stop": func(w *World) error {
			time.AfterFunc(100*time.Millisecond, func() { w.Stop(lost) })
			return w.Bcast(context.Background(), make([]byte, 1<<20), 1)
		},
		"context": func(w *World) error {
			ctx, cancel := context.WithTimeoutCause(context.Background(), 100*time.Millisecond, lost)
			defer cancel()
			return w.AllGather(ctx, nil, make([]byte, 1<<20), []Part{{0, 1 << 19}, {1 << 19, 1 << 19}})
		},
		"close": func(w *World) error {
			ctx, cancel := context.WithTimeoutCause(context.Background(), 100*time.Millisecond, lost)
			defer cancel()
			return w.Close(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			if !standin.InRank() {
				for _, e := range standin.RunRanks(t, 2) {
					require.Equal(t, 5, e.Code, "%s", e.Output)
				}
				return
			}
			w, err := Open(t.Context())
			require.NoError(t, err)
			if w.Rank() == 0 {
				require.ErrorIs(t, wait(w), lost)
				require.ErrorIs(t, w.AllGather(t.Context(), nil, nil, make([]Part, 2)), w.Err())
				require.NoError(t, w.Close(t.Context()))
			} else {
				time.Sleep(time.Second)
			}
			os.Exit(5)
		})
	}
}

// A killed rank does not hang the others once the control plane stops their worlds. A
// launcher may kill them before.
func TestKilledRank(t *testing.T) {
	if !standin.InRank() {
		exits := standin.RunRanks(t, 3)
		if standin.RealMPI() {
			require.NotZero(t, exits[0].Code)
			return
		}
		for rank, code := range []int{4, -1, 4} {
			require.Equal(t, code, exits[rank].Code, "%s", exits[rank].Output)
		}
		return
	}
	w, err := Open(t.Context())
	require.NoError(t, err)
	b, parts := make([]byte, 3<<20), []Part{{0, 1 << 20}, {1 << 20, 1 << 20}, {2 << 20, 1 << 20}}
	require.NoError(t, w.AllGather(t.Context(), nil, b, parts))
	if w.Rank() == 1 {
		time.Sleep(200 * time.Millisecond) // the others wait now
		require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGKILL))
	}
	time.AfterFunc(time.Second, func() { w.Stop(errors.New("rank 1 is lost")) })
	require.EqualError(t, w.AllGather(t.Context(), nil, b, parts), "rank 1 is lost")
	os.Exit(4)
}

// Abort ends all ranks, also one that waits.
func TestAbort(t *testing.T) {
	if !standin.InRank() {
		for _, e := range standin.RunRanks(t, 2) {
			require.Equal(t, 7, e.Code, "%s", e.Output)
		}
		return
	}
	w, err := Open(t.Context())
	require.NoError(t, err)
	if w.Rank() == 0 {
		time.AfterFunc(100*time.Millisecond, func() { w.Abort(7) })
	}
	_ = w.Bcast(t.Context(), make([]byte, 1), 1-w.Rank())
	time.Sleep(time.Minute)
}

// The stand-in detects mistakes that would hang or corrupt results with MPI.
func TestRanksThatDiffer(t *testing.T) {
	if standin.RealMPI() {
		t.Skip("MPI hangs where the stand-in returns an error")
	}
	for name, calls := range map[string]func(w *World) error{
		"sizes": func(w *World) error { return w.Bcast(t.Context(), make([]byte, 1+w.Rank()), 0) },
		"collectives": func(w *World) error {
			if w.Rank() == 0 {
				return w.Bcast(t.Context(), make([]byte, 1), 0)
			}
			return w.AllGather(t.Context(), nil, make([]byte, 2), []Part{{0, 1}, {1, 1}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			if !standin.InRank() {
				exits := standin.RunRanks(t, 2)
				standin.Succeeded(t, exits)
				require.Contains(t, exits[1].Output, "the ranks' calls differ")
				return
			}
			w, err := Open(t.Context())
			require.NoError(t, err)
			err = calls(w)
			if w.Rank() == 1 {
				require.EqualError(t, err, "MPI_Test returned 15: message truncated")
				require.Equal(t, err, w.Bcast(t.Context(), nil, 0), "the World has stopped")
			}
		})
	}
}

// An error of an operation stops the World.
func TestErrors(t *testing.T) {
	if standin.RealMPI() {
		t.Skip("needs a stand-in that returns an error")
	}
	for variable, want := range map[string]string{
		"STANDIN_MPI_ERROR=16":  "MPI_Test returned 16: known error not in this list",
		"STANDIN_MPI_THREADS=0": "MPI_Init_thread without MPI_THREAD_FUNNELED returned 16: known error not in this list",
		"PMI_RANK=2":            "MPI_Init_thread returned 13: invalid argument",
	} {
		t.Run(variable, func(t *testing.T) {
			if !standin.InRank() {
				standin.Succeeded(t, standin.RunRanks(t, 1, variable))
				return
			}
			if name, value, _ := strings.Cut(variable, "="); name == "PMI_RANK" {
				t.Setenv(name, value) // RunRanks sets it last
			}
			w, err := Open(t.Context())
			if err == nil {
				err = w.Bcast(t.Context(), make([]byte, 1), 0)
				require.NoError(t, w.Close(t.Context()))
			}
			require.ErrorContains(t, err, want)
		})
	}
}

// Probe and Open name the files that were tried, and say what to install.
func TestUnfitLibrary(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing.so")
	t.Setenv("OCTET_LIBMPI", missing)
	_, err := Probe()
	require.EqualError(t, err, "not found: "+missing+"; "+howToInstall)
	_, err = Open(t.Context())
	require.EqualError(t, err, "not found: "+missing+"; "+howToInstall)

	if standin.RealMPI() {
		return
	}
	path := standin.Build(t, "libmpi_abi")
	t.Setenv("OCTET_LIBMPI", path)
	library, err := Probe()
	require.NoError(t, err)
	require.Equal(t, Library{path, "Octet's stand-in for MPI: 1"}, library)
	t.Setenv("STANDIN_MPI_ABI", "2")
	_, err = Open(t.Context())
	require.EqualError(t, err, path+" has version 2.0 of MPI's ABI: version 1 is needed; "+howToInstall)
}

// BenchmarkWait measures the processor time of four ranks that wait: for a rank that comes
// two seconds late, and in 2,000 all-to-alls of 4 bytes.
//
//	OCTET_TEST_MPIEXEC=mpiexec OCTET_LIBMPI=libmpi_abi.so.1 go test -tags mpi -run - -bench Wait ./csrc/libmpi
func BenchmarkWait(b *testing.B) {
	if !standin.InRank() {
		standin.LogFigures(b, standin.RunRanks(b, 4))
		return
	}
	w, err := Open(b.Context())
	require.NoError(b, err)
	var parts []Part
	for r := range w.Size() {
		parts = append(parts, Part{4 * r, 4})
	}
	send, recv := make([]byte, 4*w.Size()), make([]byte, 4*w.Size())
	const late, runs = 2 * time.Second, 2000
	measure := func(name string, n int, f func()) {
		require.NoError(b, w.AllToAll(b.Context(), send, parts, recv, parts))
		start, used := time.Now(), processorTime(b)
		f()
		if w.Rank() == 1 {
			standin.Figure("%s: %v, %v of processor time", name, time.Since(start)/time.Duration(n), processorTime(b)-used)
		}
	}
	measure("late rank", 1, func() {
		if w.Rank() == 0 {
			time.Sleep(late)
		}
		require.NoError(b, w.AllToAll(b.Context(), send, parts, recv, parts))
	})
	measure("each all-to-all", runs, func() {
		for range runs {
			require.NoError(b, w.AllToAll(b.Context(), send, parts, recv, parts))
		}
	})
	require.NoError(b, w.Close(b.Context()))
}

// processorTime returns the time that this process has used.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
