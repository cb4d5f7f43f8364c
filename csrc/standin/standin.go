// Package standin builds small libraries with the vendors' symbols, for tests
// on machines without the hardware: the production shims of csrc/libcuda and
// csrc/libsynapse load them unmodified. What they show agrees with the vendors'
// documentation as far as Octet's authors read it; that a test passes against
// them says that the shim does what was meant, not that a vendor's library
// agrees.
//
// # CUDA
//
// The stand-ins for CUDA compute, on the CPU, and are stricter than the real
// libraries wherever that finds mistakes:
//
//   - libcuda.so puts the work of a stream off until somebody waits for it, or for
//     a stream that waits for this one. Fresh memory is full of NaN, every block
//     lies between red zones that are checked when it is freed, every handle is
//     checked and good in its own context only, and what was not given back when
//     that ends is an error (708), listed on stderr. A capture records, and refuses
//     (900) what CUDA forbids meanwhile: to wait, to allocate, to load a module.
//   - libnvrtc.so compiles CUDA C++ with g++ (or CXX) behind cuda_host.h, which
//     runs a block's threads as fibers. The "cubin" is a shared object.
//   - libcublasLt.so multiplies with FP32 sums, k ascending or, by one of its
//     algorithms, descending, and refuses what NVIDIA's documentation of
//     cublasLtMatmul excludes, and a kernel that would first be loaded within a
//     capture. Its streams are those of the library that OCTET_LIBCUDA names.
//   - libnccl.so lets the streams of several GPUs meet. A collective waits on its
//     stream until every rank's stream got there, sums in an order of its own,
//     and loses the devices, with a line on stderr, where the ranks' operations
//     or sizes differ or only some were captured.
//
// # SynapseAI
//
// The stand-in for SynapseAI computes, on the CPU, and is strict likewise. libSynapse.so
// holds HCCL, too, as the vendor's does.
//
//   - A graph is checked node by node: a kernel's operands, their types and sizes, and
//     the size of its parameter structure. What is refused says why on stderr; the
//     status is SynapseAI's 26 for most things. Tensors that overlap in a section need
//     an order between the nodes that use them, as in the published graph compiler.
//   - A recipe runs its nodes in an order of its own, a seeded one among those that the
//     edges allow. Its workspace is filled with NaN before each launch.
//     A product of BF16 or F32 whose node is not deterministic is summed from its other
//     end in every second launch.
//   - Work of a stream is put off until somebody waits for it, then done in order; each
//     other stream's stays undone. Freeing memory waits for nothing: work that comes
//     after it loses the device, and every further call returns 31.
//   - Device memory is fresh with NaN, between red zones, at addresses that are none of
//     the host's, aligned to 128 bytes (Gaudi2) or 256 (Gaudi3) and to nothing more.
//   - A process acquires one device, and a device has one process. Processes that load
//     the same file share a machine.
//   - It takes the process's signals when it is loaded, as the vendor's logger does. One
//     that arrives while a device is acquired loses it before it is passed on.
//   - Products of FP8 are those of backend/arith's models, E4M3 ends at 240 or at 448.
//     Results have the same bits on any number of threads.
//   - HCCL connects processes through sockets. A rank that died, or that asks for
//     something else than the others, is an error.
//
// # Settings
//
// Answers are set by environment variables, read at each call:
//
//	STANDIN_CUDA        newest CUDA that the driver serves (13000)
//	STANDIN_GPUS        GPUs that CUDA shows (1); 0 makes cuInit fail
//	STANDIN_CAPABILITY  compute capability of all GPUs, times 10 (90)
//	STANDIN_OLD         how many GPUs, from the first, are of compute capability 8.0 instead (0)
//	STANDIN_BUS         0: the driver does not tell where on the PCI bus they are
//	STANDIN_STUB        1: the driver is a toolkit's stub, cuInit returns 34
//	STANDIN_CONTEXT     status of cuDevicePrimaryCtxRetain (0)
//	STANDIN_NVRTC       newest compute capability that NVRTC knows, times 10 (120)
//	STANDIN_OOM         bytes of device memory that can be had (80 GiB)
//	STANDIN_LOST        the kernel launch, counted from 1 over all GPUs, that
//	                    loses its device
//	STANDIN_LOST_CODE   with which code (700, an illegal address)
//	STANDIN_HANG        the kernel launch, counted likewise, that does not return: the
//	                    driver hangs, and so does every later call of it
//	STANDIN_GAP         nanoseconds that each piece of a stream's work takes by the clock
//	                    of events, a kernel 1 more for each thread (0: they take what
//	                    they take)
//	STANDIN_ALGORITHMS  how many of its three algorithms cuBLASLt offers (3); below 0 it
//	                    offers one and says of it that it cannot be used
//	STANDIN_REFUSED     the algorithm (1 to 3) that cuBLASLt offers and does not run
//	STANDIN_NCCL        version of NCCL (23007)
//	STANDIN_NCCL_ERROR  the error that communicators meet in the background (0)
//	STANDIN_NVML_INIT   status of nvmlInit (0)
//	STANDIN_NVML_GPUS   GPUs in the machine (1), counted from the other end than CUDA does
//	STANDIN_NVML_UNSUPPORTED  what they do not tell: nvmlDeviceGet functions, such as
//	                    "PowerUsage,ClockInfo", or "all"
//	STANDIN_NVML_LOST   the reading, counted from 1 since nvmlInit, from which on they are lost
//	STANDIN_GAUDI2      devices of the model, modules from 0 (1)
//	STANDIN_GAUDI3      likewise, modules after those (0)
//	STANDIN_SYNAPSE     status of synInitialize (0)
//	STANDIN_DRIVER      SynapseAI's version (1.24.0-standin)
//	STANDIN_KERNELS     1: kernels of the tensor cores need GC_KERNEL_PATH
//	STANDIN_COMPILE_FAIL a guid; graphs that have it do not compile
//	STANDIN_SEED        of the order of nodes in a recipe (1)
//	STANDIN_MIXED       1: Gaudi3 multiplies E4M3 by E5M2, which the compiler refuses else
//	STANDIN_E4M3        240: products of Gaudi3 take larger E4M3 for infinity and NaN (448)
//	STANDIN_NAN         drop: maxima and minima pass over NaN, where else it wins
//	STANDIN_THREADS     threads that share a kernel's work (as many as processors)
//	STANDIN_LATE        milliseconds that a copy to the host lands after its stream is
//	                    said to be done (0)
//	STANDIN_NETWORK     0: HCCL finds none, unless HCCL_SOCKET_IFNAME is lo
//	STANDIN_HCCL_SECONDS how long a rank waits for the others (20)
//	STANDIN_HLML_SILENT a function of HLML that answers that it is not supported, or "all"
//	STANDIN_HLML_ODD    likewise, that something unknown happened
//	STANDIN_HLML_LOST   likewise, that the device is gone
//
// STANDIN_OOM and STANDIN_LOST are SynapseAI's, too: of 96 or 128 GiB, and launches of
// recipes.
//
// They are built for Linux, with the compiler named by CC, or gcc. What is built stays
// in the user's cache folder, in octet/standin, for other tests and the next time.
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

