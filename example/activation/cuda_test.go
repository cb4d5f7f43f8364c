//go:build cuda

package main

import (
	"testing"

	"octet/csrc/standin"
)

// Backend cuda runs the ops; see example/ops/cuda_test.go.
func TestCUDA(t *testing.T) {
	standin.Load(t, "libcuda", "libcublaslt", "libnvrtc")
	defer func(before []string) { backends = before }(backends)
	backends = []string{"cuda"}
	TestOps(t)
}
