//go:build gaudi && cgo && linux

package standin

import (
	"debug/elf"
	"encoding/binary"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/csrc/standin/direct"
)

func TestCallsBeforeInitialize(t *testing.T) {
	s := load(t)
	_, p := s.memory(256)
	for _, name := range []string{
		"synDeviceGetCount", "synDeviceAcquireByModuleId", "synDeviceRelease",
		"synDeviceMalloc", "synHostMalloc", "synMemCopyAsync", "synStreamCreateGeneric", "synEventCreate", "synGraphCreate", "synGraphCompile", "synLaunch", "synRecipeSerialize",
	} {
		require.Equal(t, uninitialized, s.Call(name, p, p, p, p, p, p, p, p), name)
	}
	require.Equal(t, hcclInvalidUsage, s.Call("hcclGetUniqueId", p))
	t.Setenv("STANDIN_DRIVER", "1.23.0")
	version, p := s.memory(256)
	s.do("synDriverGetVersion", p, 256) // allowed before synInitialize
	require.Contains(t, string(version), "1.23.0\x00")
}

func TestInitializeTwice(t *testing.T) {
	s := load(t)
	s.do("synInitialize")
	s.do("synInitialize")
	t.Setenv("HABANA_DISABLE_DOUBLE_SYN_INITIALIZE", "1")
	require.Equal(t, alreadyInitialized, s.Call("synInitialize"))
}

func TestDevices(t *testing.T) {
	t.Setenv("STANDIN_GAUDI2", "2")
	t.Setenv("STANDIN_GAUDI3", "1")
	s := load(t)
	s.do("synInitialize")
	require.EqualValues(t, 3, s.get("synDeviceGetCount"))
	require.EqualValues(t, 2, s.get("synDeviceGetCountByDeviceType", gaudi2))
	_, p := s.memory(8)
	require.Equal(t, noDeviceFound, s.Call("synDeviceAcquireByModuleId", p, 3))
	require.Equal(t, noDeviceFound, s.Call("synDeviceRelease", 0))
	require.Equal(t, noDeviceFound, s.Call("synDeviceMalloc", 0, 16, 0, 0, p))
	s.do("synDeviceAcquireByDeviceType", p, gaudi3)
	require.Equal(t, alreadyAcquired, s.Call("synDeviceAcquireByModuleId", p, 0))
	name, at := s.memory(64)
	s.do("synDeviceGetName", at, 64, 0)
	require.Contains(t, string(name), "Gaudi3 2")
	info, at := s.memory(72)
	s.do("synDeviceGetInfoV2", 0, at)
	require.EqualValues(t, gaudi3, binary.LittleEndian.Uint32(info[52:]))
	query, at := s.memory(16)
	binary.LittleEndian.PutUint32(query, 11) // DEVICE_ATTRIBUTE_ADDRESS_ALIGNMENT_SIZE
	require.EqualValues(t, 256, s.get("synDeviceGetAttribute", at, 1, 0))
	s.do("synDeviceRelease", 0)
	s.do("synDeviceAcquireByModuleId", p, 0)
}

func TestNoDevice(t *testing.T) {
	t.Setenv("STANDIN_GAUDI2", "0")
	s := load(t)
	s.do("synInitialize")
	_, p := s.memory(8)
	require.Equal(t, noDeviceFound, s.Call("synDeviceGetCount", p))
	require.Equal(t, noDeviceFound, s.Call("synDeviceAcquireByDeviceType", p, gaudi2))
}

// again runs this test in a new process, and passes it the library in the environment.
func again(t *testing.T, library string) ([]byte, error) {
	command := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
	command.Env = append(os.Environ(), "STANDIN_TEST_LIBRARY="+library)
	return command.CombinedOutput()
}

// opened returns the library of a process that again started; nil in the first process.
func opened(t *testing.T) *synapse {
	path := os.Getenv("STANDIN_TEST_LIBRARY")
	if path == "" {
		return nil
	}
	lib, err := direct.Open(path)
	require.NoError(t, err)
	s := &synapse{Library: lib, t: t}
	s.do("synInitialize")
	return s
}

func TestDeviceHasOneProcess(t *testing.T) {
	if s := opened(t); s != nil {
		_, p := s.memory(8)
		require.Equal(t, noDeviceFound, s.Call("synDeviceAcquireByModuleId", p, 0))
		s.do("synDeviceAcquireByDeviceType", p, gaudi2) // the other device
		return
	}
	t.Setenv("STANDIN_GAUDI2", "2")
	path := Build(t, "libsynapse")
	lib, err := direct.Open(path)
	require.NoError(t, err)
	s := &synapse{Library: lib, t: t}
	s.do("synInitialize")
	s.get("synDeviceAcquireByModuleId", 0)
	out, err := again(t, path)
	require.NoError(t, err, "%s", out)
}

