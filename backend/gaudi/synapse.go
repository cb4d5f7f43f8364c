package gaudi

import (
	"time"

	"octet/csrc/libsynapse"
)

// synapse is one Gaudi as the backend uses it: this process's own (local), or one
// that another process has (remote), since SynapseAI gives a process no second.
// What passes is plain data, so that the two are alike. Everything happens in
// order on one stream; only read, time and synchronize wait for it.
type synapse interface {
	hardware() hardware
	memory() (free, total uint64, err error)
	alloc(bytes int64) (libsynapse.Ptr, error)
	free(libsynapse.Ptr) error
	fill(to libsynapse.Ptr, value byte, bytes int64) error
	write(to libsynapse.Ptr, src []byte) error // src is copied
	read(dst []byte, from libsynapse.Ptr) error
	// compile makes recipes, or finds those that it has of equal graphs.
	compile([]program) ([]compiled, error)
	// prepare takes commands in, of which run then executes those from one
	// index to another, until forget.
	prepare([]command) (list int, err error)
	run(list, from, to int) error
	// time is run, waits, and tells how long the device was at it by its own clock.
	time(list, from, to int) (time.Duration, error)
	forget(list int) error
	synchronize() error
	// join makes the device one of the ranks that do collectives together, under
	// the name that one of them has made by uniqueID. All join at once.
	uniqueID() ([]byte, error)
	join(id []byte, ranks, rank int) error
	// leave says why this rank does not come where the others may wait for it. It
	// ends them all.
	leave(why error)
	// release ends the use of the device. Its memory has been given back.
	release() error
}

// hardware is what a device is.
type hardware struct {
	Name   string // what it calls itself
	Bus    string // its address on PCI
	Driver string // version of the driver and runtime
	Model  string // "gaudi2"
	Align  int    // of addresses
}

// A program is a graph to compile. The name is for people.
type program struct {
	Name  string
	Graph *libsynapse.Graph
}

// Compiled is a recipe, by its number.
type compiled struct {
	Number    int
	Workspace int64 // bytes that a launch needs beside its sections
}

// A command is a launch, unless it is a transfer.
type command struct {
	Recipe    int
	Sections  []libsynapse.Ptr
	Workspace libsynapse.Ptr
	Transfer  *transfer
}
