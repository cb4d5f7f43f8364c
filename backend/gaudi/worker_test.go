//go:build gaudi && cgo && linux

package gaudi

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/world"
	"octet/fp8"
)

// startTwo starts two ranks and loads a program that all-reduces x.
func startTwo(t *testing.T) (w *workers, ranks []*device, runs []backend.Executable) {
	t.Helper()
	w, err := startWorkers(-1, 2)
	require.NoError(t, err)
	for i, o := range w.list {
		d, err := newDevice(o.remote, i, 2, deviceOptions{unit: 1})
		require.NoError(t, err)
		v := backend.NewVars()
		x := v.Tensor(backend.Stash, "x", fp8.F32, 4)
		p := v.Program("sum")
		p.Add(&backend.Fill{Out: v.Tensor(backend.Stash, "y", fp8.F32, 4)})
		p.Add(&backend.AllReduce{X: x})
		loaded, err := d.Load(p)
		require.NoError(t, err)
		ranks, runs = append(ranks, d), append(runs, loaded[0])
	}
	return w, ranks, runs
}

// closeAll closes the ranks and checks that their processes have ended.
func (w *workers) closeAll(t *testing.T, ranks []*device) {
	t.Helper()
	for _, d := range ranks {
		require.NoError(t, d.Close())
	}
	for _, o := range w.list {
		require.ErrorIs(t, o.cmd.Process.Signal(syscall.Signal(0)), os.ErrProcessDone)
	}
}

// Each rank has its own process, which ends when the last rank is closed.
func TestRanksAreProcesses(t *testing.T) {
	devices(t, "gaudi2", "2")
	w, ranks, runs := startTwo(t)
	for i, d := range ranks {
		require.NoError(t, d.Write(d.vars.Lookup("x"), floats(1, 2, 3, float32(i))))
	}
	for _, x := range runs {
		require.NoError(t, x.Run(t.Context()))
	}
	for _, d := range ranks { // most ranks are never read from, so reads must work one after the other
		raw := make([]byte, 16)
		require.NoError(t, d.Read(d.vars.Lookup("x"), raw))
		require.Equal(t, floats(2, 4, 6, 1), raw)
	}
	a, b := w.list[0].cmd.Process, w.list[1].cmd.Process
	require.NotEqual(t, a.Pid, b.Pid)
	require.NoError(t, ranks[0].Close())
	require.NoError(t, a.Signal(syscall.Signal(0)), "a process ended before the last close")
	require.NoError(t, ranks[1].Close())
	require.Error(t, w.list[0].remote.synchronize(), "a call after Close succeeded")
	require.ErrorIs(t, a.Signal(syscall.Signal(0)), os.ErrProcessDone)
	require.ErrorIs(t, b.Signal(syscall.Signal(0)), os.ErrProcessDone)
}

// When a rank's process dies, all ranks fail and name it, including those that wait for
// it in a collective.
func TestRankDies(t *testing.T) {
	devices(t, "gaudi2", "2")
	w, ranks, runs := startTwo(t)
	require.NoError(t, runs[0].Run(t.Context())) // waits for rank 1
	time.AfterFunc(50*time.Millisecond, func() { _ = w.list[1].cmd.Process.Kill() })
	for _, d := range ranks {
		err := d.Read(d.vars.Lookup("x"), make([]byte, 16))
		require.ErrorIs(t, err, backend.ErrDeviceLost)
		require.ErrorContains(t, err, "the process of rank 1 has ended: signal: killed")
		require.NotContains(t, err.Error(), "\n")
	}
	require.ErrorIs(t, runs[0].Run(t.Context()), backend.ErrDeviceLost)
	for _, d := range ranks {
		require.NoError(t, d.Close())
	}
	list, err := open("", backend.Options{Ranks: 2})
	require.NoError(t, err, "the devices are not free")
	for _, b := range list {
		require.NoError(t, b.Close())
	}
}

