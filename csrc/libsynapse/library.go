//go:build gaudi && cgo && linux

package libsynapse

// #cgo CFLAGS: -std=gnu11 -Wall
// #include "libsynapse.h"
// #include "api.h"
import "C"

import (
	"sync"

	"octet/csrc/dynlib"
)

type (
	synapse = *dynlib.Library[*C.octet_synapse]
	hlml    = *dynlib.Library[*C.octet_hlml]
)

// started are the libraries that are initialized.
var started = struct {
	sync.Mutex
	libraries map[synapse]bool
}{libraries: map[synapse]bool{}}

// loadSynapse loads SynapseAI, whose library contains HCCL.
func loadSynapse() (l synapse, err error) {
	keepSignals(func() {
		l, err = dynlib.Open[*C.octet_synapse]("OCTET_LIBSYNAPSE", []string{"libSynapse.so", "/usr/lib/habanalabs/libSynapse.so"},
			C.OCTET_SYNAPSE_NAMES, C.OCTET_HCCL_NAMES, nil)
	})
	return l, err
}

func loadHLML() (l hlml, err error) {
	keepSignals(func() {
		l, err = dynlib.Open[*C.octet_hlml]("OCTET_LIBHLML", []string{"libhlml.so", "/usr/lib/habanalabs/libhlml.so"},
			C.OCTET_HLML_NAMES, C.OCTET_HLML_OPTIONAL_NAMES, nil)
	})
	return l, err
}

// startSynapse loads SynapseAI and initializes it once. It is never terminated: its state
// belongs to the process, and its teardown has been seen to hang after a device error.
func startSynapse() (synapse, error) {
	l, err := loadSynapse()
	if err != nil {
		return nil, err
	}
	return l, initialize(l)
}

func initialize(l synapse) error {
	started.Lock()
	defer started.Unlock()
	if started.libraries[l] {
		return nil
	}
	var status C.octet_syn_status
	keepSignals(func() { status = C.octet_syn_initialize(l.Table) }) // loads the kernel libraries
	if err := synapseError(l, status); err != nil {
		return err
	}
	started.libraries[l] = true
	return nil
}

func version(l synapse) (string, error) {
	var text [256]C.char
	err := synapseError(l, C.octet_syn_version(l.Table, &text[0], C.size_t(len(text))))
	return C.GoString(&text[0]), err
}

// statusError returns the error of a status, nil for success, with the library's text for
// it.
func statusError(s C.octet_syn_status, text func(C.int) string) error {
	if s.code == 0 {
		return nil
	}
	return &Error{Call: C.GoString(s.call), Status: int(s.code), Text: text(s.code)}
}

// synapseError returns the error of a SynapseAI call.
func synapseError(l synapse, s C.octet_syn_status) error {
	return statusError(s, func(code C.int) string {
		var text [128]C.char
		C.octet_synapse_text(l.Table, code, &text[0], C.size_t(len(text)))
		return C.GoString(&text[0])
	})
}
