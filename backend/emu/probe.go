package emu

import (
	"fmt"
	"runtime"

	"octet/backend"
	"octet/backend/emu/gemm"
)

// probe reports what determines the speed: the instruction set of the GEMM and the number
// of threads.
func probe() []backend.Finding {
	kernel := gemm.Kernels()[0]
	kernels := backend.Finding{What: "matrix kernels", OK: kernel != &gemm.Go, Detail: kernel.Label()}
	if !kernels.OK {
		kernels.Detail += fmt.Sprintf(": this build has no assembly for %s with this processor's instructions; GEMMs are slower, and those of FP32 and attention differ in their last bits", runtime.GOARCH)
		if runtime.GOARCH == "amd64" {
			kernels.Fix = "build without -tags noasm, on a processor with AVX2 and FMA, or AVX-512"
		}
	}
	matrixUnit := backend.Finding{What: "AMX", Optional: true, OK: true, Detail: "available: --backend emu:amx trains faster, with other last bits"}
	if reason := gemm.AMXAvailable(); reason != nil {
		matrixUnit.OK, matrixUnit.Detail = false, reason.Error()
	}
	return []backend.Finding{kernels, matrixUnit, {
		What: "threads", OK: true,
		Detail: fmt.Sprintf("%d of %d processors", runtime.GOMAXPROCS(0), runtime.NumCPU()),
	}}
}
