package train

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/checkpoint"
)

// A snapshot equals a checkpoint of the same step, does not change while training
// continues, and its memory is reused by the next one.
func TestSnapshot(t *testing.T) {
	for _, recipe := range []string{"bf16", "fp8-smooth"} { // masters in FP32, and in FP16 with a scale
		c := small(t, recipe)
		c.Train.Steps = 6
		tr := newTrainer(t, c, 2, false)
		steps(t, tr, 2)
		at2, err := tr.Contents("test", "emu")
		require.NoError(t, err)
		want := contentsOf(t, at2)

		var s Snapshot
		require.NoError(t, tr.Snapshot(&s, "test", "emu"))
		require.Len(t, s.bytes, int(tr.snapshotBytes()))
		covered := 0
		for x, raw := range s.of {
			require.Len(t, raw, int(x.Bytes()))
			covered += len(raw)
		}
		require.Equal(t, len(s.bytes), covered, "every tensor once")
		steps(t, tr, 2)
		require.Equal(t, want, contentsOf(t, s.Contents()))

		memory := &s.bytes[0]
		require.NoError(t, tr.Snapshot(&s, "test", "emu"))
		require.Same(t, memory, &s.bytes[0])
		at4 := contentsOf(t, s.Contents())
		for name := range want["model"] {
			require.NotEqual(t, want["model"][name], at4["model"][name], name)
		}
	}
}

// A snapshot can be reused after a change of recipe.
func TestSnapshotAcrossAChange(t *testing.T) {
	c := scheduled(small(t, "fp8-smooth"), RecipeChange{2, "fp32"})
	c.Train.Steps = 4
	tr := newTrainer(t, c, 1, false)
	var s Snapshot
	for range 4 {
		steps(t, tr, 1)
		require.NoError(t, tr.Snapshot(&s, "test", "emu"))
		fresh, err := tr.Contents("test", "emu")
		require.NoError(t, err)
		require.Equal(t, contentsOf(t, fresh), contentsOf(t, s.Contents()))
	}
}

// contentsOf returns the bytes of every tensor of a checkpoint, by file and name.
func contentsOf(t *testing.T, c checkpoint.Contents) map[string]map[string]string {
	t.Helper()
	all := map[string]map[string]string{"model": {}, "optimizer": {}}
	for file, list := range map[string][]checkpoint.Tensor{"model": c.Model, "optimizer": c.Optimizer} {
		for _, x := range list {
			var b bytes.Buffer
			require.NoError(t, x.Data(&b))
			all[file][x.Name] = b.String()
		}
	}
	return all
}

// A checkpoint has as many bytes however many ranks share the optimizer state.
func TestCheckpointBytes(t *testing.T) {
	for _, recipe := range []string{"bf16", "fp8-smooth", "ms-amp-adam"} {
		c := small(t, recipe)
		tr := newTrainer(t, c, 2, false)
		contents, err := tr.Contents("test", "emu")
		require.NoError(t, err)
		want := int64(0)
		for _, x := range slices.Concat(contents.Model, contents.Optimizer) {
			var data bytes.Buffer
			require.NoError(t, x.Data(&data))
			want += int64(data.Len())
		}
		require.Equal(t, want, tr.CheckpointBytes(), recipe)
		c.Train.Ranks, c.Train.ZeroStage = 3, 1
		if recipe == "ms-amp-adam" {
			c.Train.ZeroStage = 0
		}
		shared, err := NewJob(c, tr.Device)
		require.NoError(t, err)
		require.Equal(t, want, shared.CheckpointBytes(), recipe)
	}
}
