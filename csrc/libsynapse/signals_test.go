//go:build gaudi && cgo && linux

package libsynapse

import (
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"octet/csrc/standin"
)

// A signal reaches the program, and the device stays usable.
func TestSignalsDoNotAffectTheDevice(t *testing.T) {
	d := device(t)
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE} {
		incoming := make(chan os.Signal, 1)
		signal.Notify(incoming, s)
		require.NoError(t, syscall.Kill(os.Getpid(), s))
		select {
		case <-incoming:
		case <-time.After(10 * time.Second):
			require.Fail(t, "the signal did not arrive", s)
		}
		signal.Stop(incoming)
		_, _, err := d.Memory()
		require.NoError(t, err, s)
	}

	var nothing *[4]int
	require.Panics(t, func() { nothing[1]++ })
	_, _, err := d.Memory()
	require.NoError(t, err)
}

// signalStack is a stack_t.
type signalStack struct {
	at    uintptr
	flags int32
	bytes uintptr
}

// The loading thread keeps the stack on which Go handles signals.
func TestLoadingKeepsTheSignalStack(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	stack := func() (s signalStack) {
		_, _, err := syscall.RawSyscall(syscall.SYS_SIGALTSTACK, 0, uintptr(unsafe.Pointer(&s)), 0)
		require.Zero(t, err)
		return s
	}
	t.Setenv("OCTET_LIBSYNAPSE", standin.Build(t, "libsynapse"))
	before := stack()
	_, err := startSynapse()
	require.NoError(t, err)
	require.Equal(t, before, stack())
}
