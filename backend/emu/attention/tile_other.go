//go:build noasm || (!amd64 && !arm64)

package attention

import "octet/backend/emu/gemm"

func inPlace(*gemm.Kernel) multiplyInto { return nil }

// pairsInPlace returns the version of a kernel's pairs for row-major b and c: none.
func pairsInPlace(*gemm.Kernel) multiplyInto { return nil }
