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

	"octet/backend/world"
	"octet/fp8"
	"octet/internal/spelling"
)

// Backend holds the memory of one set of variables on one device and turns
// programs over them into executables. Package ref is the smallest; DeviceVars makes the
// checks that all have in common. Its methods may be called from any
// goroutine, one at a time. A device that needs an OS thread of its own gets it
// from its Backend.
type Backend interface {
	// Spec describes the device.
	Spec() Spec
	// Load prepares lowered programs to run, and first allocates and zeroes the variables
	// that have no memory yet. All programs of a backend have the same Vars. Those of
	// one call share an arena for temps. The error wraps ErrUnsupported if the device
	// cannot run an op.
	Load(...*Program) ([]Executable, error)
	// Write sets the bytes of a variable or of a contiguous view of one: little-endian,
	// row-major.
	Write(*Tensor, []byte) error
	// Read waits for the device and copies out the bytes of a tensor that Write accepts.
	Read(*Tensor, []byte) error
	// Close releases everything, including the executables.
	Close() error
}

// Executable is a loaded program.
type Executable interface {
	// Run executes the program once. It may return while the device still computes:
	// later runs start after this one, Read waits for it, and both may return its
	// error.
	Run(context.Context) error
	// RunObserved executes the program node by node and calls the observer after
	// each node. Profiles, comparisons and the search for the first NaN use it.
	RunObserved(context.Context, Observer) error
}

// Observer is called after each node. Its error stops the run, and RunObserved returns
// it. It also stops the other ranks, like any failure of this rank, since they would
// wait for this rank in their next collective. Their errors wrap it.
type Observer func(n *Node, m Memory) error

// Memory lets an observer read and write the operands of the node that just ran,
// row-major and without gaps.
type Memory interface {
	// Read returns a copy of an operand's bytes, which the caller may keep.
	Read(*Tensor) ([]byte, error)
	// Write replaces an operand's bytes for the nodes that run later.
	Write(*Tensor, []byte) error
}

// Spec describes a device to programs, recipes and planners.
type Spec struct {
	Backend string // name of its Driver: "emu"
	Model   string // the device that an emulating backend models: "h100" of "emu:h100"; empty for others
	Device  string // "2 threads, AVX-512"
	Hint    string // advice for the user of this device, may be empty
	// Arithmetic names what decides the last bits of results besides Backend and its
	// device model: "avx512" for kernels of emu, "float64" for ref. It is known once
	// a device is open and has loaded its programs. Runs with equal Arithmetic are
	// bitwise reproducible.
	Arithmetic string
	E4M3       fp8.DType // the variant of E4M3 that programs for this device use
	// Pairs lists the operands of up to eight bits that GEMMs multiply, A and B, with their
	// scales; nil means any two floating-point or any two integer formats with any scales
	// (fp8.Multiplies). On NVIDIA devices these are cuBLASLt's pairs; tensor cores also
	// multiply E5M2 by E5M2.
	Pairs [][2]fp8.Encoding
	// Library lists the operands of up to eight bits that the GEMM library of the device
	// Model multiplies, which may be fewer than Pairs; nil without a model.
	Library [][2]fp8.Encoding
	// IntegerBits is the width of the register in which GEMMs add up integers, whose sums
	// may overflow it; 0: sums are exact.
	IntegerBits int
	// F16 says that ops compute on F16 without a scale, whose casts overflow to infinity.
	// Devices without it take F16 as the X of Quantize, Amax and CastHealth alone.
	F16 bool
	// Masked says that casts round to formats that BF16 contains (Cast.Precision).
	Masked bool
	// BlockMoments says that the moments of AdamW can have scales for blocks of a row.
	BlockMoments bool
	// BlockSources says that Quantize can read an X with block scales.
	BlockSources bool
	// SeedSigns says that Hadamard can take its signs from the seed of the run.
	SeedSigns bool
	// Experts says that the backend runs the ops of mixtures of experts: Route and others.
	Experts bool
	// Stochastic says that casts can draw the counter-based random bits of fp8.Random.
	Stochastic bool
	// AttentionBF16 says that attention over BF16 operands multiplies in BF16: it
	// rounds probabilities and their gradients to BF16.
	AttentionBF16 bool
	// HeadTokens is the minimum number of tokens whose logits exist at a time. Each
	// chunk of tokens reads and writes the head's whole weight gradient once, so larger
	// chunks save memory traffic, cost memory, and change the order in which that
	// gradient is summed. 0 leaves the choice to nn.
	HeadTokens int
	// Capacities lists the products that Device may be, with their memory, smallest
	// first, as far as they are known before a device is open.
	Capacities []Capacity
	// HostMemory says that the device has no memory but the host's.
	HostMemory bool
	// Threads is the number of host processors that a rank computes on; 0 for devices
	// that compute elsewhere.
	Threads int
	// Own holds what only the backend's own code reads, in a type of its own that prints
	// with %v; nil for none. It takes a device's options from Spec to Lower and Outline.
	Own any
}

