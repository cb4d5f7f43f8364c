// Package cuda is the backend for NVIDIA GPUs of compute capability 8.9 and later: Ada,
// Hopper, Blackwell. A whole training step runs on the device: cuBLASLt computes FP8 and
// BF16 GEMMs, and Octet's own kernels compute every other op.
//
// # From a program to a run
//
//	Program --lower--> Program --bind--> []call --run, record--> a CUDA graph
//
// Lowering (lower.go) gives FP8 operands the layout that cuBLASLt requires (TN) and
// splits ops that cuBLASLt cannot compute in one call. The binder (bind.go) turns each
// node into calls: a kernel with its grid and arguments, or the description of a GEMM.
// Both are plain Go and treat addresses as integers, so octet plan and the tests run them
// on any machine. The files that call the driver (device.go, transfer.go, execute.go,
// gemm.go) are built with -tags cuda and cgo on Linux, on top of package
// octet/csrc/libcuda, which loads NVIDIA's libraries on demand. Without the tag, Open
// returns an error that says how to build.
//
// The first Run of a program issues its calls, the second records them as a CUDA graph,
// and later Runs launch that graph. Run returns before the device is done. Write returns
// before the device has the bytes, Read waits for the stream, and a Fetch waits only for
// the work that was issued before it, so a trainer can keep the stream filled
// (transfer.go). RunObserved issues the same calls one node at a time.
//
// # Memory
//
// Load allocates one block for the variables, and one for the temps of its programs, at
// the offsets of backend.MakePlan, cuBLASLt's workspace and the scratch memory and tables
// of kernels. A step allocates nothing.
//
// # Ranks
//
// Each rank is a process with a GPU of its own: the named one, and those after it on the same
// machine (group.go). Collectives are NCCL's. They run on the rank's single stream and are part of
// its graph; the queue of a node is ignored. NCCL is loaded only for several ranks.
//
// With the device cuda:0,collectives=overlap a second stream runs them beside the nodes that do not
// depend on them (overlap.go), in the order of the program and with the same bits. It forks from the
// first stream and joins it within the graph. It is off by default because no GPU has run it.
//
// The group of package world ends the run if a rank fails, ends or hangs, and if no rank makes
// progress within OCTET_TIMEOUT (default: ten minutes). The device tells the host where it is by
// marks before and after each collective, so the group blames the rank that the others wait for.
// NCCL's kernels are then aborted, so that the host's waits return; a wait that does not return
// hangs in the driver, and the program ends the process (run.Options.Hung). A single rank has no
// deadline. Tests run ranks as goroutines of one process, too.
//
// # Determinism
//
// Kernels sum in an order that depends on shapes alone, and cuBLASLt algorithms with
// split-k are excluded. So a run repeats bit for bit with the same libraries, the same
// algorithms and a GPU of the same architecture; Spec.Arithmetic names all three.
// Algorithms are chosen by time when a program is loaded, and then stored (choices.go): a
// resumed run gets the algorithms that it had, on any GPU that supports them. There is no
// faster, non-deterministic mode.
//
// Maxima over ranks do not depend on the order. Sums over more than two ranks do: NCCL
// chooses the order by the size, the number of GPUs and their topology. So a run on
// several GPUs repeats on the same number of GPUs in a machine of the same topology, with
// the same NCCL version and the same NCCL_ALGO and NCCL_PROTO. All ranks always get the
// same bits.
//
// # Attention
//
// BF16 attention with heads of 64 and 128 runs on tensor cores: by wgmma on compute
// capability 9.0, the only one that has it, and by mma.sync elsewhere. When a process
// first loads the wgmma kernels, it compares their results with those of mma.sync
// (trial.go). If they differ, it uses mma.sync, which Spec.Hint and octet doctor report;
// the device cuda:0,attention=mma always uses mma.sync. The last bits of both differ, so
// Spec.Arithmetic names the kernels.
//
// # Sensors
//
// The sensors are read by NVIDIA's management library NVML (sensors.go), which is
// optional. It reads the whole board, including the load of other processes.
//
// # Scales
//
// Besides scales per tensor, GEMMs take those that cuBLASLt documents for the GPU and its
// version (scaling.go): per row, in blocks of 1×128 and of 128×128 on compute capability 9.0,
// MXFP8 and NVFP4 from 10.0 on. Where cuBLASLt wants scales in another layout than the stored one, a
// kernel rearranges them before the GEMM, in scratch memory (scale_layout.cu). No GPU has run
// this yet. A device name with a compute capability, such as cuda:sm_90, plans for it without
// a GPU; training opens only a GPU that has it.
//
// # Caveats
//
// An error of the device surfaces in a later
// call, at the latest in Read or a Fetch's End. After backend.ErrDeviceLost only a new
// process can use the GPU again. Context, compiled kernels and cuBLASLt's handle live
// until the process ends, so a second Open of a GPU is quick.
//
// # Sharing a GPU
//
// Adopt (with the tag) makes a backend on an existing context and stream of the process,
// with variables in memory that other code allocated. Package gorgonia does that for
// programs that use gorgonia.org/cu.
package cuda

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"octet/backend"
	"octet/backend/arith"
	"octet/fp8"
)

