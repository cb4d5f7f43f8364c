//go:build gaudi && cgo && linux

package libsynapse

// #cgo CFLAGS: -std=gnu11 -Wall
// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "libsynapse.h"
import "C"

import (
	"errors"
	"os"
	"strings"
	"sync"
	"unsafe"
)

// Synapse is what SynapseAI says of itself and of the machine.
type Synapse struct {
	Path    string // of the file that was loaded; empty if there is none
	Version string // of the driver and runtime
	Devices int    // of any kind
	Gaudi2  int
	Gaudi3  int
}

var process sync.Mutex

// Probe loads SynapseAI, starts it, asks and stops it. The error is what the
// loader or SynapseAI said.
func Probe() (Synapse, error) {
	process.Lock()
	defer process.Unlock()
	paths := []string{"libSynapse.so", "/usr/lib/habanalabs/libSynapse.so"}
	if path := os.Getenv("OCTET_LIBSYNAPSE"); path != "" {
		paths = []string{path}
	}
	var reasons []string
	for _, path := range paths {
		s, err := probe(path)
		if s.Path != "" {
			return s, err
		}
		reasons = append(reasons, err.Error())
	}
	return Synapse{}, errors.New(strings.Join(reasons, "; "))
}

func probe(path string) (Synapse, error) {
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	var out C.octet_synapse_report
	C.octet_synapse_probe(name, &out)
	s := Synapse{
		Path: C.GoString(&out.path[0]), Version: C.GoString(&out.version[0]),
		Devices: int(out.devices), Gaudi2: int(out.gaudi2), Gaudi3: int(out.gaudi3),
	}
	if reason := C.GoString(&out.reason[0]); reason != "" {
		return s, errors.New(reason)
	}
	return s, nil
}
