//go:build gaudi && cgo && linux

package gaudi

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"octet/backend"
	"octet/csrc/libsynapse"
)

const (
	fixSynapse = "install Intel Gaudi's habanalabs-graph (it puts libSynapse.so into /usr/lib/habanalabs), or point OCTET_LIBSYNAPSE at the file"
	fixVersion = "install version 1.16 or later of Intel Gaudi's software, driver and firmware included"
	fixLoader  = "SynapseAI opens these libraries by name: add the folder of libSynapse.so to LD_LIBRARY_PATH, as in export LD_LIBRARY_PATH=/usr/lib/habanalabs"
	fixDevice  = "hl-smi should list the devices, /dev/accel hold them: install habanalabs-dkms and load it; in a container, start it with --runtime=habana and HABANA_VISIBLE_DEVICES=all"
)

// probe returns all findings that need no device.
func probe() []backend.Finding { return append(probeSynapse(), environment()) }

// probeSynapse loads SynapseAI and counts the devices that it reports.
func probeSynapse() []backend.Finding {
	s, err := libsynapse.Probe()
	synapse := backend.Finding{What: "SynapseAI", OK: true, Detail: fmt.Sprintf("version %s in %s", s.Version, s.Path)}
	switch {
	case s.Path == "":
		return []backend.Finding{{
			What: synapse.What, Detail: err.Error(),
			Fix: fixSynapse,
		}}
	case err != nil:
		return []backend.Finding{{What: synapse.What, Detail: fmt.Sprintf("%s: %v", s.Path, err), Fix: fixDevice}}
	}
	devices := backend.Finding{
		What: "Gaudi devices", OK: s.Gaudi2+s.Gaudi3 > 0,
		Detail: fmt.Sprintf("%d of model 2, %d of model 3, %d in all", s.Gaudi2, s.Gaudi3, s.Devices),
	}
	if !devices.OK {
		devices.Fix = fixDevice
	}
	kernels := backend.Finding{What: "kernels", OK: true}
	if list, err := libsynapse.Kernels(); err == nil {
		kernels.Detail = strings.Join(list, ", ")
	} else {
		kernels.OK, kernels.Detail = false, err.Error()
	}
	if tooOld(s.Version) {
		synapse.OK, synapse.Fix = false, fixVersion
	}
	return append([]backend.Finding{synapse, devices, kernels, companions()}, firmware("/sys/class/accel")...)
}

// companions checks for the libraries without which SynapseAI starts, but compiles
// little.
func companions() backend.Finding {
	f := backend.Finding{What: "compilers", OK: true, Detail: "the compilers of fused and complex kernels are loaded"}
	if missing := libsynapse.MissingCompanions(); len(missing) > 0 {
		f.OK, f.Fix = false, fixLoader
		f.Detail = "not loaded: " + strings.Join(missing, ", ") + "; without them FP8 GEMMs, casts to FP8, attention and norms fail with synFail"
	}
	return f
}

// environment lists the environment variables of SynapseAI and its libraries that are
// set, the main difference between machines with the same software.
func environment() backend.Finding {
	var set []string
	for _, v := range os.Environ() {
		if slices.ContainsFunc([]string{"HABANA", "GC_", "HCCL_", "HCL_", "HLS_", "SYN_", "SYNAPSE_", "SCAL_", "LOG_LEVEL_", "ENABLE_", "EXP_FLAGS", "TPC_", "COMPLEX_GUID_", "LD_LIBRARY_PATH=", "OCTET_"},
			func(prefix string) bool { return strings.HasPrefix(v, prefix) }) {
			set = append(set, v)
		}
	}
	slices.Sort(set)
	return backend.Finding{What: "environment", OK: true, Detail: cmp.Or(strings.Join(set, " "), "no SynapseAI variable is set")}
}

// tooOld reports whether a version is below 1.16, the first version whose interface was
// studied. It is false for a version without a number.
func tooOld(version string) bool {
	var major, minor int
	n, _ := fmt.Sscanf(version, "%d.%d", &major, &minor)
	return n == 2 && (major < 1 || major == 1 && minor < 16)
}

// firmware returns the device status from the kernel driver, which documents it in
// Documentation/ABI/testing/sysfs-driver-habanalabs.
func firmware(accel string) (list []backend.Finding) {
	devices, _ := filepath.Glob(filepath.Join(accel, "accel*", "device"))
	for _, dir := range devices {
		read := func(name string) string {
			raw, _ := os.ReadFile(filepath.Join(dir, name))
			return strings.TrimSpace(string(raw))
		}
		status, driver := read("status"), read("driver_ver")
		if driver == "" {
			continue // another vendor's accelerator
		}
		list = append(list, backend.Finding{
			What: "device " + filepath.Base(filepath.Dir(dir)), OK: status == "" || strings.EqualFold(status, "operational"),
			Detail: fmt.Sprintf("%s, %s, driver %s, firmware %s", cmp.Or(read("device_type"), "unknown"), cmp.Or(status, "status unknown"), driver, cmp.Or(read("fw_os_ver"), "unknown")),
		})
	}
	return list
}