// Multiplies reports whether GEMMs multiply operands of up to eight bits that are stored as
// a and b.
func (s *Spec) Multiplies(a, b fp8.Encoding) bool { return fp8.Multiplies(s.Pairs, a, b) }

// Options are the host's settings for a backend, apart from its name.
type Options struct {
	Threads int // of the CPU backend; 0 is all processors
	// Group connects the device to those of the other ranks of a run: processes on cuda and
	// gaudi, goroutines or processes on emu. nil: there is one rank.
	Group *world.Group
	// Choices restores the choices of an earlier Chooser where the device supports
	// them; the backend makes the others anew. All ranks get the same Choices.
	Choices []byte
	// BeforeExit, if set, gets the reason before a backend ends the process. A backend
	// does so, with status 1, if a device hangs in its driver and no call can end the
	// hang. Any goroutine may call it. The process ends within a second of the call.
	BeforeExit func(reason error)
}

// Chooser is a Backend that times alternative kernels and picks the fastest, though
// their results differ in the last bits. Once programs are loaded, its
// Spec.Arithmetic identifies the choices.
type Chooser interface {
	Backend
	// Choices returns the choices so far, for Options.Choices.
	Choices() []byte
}

// Driver describes and opens the devices of one backend. Spec, Lower and Outline need no
// device, so programs can be planned and inspected on any machine. Name, Spec and Open are
// required. Register replaces the other functions, if nil, by their defaults.
type Driver struct {
	Name string
	// Priority orders the drivers when the user names none: the highest one whose
	// Available("") is nil wins.
	Priority int
	// Spec describes the device named after the colon in "cuda:0" or "emu:h100".
	// An unknown name is an error that lists the known ones.
	Spec func(device string) (Spec, error)
	// Open opens a device. With Options.Group, all ranks call it, and it returns when all
	// devices are connected.
	Open func(device string, o Options) (Backend, error)
	// Lower rewrites the programs of one set of variables into programs that the
	// backend runs, in the same order. It may fuse, transpose and reorder, but must
	// not change a bit of the result. It may declare a variable for a copy in another
	// layout; lowering the same programs again declares no more. Callers use the
	// function Lower. Default: the programs as they are.
	Lower func(Spec, []*Program) ([]*Program, error)
	// Outline returns what Load will allocate and launch for a set of lowered
	// programs. Callers use OutlineOf. Default: the temps of
	// MakePlan with PerOp, on cache lines of 64 bytes.
	Outline func(Spec, []*Program) (Outline, error)
	// Available returns why the device cannot be used here; nil if it can. Default:
	// it always can.
	Available func(device string) error
	// Probe checks this machine for what the driver needs: hardware, libraries and
	// their versions. It may load libraries, but opens no device. Default: no findings.
	Probe func() []Finding
	// Examine opens the device and checks that its libraries support the lowered
	// programs, which may take minutes. nil if running the programs would show the
	// same problems.
	Examine func(device string, programs []*Program) iter.Seq[Finding]
}

// Finding is the result of one check of a Probe: a line of octet doctor.
type Finding struct {
	What   string // "CUDA driver"
	OK     bool
	Detail string // what the check found, or why it failed
	Fix    string // what the user can do about it, may be empty

	// Optional says that the backend runs without it.
	Optional bool
}

// Errors that a caller may want to tell apart.
var (
	ErrNoDevice = errors.New("no device")
	// ErrNotBuilt wraps ErrNoDevice: this binary was built without the backend.
	ErrNotBuilt    = error(notBuilt{})
	ErrOutOfMemory = errors.New("out of memory")
	ErrDeviceLost  = errors.New("device lost")
	ErrClosed      = errors.New("the backend is closed")
)

type notBuilt struct{}

func (notBuilt) Error() string { return "not in this binary" }
func (notBuilt) Unwrap() error { return ErrNoDevice }

var registry = struct {
	sync.Mutex
	drivers map[string]Driver
}{drivers: map[string]Driver{}}

// Register makes a driver known by name; packages call it from init. It panics if the name
// is invalid or taken, or if Spec or Open is nil. The returned function removes the driver
// again, for tests.
func Register(d Driver) (remove func()) {
	registry.Lock()
	defer registry.Unlock()
	_, taken := registry.drivers[d.Name]
	switch {
	case !spelling.IsName(d.Name):
		panic(fmt.Sprintf("backend.Register: Driver.Name is %q: expected "+spelling.NameRule, d.Name))
	case taken:
		panic(fmt.Sprintf("backend.Register: this program already has a driver %q: choose another Driver.Name", d.Name))
	case d.Spec == nil || d.Open == nil:
		panic(fmt.Sprintf("backend.Register: driver %q needs Spec and Open: set both", d.Name))
	}
	if d.Lower == nil {
		d.Lower = func(_ Spec, programs []*Program) ([]*Program, error) { return programs, nil }
	}
	if d.Outline == nil {
		d.Outline = func(_ Spec, lowered []*Program) (Outline, error) {
			return Outline{Temps: MakePlan(64, PerOp, lowered...).Bytes}, nil
		}
	}
	if d.Available == nil {
		d.Available = func(string) error { return nil }
	}
	if d.Probe == nil {
		d.Probe = func() []Finding { return nil }
	}
	registry.drivers[d.Name] = d
	return func() {
		registry.Lock()
		defer registry.Unlock()
		delete(registry.drivers, d.Name)
	}
}

