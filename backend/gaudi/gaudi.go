// Package gaudi is the backend for Intel Gaudi 2 and 3. A whole training step runs on the
// device as SynapseAI recipes: graphs that SynapseAI's compiler has translated to programs
// for the matrix engines (MME) and the tensor processor cores (TPC).
//
// # From a program to a run
//
//	Program --Lower--> Program --cut--> units --compile--> recipes
//	                                     |                    |
//	                                     +--- a list of launches ---> run
//
// Lower (lower.go) gives every tensor of an optimizer's list an op of its own. cut
// (units.go) divides a program into units. A unit is the nodes of one layer, which the
// compiler may fuse and overlap, or of several layers (gaudi:0,unit=4), which means fewer
// launches and more overlap, but a longer compilation. The builder (builder.go and the
// files of the ops) writes a unit's graph as plain data of package octet/csrc/libsynapse.
// All of that works on any machine; octet plan shows it. Load (execute.go) compiles each
// distinct graph once, because layers are equal up to addresses, and caches the recipes
// on disk (recipe_cache.go). A Run is one list of launches on one stream and returns before
// the device is done; Read waits. The device does not implement backend.Fetcher: each
// call returns before the device has finished.
//
// # Memory
//
// Load allocates one block for the variables, and one for the temps that outlive a unit
// and for the workspace in which the compiler places all others. Launches
// share that workspace, because they run one after the other. A Gaudi reads and writes
// only at multiples of 128 or 256 bytes, so vectors that pack single scalars are padded
// (layout.go); Read and Write convert. A step allocates nothing.
//
// # Ranks
//
// SynapseAI gives a process one device, so each rank is a process. Collectives are HCCL's and
// run on the same stream as the launches. Each group of ranks has a communicator, which Load makes
// and the process keeps (member.go). A goroutine tells the group of all ranks how far the device is
// (collectives.go).
//
// # Determinism
//
// Stochastic rounding uses the device's own random generator, so such a run is not
// reproducible. Where an optimizer rounds stochastically, the first rank that has a tensor broadcasts
// its result, or the ranks' copies would drift apart. Without stochastic rounding a run repeats with
// the same version of SynapseAI, which Spec.Arithmetic names, as far as SynapseAI's
// kernels repeat: every node requests its deterministic form (synNodeSetDeterministic),
// without which the compiler adds the parts of a long sum in the order of their
// completion. The summation order that the compiler chooses is not published. HCCL adds
// ranks in an order of its own: with more than two ranks, sums may differ in their last
// bits from those of emu, and HCCL does not document whether they repeat.
//
// # Errors
//
// An error names the call and the vendor's status; SynapseAI writes its reasons to files
// in $HABANA_LOGS. After backend.ErrDeviceLost the backend frees nothing, because the
// teardown has been seen to hang, and only a new process gets the device again.
//
// # Caveats
//
// Knowledge of SynapseAI comes from its published compiler, runtime and PyTorch bridge.
// The code that talks to the device is built with -tags gaudi and cgo on Linux. It has
// run only against the project's own stand-in (octet/csrc/standin), never on a Gaudi.
package gaudi

import (
	"cmp"
	"errors"
	"fmt"

	"octet/backend"
	"octet/fp8"
)

func init() {
	backend.Register(backend.Driver{
		Name:      "gaudi",
		Priority:  10,
		Available: available,
		Spec:      spec,
		Lower:     lower,
		Outline:   outline,
		Open:      open,
		Probe:     probe,
		Examine:   examine,
	})
}

// models holds the specs of both models, from SynapseAI's open compiler, runtime and
// PyTorch bridge; deviceOptions.spec adds what depends on options. Gaudi 2 reserves the
// top exponent of E4M3 for infinity and NaN, which makes 240 its largest value, and
// refuses a GEMM of two different formats.
//
// Gaudi 3 has such GEMMs, but SynapseAI 1.16 compiles them only in inference graphs
// (mme_node.cpp, and the types of gemm in gc_ops_db.cpp): pairs=mixed is for a version
// that compiles them. Gaudi 3's casts saturate at 448. Its matrix engine has a mode for
// that E4M3 and one for Gaudi 2's (InfNanMode in mme_common_enum.h), and the published
// compiler does not say which is on: e4m3=240 is for the latter.
//
// HeadTokens gives the head's wgrad, which does two FLOPs for each token and each element of an
// FP32 gradient that it reads and writes, as many FLOPs for each byte as BF16 GEMMs do while 2.46
// and 3.7 TB/s move a byte: 170 and 335 (docs/planning.md), with 680 and 1,340 tokens.
//
// Capacities are from the data sheets, whose GB are GiB. Neither model draws Octet's random
// bits: the casts have their own generator.
var models = map[string]backend.Spec{
	"gaudi2": {
		Backend: "gaudi", Device: "Gaudi 2", E4M3: fp8.E4M3IEEE, Own: details{align: 128}, AttentionBF16: true, HeadTokens: 1024,
		Capacities: []backend.Capacity{{Device: "Gaudi 2 (96 GB)", Bytes: 96 << 30}},
	},
	"gaudi3": {
		Backend: "gaudi", Device: "Gaudi 3", E4M3: fp8.E4M3, Own: details{align: 256}, AttentionBF16: true, HeadTokens: 2048,
		Capacities: []backend.Capacity{{Device: "Gaudi 3 (128 GB)", Bytes: 128 << 30}},
	},
}

// details are what only this package reads of a Spec: its Spec.Own.
type details struct {
	align int  // of device addresses, in bytes
	unit  int  // consecutive blocks that are compiled as one unit; 0 is 1
	clip  bool // casts exceed the GEMM's E4M3 maximum, so values are clipped before them
}

// own returns the details of a Spec of this backend.
func own(s backend.Spec) details {
	d, _ := s.Own.(details)
	return d
}

// spec returns the spec for a device name. Without a model in the name it is that of the
// devices in this machine, else the model that the options require, else Gaudi 2.
func spec(device string) (backend.Spec, error) {
	opts, err := parse(device)
	if err != nil {
		return backend.Spec{}, err
	}
	s, err := opts.spec(cmp.Or(opts.model, modelHere(), opts.modelOfOptions(), "gaudi2"))
	if err != nil {
		return s, fmt.Errorf("backend gaudi: %w", err)
	}
	return s, nil
}

// open opens the device of a rank.
func open(device string, o backend.Options) (backend.Backend, error) {
	opts, err := parse(device)
	if err != nil {
		return nil, err
	}
	s, err := openRank(opts.module, o.Group)
	if err != nil {
		if errors.Is(err, backend.ErrNoDevice) {
			err = fmt.Errorf("%w, or use --backend emu", err)
		}
		return nil, fmt.Errorf("backend gaudi: %w", err)
	}
	d, err := newDevice(s, o.Group, opts)
	if h := s.hardware(); err == nil && opts.model != "" && opts.model != h.Model {
		err = fmt.Errorf("%w of that model: this is a %s; --backend gaudi uses any model", backend.ErrNoDevice, h.Model)
	}
	if err == nil {
		err = d.join()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("backend gaudi: %w", err), s.release())
	}
	return d, nil
}