// After a device is lost, every call fails.
func TestLostDevice(t *testing.T) {
	s := open(t, gaudi2)
	_, p := s.memory(8)
	identity(s).run()
	t.Setenv("STANDIN_LOST", "2")
	g := identity(s)
	status, recipe := g.compile()
	require.Equal(t, success, status)
	g.place()
	_, list, n := g.launchList(recipe)
	s.do("synLaunch", s.stream, list, uint64(n), 0, recipe, 0)
	require.Equal(t, terminated, s.Call("synStreamSynchronize", s.stream))
	require.Equal(t, terminated, s.Call("synStreamSynchronize", s.stream))
	require.Equal(t, terminated, s.Call("synDeviceMalloc", 0, 16, 0, 0, p))
	require.Equal(t, terminated, s.Call("synDeviceRelease", 0))
}

// identity returns a graph that copies four floats.
func identity(s *synapse) *graph {
	g := s.graph(gaudi2)
	x := g.floats([]float32{1, 2, 3, 4}, 4)
	g.add("identity", nil, []*tensor{g.out(typeF32, 4)}, x)
	return g
}

// Memory.

func TestMemory(t *testing.T) {
	t.Setenv("STANDIN_OOM", "1000")
	s := open(t, gaudi2)
	_, p := s.memory(16)
	a := s.malloc(600)
	require.EqualValues(t, 128, a%256, "aligned to exactly 128 bytes")
	require.Equal(t, outOfDeviceMemory, s.Call("synDeviceMalloc", 0, 401, 0, 0, p))
	info, at := s.memory(16)
	s.do("synDeviceGetMemoryInfo", 0, at, at+8)
	require.Equal(t, append(binary.LittleEndian.AppendUint64(nil, 400), binary.LittleEndian.AppendUint64(nil, 1000)...), info)
	require.Equal(t, []byte{0xff, 0xff}, s.read(a, 2))
	require.Equal(t, invalidArgument, s.Call("synDeviceMalloc", 0, 0, 0, 0, p))
	require.Equal(t, invalidArgument, s.Call("synDeviceFree", 0, a+8, 0))
	s.do("synDeviceFree", 0, a, 0)
	require.Equal(t, invalidArgument, s.Call("synDeviceFree", 0, a, 0))
	s.malloc(1000)
}

func TestAlignmentOfGaudi3(t *testing.T) {
	s := open(t, gaudi3)
	require.Zero(t, s.malloc(10)%256)
}

func TestRedZones(t *testing.T) {
	s := open(t, gaudi2)
	b, p := s.memory(8)
	s.do("synHostMalloc", 0, 8, 0, p)
	at := binary.LittleEndian.Uint64(b)
	direct.View(at, 9)[8] = 1
	require.Equal(t, fail, s.Call("synHostFree", 0, at, 0))
	require.Equal(t, terminated, s.Call("synStreamSynchronize", s.stream))
}

func TestLeaks(t *testing.T) {
	s := open(t, gaudi2)
	p := s.malloc(10)
	s.do("synStreamDestroy", s.stream)
	require.Equal(t, busy, s.Call("synDeviceRelease", 0))
	_, at := s.memory(8)
	s.do("synDeviceAcquireByModuleId", at, 0)
	s.do("synDeviceFree", 0, p, 0)
	s.do("synDeviceRelease", 0)
}

func TestCopyRules(t *testing.T) {
	s := open(t, gaudi2)
	a := s.malloc(16)
	_, unmapped := s.memory(16)
	_, mapped := s.host(16)
	for _, c := range []struct{ from, n, to, direction, want uint64 }{
		{unmapped, 16, a, hostToDevice, mappingNotFound},
		{a, 16, unmapped, deviceToHost, mappingNotFound},
		{mapped, 16, a, 3, invalidArgument},
		{mapped, 17, a, hostToDevice, mappingNotFound},
		{mapped, 16, a + 1, hostToDevice, mappingNotFound},
		{mapped, 0, a, hostToDevice, invalidArgument},
		{a, 16, mapped, deviceToDevice, mappingNotFound},
		{mapped, 16, a, hostToDevice, success},
	} {
		require.EqualValues(t, c.want, s.Call("synMemCopyAsync", s.stream, c.from, c.n, c.to, c.direction))
	}
	require.Equal(t, invalidArgument, s.Call("synMemCopyAsync", 77, mapped, 16, a, hostToDevice))
	require.Equal(t, mappingNotFound, s.Call("synMemsetD8Async", a, 0, 17, s.stream))
	require.Equal(t, invalidArgument, s.Call("synHostFree", 0, unmapped, 0))
}

