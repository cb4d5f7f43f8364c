package gaudi

import (
	"time"

	"octet/backend"
	"octet/backend/world"
	"octet/csrc/libsynapse"
)

// synapse is one Gaudi as the backend uses it: this process's device (local), or a fake of tests.
// Calls take effect in order on one stream; only read, time and synchronize wait for it.
type synapse interface {
	hardware() hardware
	memory() (free, total uint64, err error)
	alloc(bytes int64) (libsynapse.Ptr, error)
	free(libsynapse.Ptr) error
	fill(to libsynapse.Ptr, value byte, bytes int64) error
	write(to libsynapse.Ptr, src []byte) error // src is copied
	read(dst []byte, from libsynapse.Ptr) error
	// compile returns the recipes of graphs, compiling those that it has not compiled
	// yet.
	compile([]program) ([]compiled, error)
	// prepare stores a list of commands, of which run executes those from one index to
	// another, until forget.
	prepare([]command) (list int, err error)
	run(list, from, to int) error
	// time runs commands, waits for them, and returns the time measured by the device's
	// clock.
	time(list, from, to int) (time.Duration, error)
	forget(list int) error
	synchronize() error
	// uniqueID makes the id of a communicator. join makes the device a rank of the communicator
	// of all ranks, connect one of those of groups of them, once each. All ranks call them at once.
	uniqueID() ([]byte, error)
	join(*world.Group) error
	connect([]backend.Group) error
	// release ends the use of the device, after its memory is freed.
	release() error
}

// hardware describes a device.
type hardware struct {
	Name   string // the device's own name
	Bus    string // PCI address
	Driver string // version of the driver and runtime
	Model  string // "gaudi2"
	Align  int    // of addresses
}

// A program is a graph to compile. Name is for logs and errors.
type program struct {
	Name  string
	Graph *libsynapse.Graph
}

// compiled identifies a compiled recipe.
type compiled struct {
	Number    int
	Workspace int64 // bytes that a launch needs besides its sections
}

// A command is a launch of a recipe, or a transfer if Transfer is set.
type command struct {
	Recipe    int
	Sections  []libsynapse.Ptr
	Workspace libsynapse.Ptr
	Transfer  *transfer
}
