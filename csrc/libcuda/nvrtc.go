//go:build cuda && cgo && linux

package libcuda

// #include <stdlib.h>
// #include "libcuda.h"
import "C"

import (
	"fmt"
	"slices"
	"strings"
	"unsafe"
)

// Compiler is NVRTC, which compiles CUDA C++ to cubins. It needs no GPU.
type Compiler struct {
	Library

	lib nvrtc
}

// NewCompiler loads the newest NVRTC that a driver of this version supports; 0 is an
// unknown driver.
func NewCompiler(driver int) (*Compiler, error) {
	lib, err := openNVRTC(driver)
	if err != nil {
		return nil, err
	}
	version, err := nvrtcVersion(lib)
	if err != nil {
		return nil, err
	}
	return &Compiler{Library{lib.Path, version}, lib}, nil
}

// Compiles reports whether this version of NVRTC supports a GPU's compute capability.
func (c *Compiler) Compiles(g GPU) (bool, error) {
	list, count := make([]C.int, 256), C.int(0)
	if err := nvrtcError(c.lib.Table, C.octet_nvrtc_archs(c.lib.Table, C.int(len(list)), &list[0], &count)); err != nil {
		return false, err
	}
	return slices.Contains(list[:min(len(list), int(count))], C.int(10*g.Major+g.Minor)), nil
}

// Source is a program and the headers that it includes by name. NVRTC searches no other
// headers.
type Source struct {
	Name    string // "quantize.cu", in messages
	Text    string
	Headers map[string]string // name to text
}

// Arch returns the compiler's name of a GPU's architecture: from Hopper on with the
// suffix "a" (sm_90a), which enables features of this architecture only. A cubin for it
// runs on no other.
func (g GPU) Arch() string {
	arch := fmt.Sprintf("sm_%d%d", g.Major, g.Minor)
	if g.Major >= 9 {
		arch += "a"
	}
	return arch
}

// Compile returns a cubin for one architecture. Options are NVRTC's, such as
// "--std=c++17". If the program does not compile, the error contains the compiler's
// messages, from the second line on.
func (c *Compiler) Compile(src Source, arch string, options ...string) ([]byte, error) {
	cubin, _, err := c.compile(src, arch, options)
	return cubin, err
}

// Usage compiles and returns the report of the assembler, ptxas, for each kernel. It
// returns an error if ptxas serialized wgmma instructions.
func (c *Compiler) Usage(src Source, arch string, options ...string) ([]Usage, error) {
	_, log, err := c.compile(src, arch, append(slices.Clone(options), "--ptxas-options=-v"))
	if err != nil {
		return nil, err
	}
	if text := serialized(log); text != "" {
		return nil, fmt.Errorf("%s: ptxas: %s", src.Name, text)
	}
	list := parseUsage(log)
	if len(list) == 0 {
		return nil, fmt.Errorf("NVRTC %s has no usage report for the kernels of %s", c.Version, src.Name)
	}
	return list, nil
}

// compile also returns the compiler's log.
func (c *Compiler) compile(src Source, arch string, options []string) (cubin []byte, log string, err error) {
	var owned []unsafe.Pointer
	defer func() {
		for _, p := range owned {
			C.free(p)
		}
	}()
	str := func(s string) *C.char {
		p := C.CString(s)
		owned = append(owned, unsafe.Pointer(p))
		return p
	}
	var names, texts, flags []*C.char
	for _, name := range sortedNames(src.Headers) {
		names, texts = append(names, str(name)), append(texts, str(src.Headers[name]))
	}
	// A cubin, unlike PTX, also loads on a driver that is older than NVRTC.
	for _, o := range slices.Concat([]string{"--gpu-architecture=" + arch}, options) {
		flags = append(flags, str(o))
	}
	var out C.octet_compiled
	status := C.octet_nvrtc_compile(c.lib.Table, str(src.Name), str(src.Text),
		C.int(len(names)), unsafe.SliceData(texts), unsafe.SliceData(names),
		C.int(len(flags)), unsafe.SliceData(flags), &out)
	owned = append(owned, unsafe.Pointer(out.log), unsafe.Pointer(out.cubin))
	if err := nvrtcError(c.lib.Table, status); err != nil {
		err = fmt.Errorf("compile %s for %s with NVRTC %s: %w", src.Name, arch, c.Version, err)
		if log := strings.TrimSpace(C.GoString(out.log)); log != "" {
			err = fmt.Errorf("%w\n%s", err, log)
		}
		return nil, "", err
	}
	// The shim reports a failed allocation as an empty cubin.
	if out.cubin == nil || out.bytes == 0 {
		return nil, "", fmt.Errorf("compile %s for %s with NVRTC %s: it returned no code", src.Name, arch, c.Version)
	}
	return C.GoBytes(unsafe.Pointer(out.cubin), C.int(out.bytes)), C.GoString(out.log), nil
}

func nvrtcError(api *C.octet_nvrtc, s C.octet_status) error {
	return failed(s, func(code C.int) *C.char { return C.octet_nvrtc_text(api, code) })
}
