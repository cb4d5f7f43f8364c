// Package cuda is the backend for NVIDIA GPUs of compute capability 8.9 and
// later: Ada, Hopper, Blackwell. A whole training step runs on the device: FP8
// and BF16 products by cuBLASLt, every other op by a kernel of our own.
//
// # From a program to a run
//
//	Program --lower--> Program --bind--> []call --run, record--> a CUDA graph
//
// Lower (lower.go) gives FP8 operands the layout that matrix units take and
// takes apart what cuBLASLt does not do in one piece. The binder (bind.go) turns
// each node into calls: a kernel with its grid and arguments, or the description
// of a product. Both are plain Go over addresses that are numbers: plan and the
// tests run them on any machine. What talks to the device (device.go, transfer.go,
// execute.go, gemm.go) is built with -tags cuda and cgo on Linux, on top of
// package octet/csrc/libcuda, which loads NVIDIA's libraries when they are asked
// for; without the tag, Open says how to build.
//
// The first Run of a program makes its calls, the second records them as a graph,
// and from there on a Run is one launch of it. Each returns before the device is
// done. Write returns before the device has the bytes, Read waits, and a Fetch waits
// for what came before it alone: so a trainer keeps the stream filled (transfer.go).
// RunObserved makes the same calls one node at a time.
//
// # Memory
//
// Bind takes one block for the variables, Load one for the temps of its
// programs, at the places that backend.MakePlan gives them, with cuBLASLt's
// workspace and what kernels need beside. Nothing is allocated in a step.
//
// # Ranks
//
// With train.ranks = N one process trains on N GPUs, from the one named on, a
// rank each (group.go). Collectives are NCCL's, on the rank's one stream and in its
// graph; the queue of a node is not used yet. NCCL comes into the process when
// there are several ranks. A rank that fails ends the run for all of them, and so
// does one that waits for longer than OCTET_NCCL_TIMEOUT, ten minutes if it is not
// set: a step must not take that long. NVIDIA's guide to NCCL warns that graphs on
// several GPUs of one process may deadlock where one thread launches them all:
// here every rank is launched by a goroutine of its own, as Trainer does, or a
// caller must. Several ranks can still block each other within the driver, where libraries
// load kernels or connect GPUs for the first time: a wait that outlasts the timeout, and
// then does not end when NCCL is told to, ends the process with status 1 (watch.go). A rank
// alone has no such deadline.
//
// # Determinism
//
// Kernels add up in an order that depends on shapes alone, and of cuBLASLt's
// algorithms only those are taken that do not split k. So a run repeats bit for
// bit with the same libraries and the same algorithms on a GPU of the same
// architecture, all of which Spec.Arithmetic names. Algorithms are chosen by time
// when a program is loaded, and then kept (choices.go): a run that is resumed gets
// those it had, on any GPU that has them. There is no other mode to be asked for.
//
// Maxima over ranks have no order. Sums have the one of NCCL's algorithm, which
// two ranks cannot tell and more can: NCCL chooses it by the size, the number of
// GPUs and how they are connected, so a run repeats on the same number of GPUs of
// a machine like it with the same version of NCCL, and NCCL_ALGO and NCCL_PROTO
// as they were. All ranks get the same bits in any case.
//
// # Attention
//
// Heads of 64 and 128 in BF16 run on tensor cores: on compute capability 9.0 by
// wgmma, which no other GPU has, elsewhere by mma.sync. The former's kernels are
// compared with the latter's when a process first loads them (trial.go): where they
// differ it takes the others, which Spec.Hint and octet doctor say;
// cuda:0,attention=mma takes them in any case. The last bits of both differ, as
// Spec.Arithmetic tells.
//
// # Sensors
//
// What the GPU says of itself comes from NVIDIA's management library (sensors.go),
// which a run can do without. It reads the whole board, whoever works there.
//
// # Caveats
//
// Operands with scales by block are refused. An error of the device surfaces in a
// later call, at the latest in Read or a Fetch's End. After backend.ErrDeviceLost
// only a new process gets the GPU back. Context, compiled kernels and cuBLASLt's
// handle stay for the life of the process, so that a second Open of a GPU is quick.
//
// # Sharing a GPU
//
// Adopt (with the tag) makes a backend in a context and on a stream that another
// part of the process has, with variables in its memory. Package gorgonia does
// that for programs that use gorgonia.org/cu.
package cuda

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"octet/backend"
	"octet/fp8"
)

