package checkpoint

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMain lets the test binary run as the other process of TestLock, and as the ranks of
// TestKilledRank.
func TestMain(m *testing.M) {
	if text := os.Getenv(rankProcess); text != "" {
		runRank(text)
		os.Exit(0)
	}
	if dir := os.Getenv("OCTET_TEST_LOCK"); dir != "" {
		if _, err := Lock(dir); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("locked")
		bufio.NewReader(os.Stdin).ReadByte() // until killed
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestLock(t *testing.T) {
	dir := t.TempDir()
	other := exec.Command(os.Args[0])
	other.Env = append(os.Environ(), "OCTET_TEST_LOCK="+dir)
	in, err := other.StdinPipe()
	require.NoError(t, err)
	defer in.Close()
	out, err := other.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, other.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "locked\n", line)

	_, err = Lock(dir)
	require.ErrorContains(t, err, "the run folder "+dir+" is in use by another octet process")
	require.NoError(t, other.Process.Kill())
	require.Error(t, other.Wait())

	unlock, err := Lock(dir)
	require.NoError(t, err, "a killed process leaves no lock")
	_, err = Lock(dir)
	require.ErrorContains(t, err, "in use")
	require.NoError(t, unlock())
	unlock, err = Lock(dir)
	require.NoError(t, err)
	require.NoError(t, unlock())

	_, err = Lock(filepath.Join(dir, "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestLockThatIsRemoved removes the LockFile before unlock. At no time may two holders
// have the lock, one of the removed file and one of its successor.
func TestLockThatIsRemoved(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows cannot remove an open file")
	}
	dir := t.TempDir()
	var holders, locked atomic.Int32
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 500 {
				unlock, err := Lock(dir)
				if err != nil {
					continue
				}
				locked.Add(1)
				if holders.Add(1) != 1 {
					t.Error("two holders have the lock")
				}
				time.Sleep(10 * time.Microsecond)
				holders.Add(-1)
				_ = os.Remove(filepath.Join(dir, ".lock"))
				_ = unlock()
			}
		})
	}
	wg.Wait()
	require.Positive(t, locked.Load())
}
