//go:build noasm || !amd64

package simd

import "testing"

// eachInstructionSet runs f with the kernels of this build.
func eachInstructionSet(t *testing.T, f func(t *testing.T)) { f(t) }