// Drivers returns the registered drivers, highest Priority first.
func Drivers() []Driver {
	registry.Lock()
	defer registry.Unlock()
	return slices.SortedFunc(maps.Values(registry.drivers), func(a, b Driver) int {
		return cmp.Or(b.Priority-a.Priority, strings.Compare(a.Name, b.Name))
	})
}

// Find splits "name" or "name:device" and returns the driver and the device. An
// empty name picks the available driver of the highest Priority.
func Find(name string) (d Driver, device string, err error) {
	base, device, _ := strings.Cut(name, ":")
	var known []string
	for _, d := range Drivers() {
		if d.Name == base || base == "" && d.Available("") == nil {
			return d, device, nil
		}
		known = append(known, d.Name)
	}
	switch {
	case len(known) == 0:
		return Driver{}, "", errors.New("this program has no backends: import octet/backend/emu, or another one")
	case base == "":
		return Driver{}, "", fmt.Errorf("%w: none of the backends %s is available here", ErrNoDevice, strings.Join(known, ", "))
	}
	return Driver{}, "", fmt.Errorf("unknown backend %q%s (known: %s)", base, spelling.DidYouMean(base, known), strings.Join(known, ", "))
}

// SpecOf returns the Spec of "name" or "name:device" without opening the device.
func SpecOf(name string) (Spec, error) {
	d, device, err := Find(name)
	if err != nil {
		return Spec{}, err
	}
	return d.Spec(device)
}

// Open opens the device "name" or "name:device" of one rank.
func Open(name string, o Options) (Backend, error) {
	d, device, err := Find(name)
	if err != nil {
		return nil, err
	}
	return d.Open(device, o)
}

// Lower returns programs as the backend of s runs them, in the same order. Dry runs and
// Load lower by this function alone. It returns errors of the recording. A program that
// writes a tensor must be lowered together with those that read it.
func Lower(s Spec, programs ...*Program) ([]*Program, error) {
	for _, p := range programs {
		if err := p.Err(); err != nil {
			return nil, fmt.Errorf("recording %s: %w", p.Name(), err)
		}
		if err := s.checkF16(p); err != nil {
			return nil, err
		}
	}
	d, _, err := Find(s.Backend)
	if err != nil {
		return nil, err
	}
	return d.Lower(s, programs)
}

// Name returns the backend and its arithmetic, of an open device. Runs repeat bit for bit
// where it is equal; checkpoints record it.
func (s Spec) Name() string {
	if s.Arithmetic == "" {
		return s.Backend
	}
	return s.Backend + ", " + s.Arithmetic
}

// DeviceName names the device in messages: "emu:h100", "cuda (compute capability 9.0)".
func (s Spec) DeviceName() string {
	switch {
	case s.Model != "":
		return s.Backend + ":" + s.Model
	case s.HostMemory || s.Device == "":
		return s.Backend
	}
	return fmt.Sprintf("%s (%s)", s.Backend, s.Device)
}

// checkF16 returns an error if a program needs ops on unscaled F16 that the device has not.
func (s *Spec) checkF16(p *Program) error {
	if s.F16 {
		return nil
	}
	for _, n := range p.Nodes() {
		reads := true
		switch n.Op.(type) {
		case *Quantize, *Amax, *CastHealth:
			reads = false
		case CustomOp: // the backend decides about these, as about their other formats
			continue
		}
		var scaled []*Tensor
		for c := range Casts(n.Op) {
			if c.Scale != nil {
				scaled = append(scaled, c.Out)
			}
		}
		for _, o := range n.Operands() {
			t := o.Tensor
			if t.DType == fp8.F16 && t.Scale == nil && !slices.Contains(scaled, t) && (reads || o.Access != In) {
				return fmt.Errorf("backend %s: %w: %s of %T is %s without a scale, and this backend has no FP16 activations and gradients; use bf16, or backend emu",
					s.DeviceName(), ErrUnsupported, o.Field, n.Op, t)
			}
		}
	}
	return nil
}

// OutlineOf returns what the backend of s will allocate and launch for programs that
// Lower returned.
func OutlineOf(s Spec, lowered ...*Program) (Outline, error) {
	d, _, err := Find(s.Backend)
	if err != nil {
		return Outline{}, err
	}
	return d.Outline(s, lowered)
}

// Load lowers programs together and loads them on b, in the same order. Its error wraps
// ErrUnsupported if the device cannot run an op.
//
// Ranks that train together call Lower once, and each loads the result.
func Load(b Backend, programs ...*Program) ([]Executable, error) {
	lowered, err := Lower(b.Spec(), programs...)
	if err != nil {
		return nil, err
	}
	return b.Load(lowered...)
}
