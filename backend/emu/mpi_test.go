//go:build mpi && cgo && linux

package emu

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/emu/pool"
	"octet/csrc/libmpi"
	"octet/csrc/standin"
)

func TestMain(m *testing.M) {
	status := m.Run()
	Exit(status)
	libmpi.Exit(status) // of a world that the test opened and closed
}

// Collectives between processes have the same bits as those of ranks in one process.
func TestCollectivesOverMPI(t *testing.T) {
	for n := 1; n <= 4; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			if !standin.InRank() {
				standin.Succeeded(t, standin.RunRanks(t, n))
				return
			}
			w, err := openMPI(t.Context())
			require.NoError(t, err)
			p := withPool(newProcesses(w), pool.New(2))
			for _, elems := range orderedSizes(n) {
				require.NoError(t, newOrdered(t, n, elems).compare(t.Context(), p))
			}
			require.NoError(t, w.Close(t.Context()))
		})
	}
}

// BenchmarkAllReduceOverMPI measures ordered all-reduces of two processes, of one value and
// of 100 MiB.
//
//	OCTET_TEST_MPIEXEC=mpiexec OCTET_LIBMPI=libmpi_abi.so.1 go test -tags mpi -run - -bench OverMPI ./backend/emu
func BenchmarkAllReduceOverMPI(b *testing.B) {
	if !standin.InRank() {
		standin.LogFigures(b, standin.RunRanks(b, 2))
		return
	}
	w, err := openMPI(b.Context())
	require.NoError(b, err)
	p := withPool(newProcesses(w), pool.New(1))
	for _, c := range []struct{ elems, runs int }{{1, 20000}, {25 << 20, 10}} {
		run := p.allReduce(make([]float32, c.elems), backend.ReduceSum)
		var times []time.Duration
		for range c.runs {
			start := time.Now()
			require.NoError(b, run(b.Context()))
			times = append(times, time.Since(start))
		}
		slices.Sort(times)
		if w.Rank() == 0 {
			standin.Figure("%d bytes: median %v, least %v", 4*c.elems, times[len(times)/2], times[0])
		}
	}
	require.NoError(b, w.Close(b.Context()))
}
