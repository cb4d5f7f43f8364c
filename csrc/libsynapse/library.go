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

// A library is a loaded file and its table of functions.
type library[API any] struct {
	api  API
	path string

	start   sync.Mutex
	started bool
}

type (
	synapse = library[*C.octet_synapse]
	hlml    = library[*C.octet_hlml]
)

// opened holds what was loaded, by kind and path: for the life of the process,
// as the libraries are.
var opened sync.Map

// open loads the first of the paths that can be, or the file that the variable
// names.
func open[API comparable](variable string, paths []string, load func(*C.char, *C.octet_syn_loaded) API) (*library[API], error) {
	if path := os.Getenv(variable); path != "" {
		paths = []string{path}
	}
	var reasons []string
	for _, path := range paths {
		l, err := openFile(path, load)
		if err == nil {
			return l, nil
		}
		reasons = append(reasons, err.Error())
	}
	return nil, errors.New(strings.Join(reasons, "; "))
}

func openFile[API comparable](path string, load func(*C.char, *C.octet_syn_loaded) API) (*library[API], error) {
	type key struct {
		none API // tells the kinds apart
		path string
	}
	if l, ok := opened.Load(key{path: path}); ok {
		return l.(*library[API]), nil
	}
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	var out C.octet_syn_loaded
	api := load(name, &out)
	if reason := C.GoString(&out.reason[0]); reason != "" {
		return nil, errors.New(reason)
	}
	l, _ := opened.LoadOrStore(key{path: path}, &library[API]{api: api, path: C.GoString(&out.path[0])})
	return l.(*library[API]), nil
}

func loadSynapse() (*synapse, error) {
	return open("OCTET_LIBSYNAPSE", []string{"libSynapse.so", "/usr/lib/habanalabs/libSynapse.so"},
		func(path *C.char, out *C.octet_syn_loaded) *C.octet_synapse { return C.octet_synapse_load(path, out) })
}

func loadHLML() (*hlml, error) {
	return open("OCTET_LIBHLML", []string{"libhlml.so", "/usr/lib/habanalabs/libhlml.so"},
		func(path *C.char, out *C.octet_syn_loaded) *C.octet_hlml { return C.octet_hlml_load(path, out) })
}

// startSynapse loads SynapseAI and starts it, once. Nothing ever stops it: its
// state is the process's, and its teardown has been seen to hang after an
// error of the device.
func startSynapse() (*synapse, error) {
	l, err := loadSynapse()
	if err != nil {
		return nil, err
	}
	return l, initialize(l)
}

func initialize(l *synapse) error {
	l.start.Lock()
	defer l.start.Unlock()
	if l.started {
		return nil
	}
	err := synapseError(l, C.octet_syn_initialize(l.api))
	l.started = err == nil
	return err
}

func version(l *synapse) (string, error) {
	var text [256]C.char
	err := synapseError(l, C.octet_syn_version(l.api, &text[0], C.size_t(len(text))))
	return C.GoString(&text[0]), err
}

// failed makes an error of a status that is not a success, with the text that
// the status's library has for it.
func failed(s C.octet_syn_status, text func(C.int) string) error {
	if s.code == 0 {
		return nil
	}
	return &Error{Call: C.GoString(s.call), Status: int(s.code), Text: text(s.code)}
}

// synapseError is the error of a call of SynapseAI.
func synapseError(l *synapse, s C.octet_syn_status) error {
	return failed(s, func(code C.int) string {
		var text [128]C.char
		C.octet_synapse_text(l.api, code, &text[0], C.size_t(len(text)))
		return C.GoString(&text[0])
	})
}