func init() {
	backend.Register(backend.Driver{
		Name:      "cuda",
		Rank:      20,
		Available: available,
		Spec:      spec,
		Lower:     lower,
		Outline:   outline,
		Open:      open,
		Probe:     probe,
		Examine:   examine,
	})
}

// align is that of cuMemAlloc and of cuBLASLt's workspace, and more than the 16
// bytes that FP8 operands need.
const align = 256

// headTokens is the least chunk of the head's tokens. With 1,024 tokens the head's wgrad
// does 2,048 FLOPs for each element of the FP32 gradient, which it reads and writes in 8
// bytes: 256 FLOPs a byte, about what the BF16 tensor cores of an H100 do in the time of a
// byte of its memory (989 TFLOP/s, 3.35 TB/s).
const headTokens = 1024

// A wish is what the device of "cuda:1,attention=mma" asks for.
type wish struct {
	gpu int  // its number
	mma bool // attention by mma.sync, where a GPU has wgmma too
}

// parse takes a device's name apart.
func parse(device string) (w wish, err error) {
	named := false
	for option := range strings.SplitSeq(device, ",") {
		n, err := strconv.ParseUint(option, 10, 16)
		switch {
		case err == nil && !named:
			w.gpu, named = int(n), true
		case option == "attention=mma":
			w.mma = true
		case device != "":
			return wish{}, fmt.Errorf("unknown device %q of backend cuda (known: the number of a GPU, such as cuda:0, or plain cuda; and attention=mma, on Hopper too the kernels of attention that other GPUs have, such as cuda:0,attention=mma)", device)
		}
	}
	return w, nil
}

// spec is what cuBLASLt documents for Ada and Hopper (compute capability 8.9
// and 9.0), and what later devices can do too: E4M3 as OCP defines it, and every
// pair of FP8 operands but E5M2×E5M2, which tensor cores multiply and cuBLASLt does
// not take. Casts are kernels of our own, which can draw any random bits.
func spec(device string) (backend.Spec, error) {
	if _, err := parse(device); err != nil {
		return backend.Spec{}, err
	}
	return backend.Spec{
		Backend: "cuda", Device: "Ada, Hopper or later", E4M3: fp8.E4M3,
		Pairs: [][2]fp8.DType{
			{fp8.E4M3, fp8.E4M3}, {fp8.E4M3, fp8.E5M2}, {fp8.E5M2, fp8.E4M3},
		},
		Stochastic: true,
		Align:      align,
		HeadTokens: headTokens,
		// The SXM boards; smaller ones exist. What CUDA gives as a device's memory is
		// less than the data sheet's GB: the driver keeps a part.
		Capacities: []backend.Capacity{{Device: "H100 (80 GB)", Bytes: 79 << 30}, {Device: "H200 (141 GB)", Bytes: 139 << 30}},
	}, nil
}

// open makes the backends of as many GPUs as there are ranks: cuda:2 with two
// ranks is GPUs 2 and 3.
func open(device string, o backend.Options) ([]backend.Backend, error) {
	w, err := parse(device)
	if err != nil {
		return nil, err
	}
	list, err := openRanks(w, o)
	if err != nil {
		if errors.Is(err, backend.ErrNoDevice) {
			err = fmt.Errorf("%w, or use --backend emu", err)
		}
		return nil, fmt.Errorf("backend cuda: %w", err)
	}
	return list, nil
}
