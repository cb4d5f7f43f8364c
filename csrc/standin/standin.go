// Package standin builds small libraries with the vendors' symbols, for tests
// on machines without the hardware: the production shims of csrc/libcuda and
// csrc/libsynapse load them unmodified. The libraries follow the vendors'
// documentation as Octet's authors read it. A test that passes against them
// shows that the shim does what its author meant, not that a vendor's library
// agrees.
//
// # CUDA
//
// The stand-ins for CUDA compute, on the CPU, and are stricter than the real
// libraries wherever that finds mistakes:
//
//   - libcuda.so defers the work of a stream until a call waits for this stream, or
//     for one that depends on it. New memory holds NaN, each block lies between red
//     zones that are checked when it is freed, and every handle is checked and valid
//     in its own context only. Objects that still exist when their context ends are
//     an error (708), listed on stderr. A stream capture rejects (900) what CUDA
//     forbids in one: waiting, allocating, loading a module. Streams that wait for an event
//     of a capture take part in it, and must be joined (904).
//   - libnvrtc.so compiles CUDA C++ with g++ (or CXX) and cuda_host.h, which runs a
//     block's threads as fibers. The "cubin" is a shared object.
//   - libcublasLt.so multiplies with FP32 sums, k ascending or, in one algorithm,
//     descending. It rejects what NVIDIA's documentation of cublasLtMatmul excludes,
//     and a kernel whose first load would be in a capture. Its streams are those of
//     the library that OCTET_LIBCUDA names.
//   - libnccl.so runs collectives between the streams of several GPUs, of one process or
//     of several on a machine, over a file that all ranks map. A collective blocks its
//     stream until every rank's stream has reached it, and sums in an unusual order. If
//     operations or sizes differ between ranks, or only some ranks capture, all devices
//     are lost, with a line on stderr. A rank that died is not an error: the other ranks
//     wait.
//
// # SynapseAI
//
// The stand-in for SynapseAI computes, on the CPU, and is just as strict. libSynapse.so
// contains HCCL, as the vendor's does.
//
//   - A graph is checked node by node: a kernel's operands, their types and sizes, and
//     the size of its parameter structure. A refusal writes its reason to stderr; the
//     status is usually SynapseAI's 26. Tensors that overlap in a section need an order
//     between the nodes that use them, as in the published graph compiler.
//   - A recipe runs its nodes in a seeded order among those that the edges allow. Its
//     workspace is filled with NaN before each launch. A GEMM of BF16 or F32 whose node
//     is not deterministic is summed with k descending in every second launch.
//   - Work of a stream is deferred until a call waits for it, then runs in order; other
//     streams do not advance. Freeing memory waits for no work: later work that uses the
//     memory loses the device, and every further call returns 31.
//   - New device memory holds NaN, between red zones, at addresses that are invalid on
//     the host, aligned to exactly 128 bytes (Gaudi2) or 256 (Gaudi3).
//   - A process acquires one device, and a device has one process. Processes that load
//     the same file share a machine.
//   - When loaded, it replaces the process's signal handlers, as the vendor's logger
//     does. A signal that arrives while a device is acquired loses the device, then goes
//     to the previous handler.
//   - FP8 GEMMs have the bits of backend/arith's models; E4M3 ends at 240 or 448.
//     Results have the same bits on any number of threads.
//   - HCCL connects processes through sockets. A rank that died, or whose operation
//     differs, is an error.
//
// # MPI
//
// libmpi_abi.so runs the collectives of processes of one machine over a file that all of
// them map (OCTET_STANDIN_MPI); PMI_RANK and PMI_SIZE are a process's rank and their
// number, as under MPICH's mpiexec. RunRanks starts the processes. Data moves only within
// calls of MPI_Test. If collectives or sizes differ between ranks, MPI_Test fails, with a
// line on stderr. A rank that died is not an error: the other ranks wait.
//
// # Settings
//
// Environment variables, read at each call, set the answers:
//
//	STANDIN_CUDA        newest CUDA version that the driver supports (13000)
//	STANDIN_GPUS        number of GPUs in CUDA (1); 0 makes cuInit fail
//	STANDIN_CAPABILITY  compute capability of all GPUs, times 10 (90)
//	STANDIN_CUBLASLT    version of cuBLASLt, as cublasLtGetVersion returns it (130102)
//	STANDIN_OLD         number of GPUs, from the first, with compute capability 8.0 instead (0)
//	STANDIN_BUS         0: the driver does not report PCI bus addresses
//	STANDIN_STUB        1: the driver is a toolkit's stub, cuInit returns 34
//	STANDIN_CONTEXT     status of cuDevicePrimaryCtxRetain (0)
//	STANDIN_NVRTC       newest compute capability that NVRTC knows, times 10 (120)
//	STANDIN_OOM         bytes of device memory that can be allocated (80 GiB)
//	STANDIN_LOST        number of the kernel launch, from 1 over all GPUs, that
//	                    loses its device
//	STANDIN_LOST_CODE   the error code of that launch (700, an illegal address)
//	STANDIN_HANG        number of the kernel launch that does not return; every later call
//	                    of the driver hangs, too
//	STANDIN_GAP         duration of each operation of a stream on the clock of events, in
//	                    nanoseconds; a kernel takes 1 more per thread (0: real time)
//	STANDIN_EARLY       1: work of streams that no call waits for runs as early as its
//	                    dependencies allow, otherwise as late (0)
//	STANDIN_ALGORITHMS  number of algorithms that cuBLASLt offers, up to 3 (3); below 0 it
//	                    offers one and marks it unsupported
//	STANDIN_REFUSED     the algorithm (1 to 3) that cuBLASLt offers and then rejects
//	STANDIN_NCCL        version of NCCL (23007)
//	STANDIN_NCCL_ERROR  the asynchronous error of communicators (0)
//	STANDIN_NCCL_LOG    a file that gets a line for each collective that a rank has run:
//	                    rank, collective, bytes of the whole tensor
//	STANDIN_NVML_INIT   status of nvmlInit (0)
//	STANDIN_NVML_GPUS   number of GPUs in NVML (1), in reverse of CUDA's order
//	STANDIN_NVML_UNSUPPORTED  unsupported nvmlDeviceGet functions, such as
//	                    "PowerUsage,ClockInfo", or "all"
//	STANDIN_NVML_LOST   number of the reading, from 1 since nvmlInit, from which the GPUs are lost
//	STANDIN_GAUDI2      number of Gaudi2 devices, module ids from 0 (1)
//	STANDIN_GAUDI3      number of Gaudi3 devices, module ids after those (0)
//	STANDIN_SYNAPSE     status of synInitialize (0)
//	STANDIN_DRIVER      SynapseAI's version (1.24.0-standin)
//	STANDIN_KERNELS     1: kernels of the tensor cores need GC_KERNEL_PATH
//	STANDIN_COMPILE_FAIL a guid; graphs that contain it do not compile
//	STANDIN_SEED        seed of the order of nodes in a recipe (1)
//	STANDIN_MIXED       1: Gaudi3 multiplies E4M3 by E5M2, which the compiler otherwise refuses
//	STANDIN_E4M3        240: GEMMs of Gaudi3 decode larger E4M3 codes as infinity and NaN (448)
//	STANDIN_NAN         drop: maxima and minima ignore NaN instead of returning it
//	STANDIN_THREADS     number of threads per kernel (the number of processors)
//	STANDIN_LATE        delay, in milliseconds, of a copy to the host after its stream
//	                    reports completion (0)
//	STANDIN_NETWORK     0: HCCL finds no network, unless HCCL_SOCKET_IFNAME is lo
//	STANDIN_HCCL_SECONDS timeout of a rank's wait for other ranks (20)
//	STANDIN_HLML_SILENT a function of HLML that returns "not supported", or "all"
//	STANDIN_HLML_ODD    likewise, with an unknown error
//	STANDIN_HLML_LOST   likewise, with a lost device
//	STANDIN_MPI_ABI     major version of MPI's ABI (1)
//	STANDIN_MPI_THREADS the level of threads that MPI_Init_thread provides (1024, FUNNELED)
//	STANDIN_MPI_ERROR   code that MPI_Test returns for a completed operation (0)
//
// STANDIN_OOM (96 or 128 GiB) and STANDIN_LOST (launches of recipes) apply to SynapseAI,
// too.
//
// The libraries are built for Linux, with the compiler that CC names, or gcc, and cached
// in octet/standin of the user's cache folder.
package standin

