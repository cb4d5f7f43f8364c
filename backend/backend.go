package backend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"

	"octet/fp8"
	"octet/internal/spelling"
)

// Backend owns the memory of one set of variables on one device and turns
// programs over them into executables. Its methods may be called from any
// goroutine, one at a time; it owns the thread that its device needs.
type Backend interface {
	// Spec says what the device can do.
	Spec() Spec
	// Bind allocates the persistent tensors, zeroed. Called once.
	Bind(*Vars) error
	// Write sets the bytes of a persistent tensor, or of a view of one that FitsBuffer:
	// little-endian, row-major.
	Write(*Tensor, []byte) error
	// Read waits for the device and copies the bytes of what Write may set.
	Read(*Tensor, []byte) error
	// Load makes a set of programs runnable; they share one arena for temps.
	// An op that the device cannot run is refused here with ErrUnsupported.
	Load(...*Program) ([]Executable, error)
	// Close releases everything, the executables too.
	Close() error
}

// Executable is a loaded program.
type Executable interface {
	// Run executes the program once. A device may still be at it when Run
	// returns: the next run follows it, Read waits for it, and an error of the
	// device may surface there.
	Run(context.Context) error
	// RunObserved executes it node by node and shows each node's operands
	// after it ran: profiles, the hunt for the first NaN, comparisons.
	RunObserved(context.Context, Observer) error
	// Plan is where the temps were placed.
	Plan() *Plan
}

// Observer is called after a node ran. An error stops the run and is returned. Where
// several ranks meet it ends their group, like any failure of this rank: the others would
// wait for it in their next collective. Their errors wrap it.
type Observer func(n *Node, m Memory) error

// Memory is what an observer sees of the device: the operands of the node that
// ran, row-major and without gaps.
type Memory interface {
	// Read copies an operand's bytes; what it returns stays valid.
	Read(*Tensor) ([]byte, error)
	// Write replaces them, for what runs later.
	Write(*Tensor, []byte) error
}

// Spec is what programs, recipes and planners need to know of a device.
type Spec struct {
	Backend string // "emu"
	Device  string // "2 threads, AVX-512"
	Hint    string // what a user of this device may want to know, or nothing
	// Arithmetic is what decides the last bits of results besides Backend and
	// its device model: "avx512", the kernels of emu; "float64" of ref. Known
	// once a device is open and has its programs. A run repeats bit for bit where
	// it is the same.
	Arithmetic string
	E4M3       fp8.DType
	// Pairs lists the FP8 operand formats that one GEMM takes. On NVIDIA's devices and
	// their models these are cuBLASLt's, though tensor cores multiply E5M2 by E5M2 too.
	Pairs [][2]fp8.DType
	// ClipE4M3 says that the device's casts go on behind the largest number that E4M3 has
	// in its products, so that the backend has to clip what is cast.
	ClipE4M3 bool
	// BlockScales says that products take operands with scales by block or by row.
	BlockScales bool
	// Stochastic says whether casts can draw the counter-based bits of fp8.Random.
	Stochastic bool
	// AttentionBF16 says that attention over BF16 operands computes products of
	// BF16, its probabilities and their gradients rounded to it.
	AttentionBF16 bool
	// Align is the alignment of arena addresses in bytes.
	Align int
	// HeadTokens is how many tokens' logits exist at a time at least. A chunk of tokens
	// reads and writes the head's whole weight gradient once, so larger chunks save memory
	// traffic and cost memory; they change the order of that gradient's sum. 0 leaves the
	// choice to nn.
	HeadTokens int
	// Capacities is the memory of the devices that this may be, the smallest first,
	// as far as it is known before one is open.
	Capacities []Capacity
	// Unit is how many blocks in a row a backend that compiles blocks compiles as one;
	// 0 is 1.
	Unit int
	// HostMemory says that the device has no memory but the machine's.
	HostMemory bool
	// Threads is how many processors of the machine a rank works on; 0 where it is
	// not they that compute.
	Threads int
}

// Options is what the host decides about a backend, apart from its name.
type Options struct {
	Threads int // of the CPU backend; 0 is all processors
	// Ranks is how many copies of the model train together: GPUs of this
	// process on cuda, processes with a device each on gaudi, goroutines on emu.
	// 0 is 1.
	Ranks int
	// Choices are those of an earlier Chooser, to be made again where the device
	// can; the others are made anew. The ranks have the same.
	Choices []byte
	// BeforeExit, if it is set, gets the reason before a backend ends the process, which
	// it does with status 1 where a device hangs in its driver and no call can end that.
	// It may be called from any goroutine. The process ends one second later at the latest.
	BeforeExit func(reason error)
}

// Chooser is a Backend that chooses, by time, between ways to compute the same
// thing whose last bits differ. Spec.Arithmetic of a Backend with programs loaded
// tells its choices from others.
type Chooser interface {
	Backend
	// Choices is what has been chosen so far, for Options.Choices.
	Choices() []byte
}

