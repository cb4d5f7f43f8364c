package run

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/internal/disk"
	"octet/train"
)

// otherKernels is emu with the arithmetic of another processor.
type otherKernels struct{ backend.Backend }

func (o otherKernels) Spec() backend.Spec {
	s := o.Backend.Spec()
	s.Arithmetic = "abacus"
	return s
}

// A resumed run reports the backend that wrote the checkpoint if it differs from its own in
// the last bits.
func TestMoved(t *testing.T) {
	emu, _, err := backend.Find("emu")
	require.NoError(t, err)
	emu.Name, emu.Priority = "emu-elsewhere", emu.Priority-1
	openEmu := emu.Open
	emu.Open = func(device string, o backend.Options) (backend.Backend, error) {
		b, err := openEmu(device, o)
		return otherKernels{b}, err
	}
	t.Cleanup(backend.Register(emu))

	c := train.Default()
	c.Recipe = "bf16"
	c.Model.Layers, c.Model.Dim, c.Model.Heads, c.Model.KVHeads, c.Model.FFN = 1, 32, 2, 1, 48
	c.Data.Seq, c.Train.MicroBatch, c.Train.Steps = 32, 2, 1
	c.Data.Paths = []string{filepath.Join(t.TempDir(), "text.txt")}
	require.NoError(t, c.Resolve())
	require.NoError(t, disk.WriteAtomic(c.Data.Paths[0], bytes.Repeat([]byte("text "), 1000)))
	dir := filepath.Join(t.TempDir(), "run")
	start := func(name string) (moved, kernels string) {
		r, err := Start(t.Context(), Options{Config: c, Dir: dir, Resume: exists(dir), Backend: name, Threads: 1})
		require.NoError(t, err)
		require.NoError(t, r.Train(t.Context(), func(Progress) {}))
		kernels = r.Device.Spec().Arithmetic
		require.NoError(t, r.Close())
		c.Train.Steps++
		return r.Moved, kernels
	}
	moved, kernels := start("emu")
	require.Empty(t, moved)
	require.NotEmpty(t, kernels)
	moved, _ = start("emu")
	require.Empty(t, moved, "the same backend")
	moved, _ = start("emu-elsewhere")
	require.Equal(t, "emu, "+kernels, moved)
	moved, _ = start("emu")
	require.Equal(t, "emu, abacus", moved)
}