import (
	"cmp"
	"crypto/sha256"
	"embed"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"github.com/stretchr/testify/require"
)

//go:embed *.c *.h
var sources embed.FS

// built holds the code of the libraries that this process has compiled or loaded, by name.
var built sync.Map

// T is the part of *testing.T that Build needs.
type T interface {
	require.TestingT
	TempDir() string
	Skipf(format string, args ...any)
}

// Build returns the path of a library compiled from <name>.c and <name>_*.c, or taken
// from the cache. The library exists as long as the test. Every call writes a new file,
// so the loader keeps its state separate from other tests'. The headers are in the same
// folder. On real GPUs Build skips the test.
func Build(t T, name string) string {
	if Hardware() > 0 {
		t.Skipf("needs a stand-in for %s", name)
	}
	dir := t.TempDir()
	write(t, dir, glob(t, "*.h"))
	library := filepath.Join(dir, name+".so")
	if code, ok := built.Load(name); ok {
		require.NoError(t, os.WriteFile(library, code.([]byte), 0o777))
		return library
	}
	from := sourceSum(t, name)
	code := userCache.load(name, from)
	if code == nil {
		code = link(t, write(t, dir, filesOf(t, name)), library)
		userCache.store(name, from, code)
	} else {
		require.NoError(t, os.WriteFile(library, code, 0o777))
	}
	built.Store(name, code)
	return library
}