// A copy in either direction runs when the test waits, not before.
func TestCopiesAreDeferred(t *testing.T) {
	s := open(t, gaudi2)
	a := s.malloc(4)
	b, p := s.host(4)
	copy(b, "old.")
	s.do("synMemCopyAsync", s.stream, p, 4, a, hostToDevice)
	copy(b, "new.") // before the copy
	s.do("synStreamSynchronize", s.stream)
	require.Equal(t, "new.", string(s.read(a, 4)))
	copy(b, "....")
	s.do("synMemCopyAsync", s.stream, a, 4, p, deviceToHost)
	require.Equal(t, "....", string(b))
	s.do("synMemsetD8Async", a, 'A', 2, s.stream)
	require.Equal(t, "....", string(b))
	s.do("synStreamSynchronize", s.stream)
	require.Equal(t, "new.", string(b))
	require.Equal(t, "AAw.", string(s.read(a, 4)))
}

// With STANDIN_LATE, copies to the host land after their stream reports completion, in
// order. Hardware has been observed to do so.
func TestCopiesThatLandLate(t *testing.T) {
	t.Setenv("STANDIN_LATE", "20")
	s := open(t, gaudi2)
	a := s.malloc(1)
	b, p := s.host(1)
	b[0] = 0 // not the byte of new memory
	for i := range uint64(30) {
		s.do("synMemsetD8Async", a, i, 1, s.stream)
		s.do("synMemCopyAsync", s.stream, a, 1, p, deviceToHost)
		s.do("synStreamSynchronize", s.stream)
	}
	last := byte(0)
	require.Eventually(t, func() bool {
		s.do("synStreamSynchronize", s.stream)
		require.GreaterOrEqual(t, b[0], last)
		last = b[0]
		return last == 29
	}, 10*time.Second, time.Millisecond)
	time.Sleep(50 * time.Millisecond)
	require.EqualValues(t, 29, b[0])
}

func TestWorkAfterFree(t *testing.T) {
	s := open(t, gaudi2)
	a := s.malloc(4)
	s.do("synMemsetD8Async", a, 1, 4, s.stream)
	s.do("synDeviceFree", 0, a, 0)
	require.Equal(t, fail, s.Call("synStreamSynchronize", s.stream))
	require.Equal(t, terminated, s.Call("synStreamSynchronize", s.stream))
}

// Streams and events.

func TestEvents(t *testing.T) {
	s := open(t, gaudi2)
	a := s.malloc(1)
	event := s.get("synEventCreate", 0, 1)
	b, p := s.host(1)
	s.do("synMemsetD8Async", a, 1, 1, s.stream)
	s.do("synMemCopyAsync", s.stream, a, 1, p, deviceToHost)
	s.do("synEventRecord", event, s.stream)
	s.do("synMemsetD8Async", a, 2, 1, s.stream)
	s.do("synMemCopyAsync", s.stream, a, 1, p, deviceToHost)
	s.do("synEventSynchronize", event)
	require.EqualValues(t, 1, b[0], "only operations before the event have run")

	again, untimed := s.get("synEventCreate", 0, 1), s.get("synEventCreate", 0, 0)
	s.do("synEventRecord", again, s.stream)
	s.do("synEventRecord", untimed, s.stream)
	require.Equal(t, failedToCollectTime, s.Call("synEventElapsedTime", p, event, again), "the event was not reached")
	s.do("synEventSynchronize", untimed)
	s.get("synEventElapsedTime", event, again)
	require.Equal(t, failedToCollectTime, s.Call("synEventElapsedTime", p, event, untimed))
	require.Equal(t, invalidEvent, s.Call("synEventRecord", s.stream, s.stream))
	require.Equal(t, invalidArgument, s.Call("synEventRecord", event, 77))
	s.do("synEventDestroy", event)
	require.Equal(t, invalidEvent, s.Call("synEventDestroy", event))
	require.Equal(t, invalidArgument, s.Call("synStreamSynchronize", 77))
}

// The library has exactly the functions that the shim calls: others would be untested.
func TestFunctionsAreTheShims(t *testing.T) {
	api, err := os.ReadFile("../libsynapse/api.h")
	require.NoError(t, err)
	var called []string
	for _, m := range regexp.MustCompile(`\tX\([^,]+, ((?:syn|hccl)\w+), \(`).FindAllStringSubmatch(string(api), -1) {
		called = append(called, m[1])
	}
	library, err := elf.Open(Build(t, "libsynapse"))
	require.NoError(t, err)
	defer library.Close()
	symbols, err := library.DynamicSymbols()
	require.NoError(t, err)
	var exported []string
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF && (strings.HasPrefix(s.Name, "syn") || strings.HasPrefix(s.Name, "hccl")) {
			exported = append(exported, s.Name)
		}
	}
	require.ElementsMatch(t, called, exported)
}
