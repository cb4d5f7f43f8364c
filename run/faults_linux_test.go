package run

import (
	"fmt"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/checkpoint"
)

// A full disk, if the test may mount one: two checkpoints fit, the third does not, and its
// partial files are removed to leave space for the records. With more space the run resumes.
func TestFullDisk(t *testing.T) {
	c := savingConfig(t)
	c.Checkpoint.KeepLast, c.Checkpoint.OnError = 9, "continue"
	want := uninterrupted(t, c)
	pages := 0
	for name, text := range want {
		if filepath.Dir(name) == filepath.Join(checkpointsDir, "step-00000002") {
			pages += len(text)>>12 + 1
		}
	}
	disk := t.TempDir()
	const records = 32 // pages; more than the files other than checkpoints of a run of 8 steps
	size := func(pages int) string { return fmt.Sprintf("size=%d", pages<<12) }
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, size(2*pages+pages/2+records)); err != nil {
		t.Skipf("this process may not mount a file system: %v", err)
	}
	defer func() { require.NoError(t, syscall.Unmount(disk, 0)) }()

	dir := filepath.Join(disk, "run")
	var reported []error
	err := tryTrain(t.Context(), c, dir, func(p Progress) {
		if p.SaveError != nil {
			reported = append(reported, p.SaveError)
		}
	})
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.ErrorContains(t, err, "writing the checkpoint of step 8: ")
	require.Len(t, reported, 1)
	require.ErrorIs(t, reported[0], syscall.ENOSPC)
	require.ErrorContains(t, reported[0], "writing the checkpoint of step 6: ")
	list, err := checkpoint.List(filepath.Join(dir, checkpointsDir))
	require.NoError(t, err)
	require.Len(t, list, 2)
	for _, e := range list {
		require.NoError(t, checkpoint.Verify(e.Path))
	}

	require.NoError(t, syscall.Mount("tmpfs", disk, "tmpfs", syscall.MS_REMOUNT, size(9*pages+records)))
	trainIn(t, c, dir, func(Progress) {})
	requireSameFiles(t, want, dir, "with more space")
}
