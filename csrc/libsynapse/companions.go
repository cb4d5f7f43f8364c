//go:build gaudi && cgo && linux

package libsynapse

import (
	"os"

	"octet/csrc/dynlib"
)

// companions are the libraries that SynapseAI opens by bare file name when it starts: the
// compiler of fused kernels, and that of complex kernels, which expands a kernel into
// others. A variable may name another file (GCFG_TPC_FUSER_LIB_NAME and
// GCFG_COMPLEX_GUID_LIB_NAME of habana_global_conf.cpp).
var companions = []struct{ name, variable string }{
	{"libTPCFuser.so", "TPC_FUSER_LIB_NAME"},
	{"libComplexGuid.so", "COMPLEX_GUID_LIB_NAME"},
}

// MissingCompanions returns the names of the companion libraries that SynapseAI did not
// find when it started; call it after Probe. SynapseAI reports them only in its log, and
// works without them until it compiles a node that is made of several kernels, such as
// attention or a cast with a scale, which then fails with a mere synFail.
func MissingCompanions() (missing []string) {
	for _, c := range companions {
		// The variable is private, and may not work in every version: accept either file.
		if other := os.Getenv(c.variable); !dynlib.Loaded(c.name) && (other == "" || !dynlib.Loaded(other)) {
			missing = append(missing, c.name)
		}
	}
	return missing
}
