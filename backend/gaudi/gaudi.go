// Package gaudi is the backend for Intel Gaudi 2 and 3. A whole training step runs
// on the device, in recipes: graphs that SynapseAI's compiler has made into programs
// for the matrix engines and the tensor cores.
//
// # From a program to a run
//
//	Program --Lower--> Program --cut--> units --compile--> recipes
//	                                     |                    |
//	                                     +--- a list of launches ---> run
//
// Lower (lower.go) gives every tensor of an optimizer's list an op of its own. cut
// (units.go) takes a program apart into units: the nodes of a layer, which the
// compiler may fuse and overlap, or of several layers (gaudi:0,unit=4), which are fewer
// launches, with more to overlap, but longer to compile. The builder (builder.go and the
// files of the ops) writes a unit's graph, plain data of package octet/csrc/libsynapse.
// All of that works on any machine; octet plan shows it. Load (execute.go) compiles each distinct
// graph once, layers being equal up to addresses, and keeps the recipes on disk
// (recipes.go). A Run is one list of launches on one stream, and returns before the
// device is done; Read waits. The device is no backend.Fetcher: each call to a
// process of another rank waits for its answer, so a step ends with a wait.
//
// # Memory
//
// Bind takes one block for the variables. Load takes one for the temps that outlive a
// unit and for the workspace in which the compiler places all others; launches share
// it, since they run one after the other. A Gaudi reads and writes at multiples of 128
// or 256 bytes only, so packed vectors of single numbers are laid out with gaps
// (layout.go); Read and Write know. Nothing is allocated in a step.
//
// # Ranks
//
// SynapseAI gives a process one device. One rank has it in this process; each of
// several has a process of its own, this program started once more (worker.go), and is
// driven through a socket (remote.go): what SynapseAI is asked to do is plain data
// (synapse.go). The processes live and die together: where one ends, waits longer
// than OCTET_HCCL_TIMEOUT, or is stopped in a run, all end, with an error that says
// where. Collectives are HCCL's, on the same stream as the launches.
//
// # Determinism
//
// Stochastic rounding is the device's own, whose bits are none of Octet's, so such a
// run is not repeated by another; where an optimizer rounds so, all ranks take what
// rank 0 got, or they would drift apart. Without it a run repeats with the same version
// of SynapseAI, which Spec.Arithmetic names, as far as its kernels can: every node is
// asked for its deterministic form (synNodeSetDeterministic), without which the compiler
// adds up parts of a long sum as they come. The order that it chooses is not published.
// HCCL adds ranks up in an order of its own, not in that of the ranks: with more than
// two, sums may differ in their last bits from those of emu, and whether they repeat is
// for HCCL to say.
//
// # Errors
//
// An error names the call and the vendor's status; SynapseAI writes its reasons to
// files in $HABANA_LOGS. After backend.ErrDeviceLost nothing is given back, since the
// teardown has been seen to hang, and only a new process gets the device again.
//
// # Caveats
//
// What is known of SynapseAI comes from its published compiler, runtime and PyTorch
// bridge. What talks to the device is built with -tags gaudi and cgo on Linux, and has
// run against a stand-in of ours only (octet/csrc/standin), never on a Gaudi.
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
		Rank:      10,
		Available: available,
		Spec:      spec,
		Lower:     lower,
		Outline:   outline,
		Open:      open,
		Probe:     probe,
		Examine:   examine,
	})
}

// models is what is published of the two, in SynapseAI's open compiler, runtime and
// PyTorch bridge; wish.spec adds what depends on options. Gaudi 2 reserves the top
// exponent of E4M3 for infinity and NaN, which leaves 240 as its largest value, and
// refuses a product of unequal formats.
//
// Gaudi 3 has such products, but SynapseAI 1.16 compiles them in graphs for inference
// only (mme_node.cpp, and the types of gemm in gc_ops_db.cpp): pairs=mixed is for one
// that compiles them. Its casts saturate at 448, and its matrix engine has a mode for
// such an E4M3 and one for that of Gaudi 2 (InfNanMode in mme_common_enum.h), of which
// the published compiler does not say which is on: e4m3=240 is for the other.
//
// Align is the alignment of device addresses. Capacities are those of the data sheets,
// whose GB are GiB. Neither draws Octet's random bits: the casts have a generator of
// their own.
var models = map[string]backend.Spec{
	"gaudi2": {
		Backend: "gaudi", Device: "Gaudi 2", E4M3: fp8.E4M3IEEE, Align: 128, AttentionBF16: true,
		Capacities: []backend.Capacity{{Device: "Gaudi 2 (96 GB)", Bytes: 96 << 30}},
	},
	"gaudi3": {
		Backend: "gaudi", Device: "Gaudi 3", E4M3: fp8.E4M3, Align: 256, AttentionBF16: true,
		Capacities: []backend.Capacity{{Device: "Gaudi 3 (128 GB)", Bytes: 128 << 30}},
	},
}

// spec takes a device's name. Without a model it is of the devices that are here, and
// where none are of the one that the options are for, or Gaudi 2.
func spec(device string) (backend.Spec, error) {
	w, err := parse(device)
	if err != nil {
		return backend.Spec{}, err
	}
	s, err := w.spec(cmp.Or(w.model, modelHere(), w.modelOfOptions(), "gaudi2"))
	if err != nil {
		return s, fmt.Errorf("backend gaudi: %w", err)
	}
	return s, nil
}

// open makes the backends of all ranks. One alone has its device in this process;
// several have a process each.
func open(device string, o backend.Options) ([]backend.Backend, error) {
	w, err := parse(device)
	if err != nil {
		return nil, err
	}
	ranks := max(1, o.Ranks)
	opened, err := openRanks(w.module, ranks)
	if err != nil {
		if errors.Is(err, backend.ErrNoDevice) {
			err = fmt.Errorf("%w, or use --backend emu", err)
		}
		return nil, fmt.Errorf("backend gaudi: %w", err)
	}
	list := make([]backend.Backend, ranks)
	for rank, s := range opened {
		d, err := newDevice(s, rank, ranks, w)
		if h := s.hardware(); err == nil && w.model != "" && w.model != h.Model {
			err = fmt.Errorf("%w of that model: this is a %s, and --backend gaudi takes what is there", backend.ErrNoDevice, h.Model)
		}
		if err != nil {
			for _, s := range opened {
				err = errors.Join(err, s.release())
			}
			return nil, fmt.Errorf("backend gaudi: %w", err)
		}
		list[rank] = d
	}
	return list, nil
}