func filesOf(t T, name string) []string { return append(glob(t, name+"_*.c"), name+".c") }

func glob(t T, pattern string) []string {
	names, err := fs.Glob(sources, pattern)
	require.NoError(t, err)
	return names
}

// Arguments of the compiler, for an object and for a library.
var (
	compiling = []string{"-std=gnu11", "-O2", "-ffp-contract=off", "-fno-trapping-math", "-Wall", "-Werror", "-fPIC", "-c"}
	linking   = []string{"-shared", "-Wl,-rpath,$ORIGIN", "-lm", "-ldl", "-lpthread"}
)

// sourceSum returns a checksum of everything that a library is compiled from: sources,
// arguments, and the compiler's name and version.
func sourceSum(t T, name string) (s [sha256.Size]byte) {
	h := sha256.New()
	version, err := compile("--version")
	require.NoError(t, err, "%s", version)
	fmt.Fprintf(h, "%q %q %q %q\n", compiler(), version, compiling, linking)
	for _, file := range append(glob(t, "*.h"), filesOf(t, name)...) {
		text, err := sources.ReadFile(file)
		require.NoError(t, err)
		fmt.Fprintf(h, "%q %d\n%s", file, len(text), text)
	}
	return [sha256.Size]byte(h.Sum(s[:0]))
}

// link compiles files into a library and returns its code.
func link(t T, files []string, library string) []byte {
	objects := make([]string, len(files))
	outputs, errs := make([]string, len(files)), make([]error, len(files))
	var wg sync.WaitGroup
	for i, file := range files {
		objects[i] = file + ".o"
		wg.Go(func() {
			outputs[i], errs[i] = compile(append([]string{"-o", objects[i], file}, compiling...)...)
		})
	}
	wg.Wait()
	for i := range files {
		require.NoError(t, errs[i], "%s", outputs[i])
	}
	output, err := compile(append(append(objects, "-o", library), linking...)...)
	require.NoError(t, err, "%s", output)
	code, err := os.ReadFile(library)
	require.NoError(t, err)
	return code
}

func compiler() string { return cmp.Or(os.Getenv("CC"), "gcc") }

func compile(args ...string) (output string, err error) {
	out, err := exec.Command(compiler(), args...).CombinedOutput()
	return string(out), err
}

func write(t T, dir string, names []string) (paths []string) {
	for _, name := range names {
		source, err := sources.ReadFile(name)
		require.NoError(t, err)
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, source, 0o666))
		paths = append(paths, path)
	}
	return paths
}