// built are the libraries that this process has compiled, by name.
var built sync.Map

// T is the part of *testing.T that Build needs.
type T interface {
	require.TestingT
	TempDir() string
	Skipf(format string, args ...any)
}

// Build compiles <name>.c and what else belongs to it (<name>_*.c), unless that was
// done before, and returns the path of the library, which lives as long as the test.
// Every call makes a library of its own, which the loader does not confuse with
// others: it has nothing of what another test did to its like. The headers lie beside
// it. On real GPUs the test ends here.
func Build(t T, name string) string {
	if Hardware() > 0 {
		t.Skipf("only a stand-in for %s will do", name)
	}
	dir := t.TempDir()
	write(t, dir, glob(t, "*.h"))
	library := filepath.Join(dir, name+".so")
	if code, ok := built.Load(name); ok {
		require.NoError(t, os.WriteFile(library, code.([]byte), 0o777))
		return library
	}
	from := origin(t, name)
	code := kept.load(name, from)
	if code == nil {
		code = link(t, write(t, dir, filesOf(t, name)), library)
		kept.store(name, from, code)
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

// The arguments of the compiler, for an object and for a library.
var (
	compiling = []string{"-std=gnu11", "-O2", "-ffp-contract=off", "-fno-trapping-math", "-Wall", "-Werror", "-fPIC", "-c"}
	linking   = []string{"-shared", "-Wl,-rpath,$ORIGIN", "-lm", "-ldl", "-lpthread"}
)

// origin is a sum over all that a library is made from: sources, arguments, and the
// compiler by its name and version.
func origin(t T, name string) (s [sha256.Size]byte) {
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

// link compiles files into a library, which it returns too.
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
