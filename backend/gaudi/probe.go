//go:build gaudi && cgo && linux

package gaudi

import (
	"fmt"

	"octet/backend"
	"octet/csrc/libsynapse"
)

const fixDevice = "hl-smi should list the devices, /dev/accel hold them: install habanalabs-dkms and load it; in a container, start it with --runtime=habana and HABANA_VISIBLE_DEVICES=all"

// probe looks for SynapseAI and counts the devices that it shows.
func probe() []backend.Finding {
	s, err := libsynapse.Probe()
	synapse := backend.Finding{What: "SynapseAI", OK: true, Detail: fmt.Sprintf("version %s in %s", s.Version, s.Path)}
	switch {
	case s.Path == "":
		return []backend.Finding{{
			What: synapse.What, Detail: err.Error(),
			Fix: "install Intel Gaudi's habanalabs-graph (it puts libSynapse.so into /usr/lib/habanalabs), or point OCTET_LIBSYNAPSE at the file",
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
	return []backend.Finding{synapse, devices}
}
