//go:build gaudi && cgo && linux

package libsynapse

import "octet/csrc/dynlib"

// companions are the libraries that SynapseAI opens while it starts, by names without a
// folder (GCFG_TPC_FUSER_LIB_NAME and GCFG_COMPLEX_GUID_LIB_NAME of habana_global_conf.cpp):
// the compiler of fused kernels, and the one that makes kernels of others.
var companions = []string{"libTPCFuser.so", "libComplexGuid.so"}

// MissingCompanions lists the libraries of SynapseAI's own that it did not find when it
// started, which it has after Probe. It says so in its log alone, and works without them
// until it is to compile what is made of several kernels, such as attention or a cast
// with a scale: a mere synFail.
func MissingCompanions() (missing []string) {
	for _, name := range companions {
		if !dynlib.Loaded(name) {
			missing = append(missing, name)
		}
	}
	return missing
}
