//go:build gaudi && cgo && linux

package libsynapse

import (
	"os"

	"octet/csrc/dynlib"
)

// companions are the libraries that SynapseAI opens while it starts, by names without a
// folder: the compiler of fused kernels, and the one that makes kernels of others. A
// variable may name another file (GCFG_TPC_FUSER_LIB_NAME and GCFG_COMPLEX_GUID_LIB_NAME
// of habana_global_conf.cpp).
var companions = []struct{ name, variable string }{
	{"libTPCFuser.so", "TPC_FUSER_LIB_NAME"},
	{"libComplexGuid.so", "COMPLEX_GUID_LIB_NAME"},
}

// MissingCompanions lists the libraries of SynapseAI's own that it did not find when it
// started, which it has after Probe. It says so in its log alone, and works without them
// until it is to compile what is made of several kernels, such as attention or a cast
// with a scale: a mere synFail.
func MissingCompanions() (missing []string) {
	for _, c := range companions {
		// It is private, and whether every version heeds it is not known: either will do.
		if other := os.Getenv(c.variable); !dynlib.Loaded(c.name) && (other == "" || !dynlib.Loaded(other)) {
			missing = append(missing, c.name)
		}
	}
	return missing
}
