//go:build cuda && cgo && linux

// Usage compiles every kernel with NVRTC, which needs no GPU, and prints what
// the assembler says of each: registers, shared memory, stack, spills. It fails
// where one spills more than is known here, so that a change that costs
// registers is seen on a machine without the device.
//
//	go run -tags cuda ./csrc/libcuda/kernels/usage [sm_90a]
//
// NVRTC is found as octet finds it (OCTET_LIBNVRTC, the loader, CUDA_HOME); the
// exit status is 3 where there is none.
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

// known is how many bytes a kernel may store for want of registers, on sm_90a with
// any NVRTC from 12.0 to 13.5. Others store nothing. attention_128 has the 255
// registers of a thread of which two blocks share a multiprocessor; what does not fit
// are the sums of the weights of its four rows and two numbers of the loop, once in 64
// keys. The kernels by tiles have 64 registers, so that one block works while another
// waits: most of what they spill is on the path of tiles that are not full, or not of
// plain BF16, and what the other path has is cheaper than half the threads.
var known = map[string]int{
	"activation_grad": 324,
	"adamw_amax":      32,
	"add":             52,
	"attention_128":   64,
	"quantize":        48,
	"quantize_blocks": 212,
	"rms_norm":        284,
	"rms_norm_grad":   664,
	"rope":            328,
	"swiglu":          244,
	"swiglu_amax":     28,
	"swiglu_by_row":   320,
	"swiglu_grad":     1218,
}

const noCompiler = 3

func main() {
	arch := "sm_90a"
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
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		if strings.HasSuffix(name, "_wgmma.cu") && arch != "sm_90a" {
			continue // no other architecture has the instruction
		}
		source := libcuda.Source{Name: name, Text: sources[name], Headers: kernels.Headers()}
		list, err := compiler.Usage(source, arch, kernels.Options()...)
		if err != nil {
			return err
		}
		for _, u := range list {
			fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%d\t  %s (%s)\n", u.Registers, u.Shared, u.Stack, u.SpillStores, u.SpillLoads, u.Kernel, name)
			if u.SpillStores > known[u.Kernel] {
				worse = append(worse, fmt.Sprintf("%s spills %d bytes, %d are known", u.Kernel, u.SpillStores, known[u.Kernel]))
			}
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if len(worse) > 0 {
		return fmt.Errorf("more registers spill than before: %q", worse)
	}
	return nil
}
