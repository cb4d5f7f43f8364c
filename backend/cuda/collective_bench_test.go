//go:build cuda && cgo && linux

package cuda

import (
	"flag"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/world"
	"octet/csrc/standin"
	"octet/fp8"
)

var (
	benchRanks = flag.Int("ranks", 2, "the ranks of BenchmarkCollectives, a GPU and a process each")
	benchSizes = flag.String("sizes", "1", "the sizes of BenchmarkCollectives, in MiB, with commas between")
)

// BenchmarkCollectives measures the collectives of programs between processes: GB/s is the bus
// bandwidth as NVIDIA's nccl-tests define it (doc/PERFORMANCE.md there), which all_reduce_perf
// prints as busbw.
func BenchmarkCollectives(b *testing.B) {
	if standin.InRank() {
		benchmarkRank(b)
		return
	}
	standIns(b)
	measured := map[string]float64{}
	for _, e := range startRanks(b, *benchRanks, fmt.Sprint("-ranks=", *benchRanks), "-sizes="+*benchSizes) {
		require.Zero(b, e.Code, e.Output)
		for line := range strings.Lines(e.Output) {
			var name string
			var rate float64
			if _, err := fmt.Sscanf(line, "busbw %s %g", &name, &rate); err == nil {
				measured[name] = rate
			}
		}
	}
	for _, c := range backend.Collectives() {
		for _, size := range sizes(b) {
			name := fmt.Sprint(c.Name, "/", size, "MiB")
			require.Contains(b, measured, name)
			b.Run(name, func(b *testing.B) {
				b.ReportMetric(measured[name], "GB/s")
				b.ReportMetric(0, "ns/op") // of nothing
			})
		}
	}
}

func sizes(b *testing.B) (list []int) {
	for text := range strings.SplitSeq(*benchSizes, ",") {
		n, err := strconv.Atoi(text)
		require.NoError(b, err)
		list = append(list, n)
	}
	return list
}

// benchmarkRank is BenchmarkCollectives in the process of a rank. Rank 0 prints the figures.
func benchmarkRank(b *testing.B) {
	g := standin.JoinWorld(b, time.Minute)
	for _, c := range backend.Collectives() {
		for _, size := range sizes(b) {
			d, err := open("", backend.Options{Group: g})
			require.NoError(b, err)
			v, n := backend.NewVars(), size<<18/g.Size()
			p := v.Program(c.Name)
			p.Add(c.New(v.Tensor(backend.Stash, "whole", fp8.F32, n*g.Size()), v.Tensor(backend.Stash, "part", fp8.F32, n)))
			loaded, err := d.Load(p)
			require.NoError(b, err)
			const rounds = 20
			took := timeRuns(b, g, d.(*device), loaded[0], rounds)
			bytes := float64(4 * n * (g.Size() - 1)) // (n-1)/n of the whole tensor
			if g.Rank() == 0 {
				fmt.Printf("busbw %s/%dMiB %g\n", c.Name, size, float64(c.Passes)*bytes*rounds/took.Seconds()/1e9)
			}
			require.NoError(b, d.Close())
		}
	}
	require.NoError(b, g.Leave(b.Context()))
}

// timeRuns returns the time of runs by a graph, which begin on all ranks at once.
func timeRuns(b *testing.B, g *world.Group, d *device, x backend.Executable, rounds int) time.Duration {
	run := func(n int) {
		for range n {
			require.NoError(b, x.Run(b.Context()))
		}
		require.NoError(b, d.synchronize("run"))
	}
	run(3) // the second records the graph
	_, err := g.Exchange(b.Context(), "the begin of a measurement", nil)
	require.NoError(b, err)
	start := time.Now()
	run(rounds)
	return time.Since(start)
}
