//go:build cuda && cgo && linux

// Kernelusage compiles every kernel with NVRTC, which needs no GPU, and prints ptxas's report:
// registers, shared memory, stack, spills. On sm_90a it fails if a kernel spills more than
// listed here, so that a change that costs registers shows on a machine without the device.
//
//	go run -tags cuda ./tools/kernelusage [sm_90a]
//
// NVRTC is found as octet finds it (OCTET_LIBNVRTC, the loader's search path, CUDA_HOME);
// the exit status is 3 if it is missing.
package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"octet/csrc/libcuda"
	"octet/csrc/libcuda/kernels"
)

// known is the maximum bytes of spill stores of a kernel, on sm_90a with any NVRTC from
// 12.0 to 13.5 (epilogue, rope and swiglu_by_row: with 13.2); other kernels have none. Other architectures have no limits here.
// attention_128 has 255 registers per thread, so that two blocks share a multiprocessor; it
// spills the weight sums of its four rows and two loop variables, once per 64 keys. The
// kernels by tiles have 64 registers, so that one block works while another waits: they
// spill mostly on the path of tiles that are not full or not plain BF16, and the spills on
// the other path cost less than half the threads would.
var known = map[string]int{
	"activation_grad":     324,
	"adamw_amax":          32,
	"add":                 52,
	"attention_128":       64,
	"custom_squared_relu": 4,
	"epilogue":            4,
	"quantize":            48,
	"quantize_blocks":     212,
	"rms_norm":            284,
	"rms_norm_grad":       664,
	"rope":                356,
	"swiglu":              244,
	"swiglu_amax":         28,
	"swiglu_by_row":       396,
	"swiglu_grad":         1218,
}

// customs are custom ops, by name.
var customs = map[string]struct {
	source  string
	in, out int
}{
	"squared relu":       {"__device__ void f(float *y, const float *x) { y[0] = fmaxf(x[0], 0.0f) * fmaxf(x[0], 0.0f); }", 1, 1},
	"gradient of a gate": {"__device__ void f(float *y, const float *x) { y[0] = x[0] * tanhf(x[2]), y[1] = x[0] * x[1] * expf(-x[2] * x[2]); }", 3, 2},
}

const (
	hopper     = "sm_90a"
	noCompiler = 3
)

func main() {
	arch := hopper
	if len(os.Args) > 1 {
		arch = os.Args[1]
	}
	compiler, err := libcuda.NewCompiler(0)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(noCompiler)
	}
	fmt.Printf("NVRTC %s in %s, for %s\n", compiler.Version, compiler.Path, arch)
	if err := report(compiler, arch); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func report(compiler *libcuda.Compiler, arch string) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "registers\tshared\tstack\tspilled\tread back\t  kernel\n")
	var worse []string
	sources := kernels.Sources()
	for name, op := range customs {
		_, sources[name] = kernels.Loop(name, op.source, op.in, op.out, 1, 1)
	}
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		if strings.HasSuffix(name, "_wgmma.cu") && arch != hopper {
			continue // no other architecture has the instruction
		}
		source := libcuda.Source{Name: name, Text: sources[name], Headers: kernels.Headers()}
		list, err := compiler.Usage(source, arch, kernels.Options()...)
		if err != nil {
			return err
		}
		for _, u := range list {
			fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%d\t  %s (%s)\n", u.Registers, u.Shared, u.Stack, u.SpillStores, u.SpillLoads, u.Kernel, name)
			if arch == hopper && u.SpillStores > known[u.Kernel] {
				worse = append(worse, fmt.Sprintf("%s spills %d bytes, the limit is %d", u.Kernel, u.SpillStores, known[u.Kernel]))
			}
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if len(worse) > 0 {
		return fmt.Errorf("kernels spill more than listed in known: %q", worse)
	}
	return nil
}
