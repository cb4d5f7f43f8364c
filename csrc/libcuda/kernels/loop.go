package kernels

import (
	"fmt"
	"regexp"
)

var notInNames = regexp.MustCompile(`\W+`)

// Loop returns the launch of a custom op, and the text of its translation unit. source
// defines the function of one element,
//
//	__device__ void f(float *out, const float *in)
//
// which the kernel calls with in inputs and out results. The compiler counts the lines of
// its messages from the beginning of source, which it names op. The words of the kernel's
// arguments are the inputs as Tensor, with an ld of 0 for one row that all rows read, the
// results as Casts, rows, cols, scratch.
func Loop(op, source string, in, out, rows, cols int) (l Launches, text string) {
	blocks := 2 // per multiprocessor, with 64 registers per thread
	if in+out > 4 {
		blocks = 1
	}
	l = tiles("custom_"+notInNames.ReplaceAllString(op, "_"), op)(rows, cols)
	return l, fmt.Sprintf(`#include "loop.cuh"

namespace custom {
#line 1 %q
%s
}
#line 1 "call of __device__ void f(float *out, const float *in)"
struct Args : LoopArgs<%d, %d> {};
struct F { __device__ void operator()(float *out, const float *in) const { custom::f(out, in); } };

KERNEL(%s, Args, TILE_THREADS, %d) { loop(a, F()); }
`, op, source, in, out, l.Kernels[0].Name, blocks)
}
