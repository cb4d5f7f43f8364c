package run

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
)

// metered is a device of so many threads, each of which does 8 FLOP/s.
type metered struct {
	backend.Backend
	threads int
}

func (d metered) Spec() backend.Spec   { return backend.Spec{Threads: d.threads} }
func (d metered) Meter() backend.Meter { return d }
func (d metered) FLOPs() float64       { return 8 * float64(max(1, d.threads)) }
func (d metered) Bytes() float64       { return 0 }

// A machine does not reach more than its processors do, however many ranks share
// them; devices of their own add up.
func TestPeakOfRanks(t *testing.T) {
	processors := min(runtime.GOMAXPROCS(0), runtime.NumCPU())
	ranks := func(n, threads int) (list []backend.Backend) {
		for range n {
			list = append(list, metered{threads: threads})
		}
		return list
	}
	machine := 8 * float64(processors)
	require.InEpsilon(t, machine, peakFLOPs(ranks(1, processors)), 1e-12)
	require.InEpsilon(t, machine, peakFLOPs(ranks(4*processors, 1)), 1e-12)
	require.InEpsilon(t, machine, peakFLOPs(ranks(3, processors)), 1e-12)
	require.InEpsilon(t, 8.0, peakFLOPs(ranks(1, 1)), 1e-12)
	require.InEpsilon(t, 8.0*64, peakFLOPs(ranks(64, 0)), 1e-12)
	require.Zero(t, peakFLOPs([]backend.Backend{metered{threads: 1}, struct{ backend.Backend }{}}))
}