// A rank that stops because its context ends or its observer returns an error ends the
// other ranks, with its reason.
func TestRankStops(t *testing.T) {
	stop := errors.New("enough")
	for name, abort := range map[string]func(x backend.Executable) error{
		"context": func(x backend.Executable) error {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			return x.Run(ctx)
		},
		"context, in a collective": func(x backend.Executable) error {
			ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
			defer cancel()
			return x.RunObserved(ctx, func(*backend.Node, backend.Memory) error { return nil })
		},
		"observer": func(x backend.Executable) error {
			return x.RunObserved(context.Background(), func(*backend.Node, backend.Memory) error { return stop })
		},
	} {
		t.Run(name, func(t *testing.T) {
			devices(t, "gaudi2", "2")
			t.Setenv("STANDIN_HCCL_SECONDS", "1000")
			w, ranks, runs := startTwo(t)
			require.Error(t, abort(runs[0]))
			err := runs[1].Run(t.Context())
			if err == nil {
				err = ranks[1].Read(ranks[1].vars.Lookup("x"), make([]byte, 16))
			}
			require.ErrorIs(t, err, backend.ErrDeviceLost)
			require.ErrorContains(t, err, "rank 0 left the group: ")
			w.closeAll(t, ranks)
		})
	}
}

// A rank that loses its device reports it, and ends the ranks that may wait for it.
func TestRankLosesItsDevice(t *testing.T) {
	t.Setenv("STANDIN_LOST", "1") // of each process
	devices(t, "gaudi2", "2")
	list, err := open("", backend.Options{Ranks: 2})
	require.NoError(t, err)
	_, p, _, _, out, _ := adding()
	loaded, err := list[1].Load(p)
	require.NoError(t, err)
	err = loaded[0].Run(t.Context())
	if err == nil {
		err = list[1].Read(out, make([]byte, out.Bytes()))
	}
	require.ErrorIs(t, err, backend.ErrDeviceLost)
	require.ErrorContains(t, err, "31 (synSynapseTerminated)")
	require.NoError(t, list[1].Close(), "Close of a lost device")
	err = list[0].(*device).synchronize()
	require.ErrorIs(t, err, backend.ErrDeviceLost)
	require.ErrorContains(t, err, "rank 1: ")
	require.NoError(t, list[0].Close())
}

// A rank that waits for another one beyond the timeout ends all ranks, and names the
// collective.
func TestCollectiveTimeout(t *testing.T) {
	devices(t, "gaudi2", "2")
	t.Setenv("STANDIN_HCCL_SECONDS", "1000")
	t.Setenv(world.TimeoutVariable, "3s") // also the timeout for starting the processes
	w, ranks, runs := startTwo(t)
	require.NoError(t, runs[0].Run(t.Context()))
	for _, d := range ranks {
		err := d.Read(d.vars.Lookup("x"), make([]byte, 16))
		require.ErrorIs(t, err, backend.ErrDeviceLost)
		require.EqualError(t, err, "gaudi: copy from the device: rank 0: device lost: waited 3s for its device or for other ranks; "+
			"its last collective is allreduce (OCTET_TIMEOUT sets a longer timeout)")
	}
	w.closeAll(t, ranks)
}

// A worker process that no longer answers ends all ranks.
func TestWorkerTimeout(t *testing.T) {
	devices(t, "gaudi2", "2")
	t.Setenv(world.TimeoutVariable, "1m")
	w, ranks, runs := startTwo(t)
	w.list[1].remote.limit = 500 * time.Millisecond // shorter than the message says
	require.NoError(t, w.list[1].cmd.Process.Signal(syscall.SIGSTOP))
	for rank := range ranks { // rank 1 first: rank 0 gets the same error
		err := runs[1-rank].Run(t.Context())
		require.ErrorIs(t, err, backend.ErrDeviceLost)
		require.EqualError(t, err, "gaudi: run program sum: device lost: the process of rank 1 has not answered for 1m2s (OCTET_TIMEOUT sets a longer timeout)")
	}
	w.closeAll(t, ranks)
}

// A hanging driver may keep a killed process from ending. explain does not wait for it.
func TestKilledWorkerThatHangs(t *testing.T) {
	w := &workers{dead: make(chan struct{})}
	here, there := net.Pipe()
	defer there.Close()
	cause := errors.New("no answer")
	w.kill(cause)
	require.Equal(t, cause, w.explain(&worker{conn: here, ended: make(chan struct{})}, io.EOF))
}

