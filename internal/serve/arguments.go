package serve

import (
	"slices"
	"strings"

	"octet/backend"
	"octet/backend/arith"
	"octet/fp8"
	"octet/internal/gemm"
)

// maxCount is the number of elements that an array may have: 16 GiB of float32.
const maxCount = 1 << 32

func checkCount(n int64) error {
	if n < 0 || n > maxCount {
		return wrong("an array of %d elements: expected 0 to %d", n, int64(maxCount))
	}
	return nil
}

func checkMatrix(rows, cols int64) error {
	if rows <= 0 || cols <= 0 || rows > maxCount/cols {
		return wrong("a matrix of %d×%d: expected 1 to %d elements", rows, cols, int64(maxCount))
	}
	return nil
}

// sourceOf returns the format of values that a client sends.
func sourceOf(name string) (fp8.DType, error) {
	d, err := fp8.ParseDType(name)
	if err == nil && d != fp8.F32 && d != fp8.BF16 && d != fp8.F16 {
		err = wrong("values in %s: expected fp32, bf16 or fp16", name)
	}
	if err != nil {
		return d, valueError{err}
	}
	return d, nil
}

// backendOf returns the backend of a request's device: a value of --backend, or the bare name of a
// device model in any case. Empty is emu.
func backendOf(device string) (string, error) {
	if device == "" {
		return "emu", nil
	}
	models := arith.Names()
	if name := strings.ToLower(device); slices.Contains(models, name) {
		return "emu:" + name, nil
	}
	if _, err := backend.SpecOf(device); err != nil {
		return "", wrong("device %q: expected one of %s (%w)", device, strings.Join(models, ", "), err)
	}
	return device, nil
}

// fixedE4M3 names E4M3 as arrays of ml_dtypes hold it. The name e4m3 is the variant that a device has,
// in which the same codes may have other values.
const fixedE4M3 = "e4m3fn"

// formatOn returns the format that a device has for a name.
func formatOn(device, name string) (fp8.DType, error) {
	on, err := backendOf(device)
	if err != nil {
		return fp8.Invalid, err
	}
	spec, err := backend.SpecOf(on)
	if err != nil {
		return fp8.Invalid, valueError{err}
	}
	if name == fixedE4M3 {
		name = "e4m3"
		if spec.E4M3.String() != name {
			return fp8.Invalid, wrong("format %s: %s has %s, whose codes have other values: cast to the device's", fixedE4M3, device, spec.E4M3)
		}
	}
	d, err := gemm.Format(&spec, name)
	if err != nil {
		return d, valueError{err}
	}
	return d, nil
}
