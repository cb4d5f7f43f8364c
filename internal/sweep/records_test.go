package sweep

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/internal/writers"
)

// recordRun writes a run folder whose losses are those given, with the largest update of each step
// and a log.
func recordRun(t *testing.T, dir string, losses, updates []string, log string) {
	t.Helper()
	var metrics, timing strings.Builder
	for i, loss := range losses {
		update := ""
		if updates != nil {
			update = fmt.Sprintf(`,"update":{"rms":1,"embedding_rms":1,"largest":%s}`, updates[i])
		}
		fmt.Fprintf(&metrics, "{\"step\":%d,\"loss\":%s%s}\n", i+1, loss, update)
		fmt.Fprintf(&timing, "{\"step\":%d,\"step_s\":%d}\n", i+1, i+1)
	}
	begin(t, dir, "seed = 1\n", metrics.String())
	require.NoError(t, os.WriteFile(filepath.Join(dir, writers.TimingFile), []byte(timing.String()), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, writers.RunLogFile), []byte(log), 0o600))
}

func TestRecords(t *testing.T) {
	s := newSweep(map[string][]float64{"a": {1, 1, 1}, "b": {1, 1, 0}, "c": {1, 0, 0}, "d": {0, 0, 0}}, "a", "b", "c", "d")
	s.Dir = t.TempDir()
	for _, v := range s.Variants {
		v.Folder = v.Name
	}
	for _, r := range s.rows {
		r.Folder = runFolder(r.Variant.Folder, r.Seed)
		if r.State != Done {
			continue
		}
		losses, updates, log := []string{"4", "3", "2"}, []string{"1", "2", "1"}, ""
		switch {
		case r.Variant.Name == "b" && r.Seed == 1:
			losses = []string{"4.5", "2", "2.25"}
			log = "{\"level\":\"WARN\",\"msg\":\"spike\",\"step\":2}\n{\"level\":\"WARN\",\"msg\":\"other\",\"step\":2}\n"
		case r.Variant.Name == "b":
			losses, updates = []string{"3", "2"}, []string{"7", "1"} // shorter than its baseline
		case r.Variant.Name == "c":
			losses, updates = []string{"4", "null", "2"}, nil
		}
		recordRun(t, filepath.Join(s.Dir, r.Folder), losses, updates, log)
	}
	list := s.Records()
	require.Len(t, list, 4)
	require.Equal(t, Records{Variant: s.Variants[0], LargestUpdate: 2, StepSeconds: 2}, list[0])
	require.Equal(t, Records{Variant: s.Variants[1], WorstStep: []float64{0.5, -1}, LargestUpdate: 7, Spikes: 1, StepSeconds: 1.75}, list[1])
	require.Equal(t, []float64{math.Inf(1)}, list[2].WorstStep)
	require.True(t, math.IsNaN(list[2].LargestUpdate))
	require.True(t, math.IsNaN(list[3].StepSeconds))
	require.Empty(t, list[3].WorstStep)
}
