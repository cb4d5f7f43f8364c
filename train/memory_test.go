package train

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/data"
)

// ids is a stream of random token ids.
type ids struct{ vocab, n int }

func (s ids) Len() int64 { return int64(s.n) }

func (s ids) ReadTokens(dst []int32, at int64) error {
	r := rand.New(rand.NewPCG(uint64(at), 1))
	for i := range dst {
		dst[i] = int32(r.IntN(s.vocab))
	}
	return nil
}

// anonymous returns the process's anonymous memory in bytes, after a garbage
// collection that returns free memory to the system.
func anonymous(t *testing.T) int64 {
	t.Helper()
	debug.FreeOSMemory()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip("no /proc/self/status: cannot read the process's anonymous memory")
	}
	for line := range bytes.Lines(status) {
		if fields := bytes.Fields(line); len(fields) == 3 && string(fields[0]) == "RssAnon:" {
			kB, err := strconv.ParseInt(string(fields[1]), 10, 64)
			require.NoError(t, err)
			return kB << 10
		}
	}
	t.Skip("this kernel does not report RssAnon")
	return 0
}

// The planned memory of a run is within 5 % of the anonymous memory of a process that
// only trains.
func TestMemoryIsAsPlanned(t *testing.T) {
	const variable = "OCTET_TEST_MEMORY" // set in the process that trains
	presets := []string{"tiny"}
	if os.Getenv("OCTET_LONG") != "" {
		presets = append(presets, "small")
	}
	for _, preset := range presets {
		for _, name := range []string{"bf16", "fp8-smooth"} {
			t.Run(preset+" "+name, func(t *testing.T) {
				if os.Getenv(variable) == "" {
					command := exec.Command(os.Args[0], "-test.run=^"+strings.ReplaceAll(t.Name(), "/", "$/^")+"$", "-test.v")
					command.Env = append(os.Environ(), variable+"=1")
					out, err := command.CombinedOutput()
					t.Logf("%s", out)
					require.NoError(t, err)
					return
				}
				c, err := Preset(preset)
				require.NoError(t, err)
				c.Recipe = name
				j, err := NewJob(c, specOf(t, "emu"))
				require.NoError(t, err)
				d, err := backend.Open("emu", backend.Options{Threads: 2})
				require.NoError(t, err)
				stream := ids{c.Model.Vocab, 100_000}
				tr, err := NewTrainer(j, &data.Corpus{Train: stream, Val: stream}, d, nil)
				require.NoError(t, err)
				require.NoError(t, tr.Init(context.Background()))
				_, err = tr.Next(context.Background())
				require.NoError(t, err)
				measured := anonymous(t)

				lowered, err := backend.Lower(d.Spec(), j.Programs()...)
				require.NoError(t, err)
				memory, err := j.MemoryOf(d.Spec(), lowered...)
				require.NoError(t, err)
				planned := memory.Total()
				t.Logf("planned %.1f MB, measured %.1f MB", float64(planned)/1e6, float64(measured)/1e6)
				require.InEpsilon(t, planned, measured, 0.05)
				require.NoError(t, d.Close())
				runtime.KeepAlive(tr)
			})
		}
	}
}