// Workers ignore the signals that end a job: they run until their parent is done.
func TestWorkersIgnoreSignals(t *testing.T) {
	devices(t, "gaudi2", "2")
	w, ranks, runs := startTwo(t)
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		for _, o := range w.list {
			require.NoError(t, o.cmd.Process.Signal(s))
		}
	}
	for i, d := range ranks {
		require.NoError(t, d.Write(d.vars.Lookup("x"), floats(1, 2, 3, float32(i))))
	}
	for _, x := range runs {
		require.NoError(t, x.Run(t.Context()))
	}
	for _, d := range ranks {
		raw := make([]byte, 16)
		require.NoError(t, d.Read(d.vars.Lookup("x"), raw))
		require.Equal(t, floats(2, 4, 6, 1), raw)
	}
	w.closeAll(t, ranks)
}

// An error of ranks that cannot connect names the variable for the network interface.
func TestRanksWithoutANetwork(t *testing.T) {
	devices(t, "gaudi2", "2")
	t.Setenv("STANDIN_NETWORK", "0")
	_, err := startWorkers(-1, 2)
	require.ErrorContains(t, err, "create the id of a communicator: ")
	require.ErrorContains(t, err, "hcclGetUniqueId returned 9 (hcclSocketError)")
	require.ErrorContains(t, err, "set HCCL_SOCKET_IFNAME to the network interface")

	t.Setenv("HCCL_SOCKET_IFNAME", "lo")
	w, ranks, _ := startTwo(t)
	w.closeAll(t, ranks)
}

func TestTimeoutVariable(t *testing.T) {
	devices(t, "gaudi2", "2")
	t.Setenv(world.TimeoutVariable, "soon")
	_, err := open("", backend.Options{Ranks: 2})
	require.EqualError(t, err, `backend gaudi: OCTET_TIMEOUT is "soon": a duration such as 10m or 1h30m is needed`)
}

// Workers end with their parent process, however it ends.
func TestWorkersEndWithTheirParent(t *testing.T) {
	if os.Getenv("OCTET_TEST_PARENT") != "" {
		_, ranks, runs := startTwo(t)
		require.NoError(t, runs[0].Run(t.Context()))
		go func() { _ = ranks[0].synchronize() }() // never returns
		time.Sleep(50 * time.Millisecond)
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		return
	}
	devices(t, "gaudi2", "2")
	parent := exec.Command(os.Args[0], "-test.run=^TestWorkersEndWithTheirParent$")
	parent.Env = append(os.Environ(), "OCTET_TEST_PARENT=1")
	require.ErrorContains(t, parent.Run(), "killed")
	require.Eventually(t, func() bool { // the devices are free
		list, err := open("", backend.Options{Ranks: 2})
		if err != nil {
			return false
		}
		for _, b := range list {
			require.NoError(t, b.Close())
		}
		return true
	}, 20*time.Second, 50*time.Millisecond)
}

func TestMain(m *testing.M) {
	RunWorker()
	os.Exit(m.Run())
}

// A program that does not call RunWorker cannot be started again as a worker.
func TestRanksNeedRunWorker(t *testing.T) {
	canServe = false
	defer func() { canServe = true }()
	_, err := new(workers).start(0, -1)
	require.EqualError(t, err, "several ranks need worker processes: call gaudi.RunWorker at the start of main")
}

// A worker without a parent process exits with an error in one line.
func TestWorkerWithoutAParent(t *testing.T) {
	for value, want := range map[string]string{"0": "there is no socket to a parent process", "yes": "is not a module number"} {
		command := exec.Command(os.Args[0])
		command.Env = append(os.Environ(), workerVariable+"="+value)
		out, err := command.CombinedOutput()
		require.Error(t, err)
		require.Equal(t, 1, command.ProcessState.ExitCode())
		require.Contains(t, string(out), want)
		require.Equal(t, 1, strings.Count(string(out), "\n"))
	}
}