func init() {
	backend.Register(backend.Driver{
		Name:      "cuda",
		Priority:  20,
		Available: available,
		Spec:      spec,
		Lower:     lower,
		Outline:   outline,
		Open:      open,
		Probe:     probe,
		Examine:   examine,
	})
}

// align is the alignment in bytes of cuMemAlloc and of cuBLASLt's workspace; FP8 operands
// need only 16.
const align = 256

// headTokens is the minimum chunk of the head's tokens. With 1,024 tokens the head's
// wgrad does 2,048 FLOPs for each element of the FP32 gradient, which it reads and writes
// in 8 bytes: 256 FLOPs per byte. An H100 has 295 (BF16 tensor cores 989 TFLOP/s, memory
// 3.35 TB/s).
const headTokens = 1024

// options are what a device name such as "cuda:1,attention=mma" sets.
type options struct {
	gpu        int  // ordinal
	mma        bool // attention by mma.sync, even if the GPU has wgmma
	overlaps   bool // collectives run beside other nodes
	capability int  // the GPU must have it, 90 for 9.0; 0: any
}

// parse splits a device name into its options.
func parse(device string) (opts options, err error) {
	named := false
	for option := range strings.SplitSeq(device, ",") {
		n, err := strconv.ParseUint(option, 10, 16)
		sm, isSM := strings.CutPrefix(option, "sm_")
		capability, smErr := strconv.ParseUint(sm, 10, 16)
		switch {
		case err == nil && !named:
			opts.gpu, named = int(n), true
		case option == "attention=mma":
			opts.mma = true
		case option == "collectives=overlap":
			opts.overlaps = true
		case isSM && smErr == nil && capability >= 89:
			opts.capability = int(capability)
		case device != "":
			return options{}, fmt.Errorf("unknown device %q of backend cuda (known: the number of a GPU, such as cuda:0, or plain cuda; sm_89, sm_90 and later, which plan for this compute capability without a GPU, such as cuda:sm_90; attention=mma, which runs attention by mma.sync instead of wgmma on Hopper, such as cuda:0,attention=mma; and collectives=overlap, which runs collectives beside the nodes that do not depend on them, such as cuda:0,collectives=overlap)", device)
		}
	}
	return opts, nil
}

// spec returns what cuBLASLt documents for the named GPU and the installed library. Of a
// compute capability in the name it assumes the newest library. On a machine without GPU and
// without a name, it returns what all supported GPUs have. Casts are Octet's own kernels, so
// stochastic rounding works.
func spec(device string) (backend.Spec, error) {
	opts, err := parse(device)
	if err != nil {
		return backend.Spec{}, err
	}
	if opts.capability == 0 {
		return specOf(installed(opts.gpu)), nil
	}
	return specOf(opts.capability, arith.NewestCublasLt), nil
}

// specOf returns the Spec of GPUs of a compute capability, 90 for 9.0, with a version of
// cuBLASLt, 1209 for 12.9. Zeros stand for any.
func specOf(capability, version int) backend.Spec {
	name := "any GPU from Ada on; cuda:sm_90 names Hopper, cuda:sm_100 Blackwell"
	if capability > 0 {
		name = fmt.Sprintf("compute capability %d.%d", capability/10, capability%10)
	}
	return backend.Spec{
		Backend: "cuda", Device: name, E4M3: fp8.E4M3,
		Pairs:  arith.CublasLt(capability, version),
		Masked: true, BlockMoments: true, SeedSigns: true, Stochastic: true,
		HeadTokens: headTokens,
		// The SXM boards; smaller ones exist. CUDA reports less memory than the data
		// sheet, because the driver reserves some.
		Capacities: []backend.Capacity{{Device: "H100 (80 GB)", Bytes: 79 << 30}, {Device: "H200 (141 GB)", Bytes: 139 << 30}},
	}
}

// open opens the GPU of a rank: cuda:2 with two ranks on a machine uses GPUs 2 and 3.
func open(device string, o backend.Options) (backend.Backend, error) {
	opts, err := parse(device)
	if err != nil {
		return nil, err
	}
	d, err := openRank(opts, o)
	if err != nil {
		if errors.Is(err, backend.ErrNoDevice) {
			err = fmt.Errorf("%w, or use --backend emu", err)
		}
		return nil, fmt.Errorf("backend cuda: %w", err)
	}
	return d, nil
}