// Driver is one backend before any device is opened. Spec and Lower need no
// device, so that programs are planned and inspected on any machine.
type Driver struct {
	Name string
	// Rank orders the drivers when the user names none; the highest whose
	// Available is nil, of no device in particular, wins.
	Rank int
	// Available says why the device cannot be used here; nil if it can.
	Available func(device string) error
	// Spec describes the device named after the colon in "cuda:0" or
	// "emu:h100"; an unknown one is an error that lists the known.
	Spec func(device string) (Spec, error)
	// Lower rewrites the programs of one set of variables into what the backend
	// runs, in the same order. It may fuse, transpose and reorder, and must not
	// change a bit of the result. A program that writes what another reads is to
	// be lowered together with it, and before Bind: a copy in another layout is a
	// variable more. Lowering the same programs again adds no others.
	Lower func(Spec, []*Program) ([]*Program, error)
	// Outline says what Load will make of a set of lowered programs. nil: it
	// allocates the temps of MakePlan, op by op, and nothing else.
	Outline func(Spec, []*Program) (Outline, error)
	// Open makes the backends of all ranks, in order of rank.
	Open func(device string, o Options) ([]Backend, error)
	// Probe looks at this machine for what the driver needs: hardware, its
	// libraries, their versions. It may load libraries, and takes no device.
	// Where the driver has none, Register gives it one that finds nothing.
	Probe func() []Finding
	// Examine looks closer: it takes the device, and asks its libraries for what
	// lowered programs need of them, which may take minutes. nil where there is
	// nothing to find that running the programs would not show as well.
	Examine func(device string, programs []*Program) iter.Seq[Finding]
}

// Finding is one thing that a probe looked for: a line of octet doctor.
type Finding struct {
	What   string // "CUDA driver"
	OK     bool
	Detail string // what it found, or why not
	Fix    string // what to do about it; empty if there is nothing to do

	// Optional is of what the backend computes without.
	Optional bool
}

// Errors that a caller may want to tell apart.
var (
	ErrNoDevice = errors.New("no device")
	// ErrNotBuilt is the ErrNoDevice of a binary that has not the code for it.
	ErrNotBuilt    = error(notBuilt{})
	ErrOutOfMemory = errors.New("out of memory")
	ErrDeviceLost  = errors.New("device lost")
)

type notBuilt struct{}

func (notBuilt) Error() string { return "not in this binary" }
func (notBuilt) Unwrap() error { return ErrNoDevice }

var registry = struct {
	sync.Mutex
	drivers map[string]Driver
}{drivers: map[string]Driver{}}

// Register makes a backend known by name; packages call it from init.
func Register(d Driver) {
	if d.Probe == nil {
		d.Probe = func() []Finding { return nil }
	}
	registry.Lock()
	defer registry.Unlock()
	registry.drivers[d.Name] = d
}

// Drivers lists the registered backends, best first.
func Drivers() []Driver {
	registry.Lock()
	defer registry.Unlock()
	return slices.SortedFunc(maps.Values(registry.drivers), func(a, b Driver) int {
		return cmp.Or(b.Rank-a.Rank, strings.Compare(a.Name, b.Name))
	})
}

// Find splits "name" or "name:device" and looks the driver up. An empty name
// picks the best driver that is available.
func Find(name string) (d Driver, device string, err error) {
	base, device, _ := strings.Cut(name, ":")
	var known []string
	for _, d := range Drivers() {
		if d.Name == base || base == "" && d.Available("") == nil {
			return d, device, nil
		}
		known = append(known, d.Name)
	}
	return Driver{}, "", fmt.Errorf("unknown backend %q%s (this octet knows: %s)", base, spelling.DidYouMean(base, known), strings.Join(known, ", "))
}

// SpecOf describes the device of "name" or "name:device" without opening it.
func SpecOf(name string) (Spec, error) {
	d, device, err := Find(name)
	if err != nil {
		return Spec{}, err
	}
	return d.Spec(device)
}

// Open makes one backend per rank from "name" or "name:device".
func Open(name string, o Options) ([]Backend, error) {
	d, device, err := Find(name)
	if err != nil {
		return nil, err
	}
	o.Ranks = max(1, o.Ranks)
	return d.Open(device, o)
}

// Load makes programs ready to run on b, which has nothing bound yet: it lowers them
// together, binds their variables and loads what came of them, in the same order. What
// the device cannot run is ErrUnsupported; what was wrong in the recording is an error too.
//
// Ranks that train together lower once (Driver.Lower), and each binds and loads the result.
func Load(b Backend, programs ...*Program) ([]Executable, error) {
	for _, p := range programs {
		if err := p.Err(); err != nil {
			return nil, fmt.Errorf("recording %s: %w", p.Name(), err)
		}
	}
	spec, vars := b.Spec(), programs[0].Vars()
	driver, _, err := Find(spec.Backend)
	if err != nil {
		return nil, err
	}
	if programs, err = driver.Lower(spec, programs); err != nil {
		return nil, err
	}
	if err := b.Bind(vars); err != nil {
		return nil, err
	}
	return b.Load(programs...)
}
