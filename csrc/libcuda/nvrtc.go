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

// Compiler is NVRTC: CUDA C++ in, cubins out. It needs no GPU.
type Compiler struct {
	Library

	lib nvrtc
}

// NewCompiler loads the newest NVRTC that a driver of this version serves; 0 is
// a driver unknown.
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

// Compiles reports whether there is code for a GPU: NVRTC knows the compute
// capabilities of its day.
func (c *Compiler) Compiles(g GPU) (bool, error) {
	list, count := make([]C.int, 256), C.int(0)
	if err := nvrtcError(c.lib.Table, C.octet_nvrtc_archs(c.lib.Table, C.int(len(list)), &list[0], &count)); err != nil {
		return false, err
	}
	return slices.Contains(list[:min(len(list), int(count))], C.int(10*g.Major+g.Minor)), nil
}

// Source is a program and the headers that it includes by name. NVRTC finds no
// others.
type Source struct {
	Name    string // "quantize.cu", in messages
	Text    string
	Headers map[string]string // name to text
}

// Arch is what the compiler calls the architecture of a GPU: "sm_90a", with the
// features that are Hopper's own. A cubin for it runs on no other.
func (g GPU) Arch() string {
	arch := fmt.Sprintf("sm_%d%d", g.Major, g.Minor)
	if g.Major >= 9 {
		arch += "a"
	}
	return arch
}

// Compile makes a cubin for one architecture. options are NVRTC's own, such as
// "--std=c++17". The error of a program that does not compile has the
// compiler's messages, from the second line on.
func (c *Compiler) Compile(src Source, arch string, options ...string) ([]byte, error) {
	cubin, _, err := c.compile(src, arch, options)
	return cubin, err
}

// Usage compiles for what the assembler, ptxas, says of each kernel. That it had to
// make the products of wgmma wait for each other is an error.
func (c *Compiler) Usage(src Source, arch string, options ...string) ([]Usage, error) {
	_, log, err := c.compile(src, arch, append(slices.Clone(options), "--ptxas-options=-v"))
	if err != nil {
		return nil, err
	}
	if text := serialized(log); text != "" {
		return nil, fmt.Errorf("%s: the assembler says: %s", src.Name, text)
	}
	list := parseUsage(log)
	if len(list) == 0 {
		return nil, fmt.Errorf("NVRTC %s does not say what the kernels of %s use", c.Version, src.Name)
	}
	return list, nil
}

// compile also returns what the compiler had to say.
func (c *Compiler) compile(src Source, arch string, options []string) (cubin []byte, said string, err error) {
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
	// A cubin, unlike PTX, does not have to be understood by a driver that may
	// be older than NVRTC.
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
	// An empty cubin and one that there was no memory for look alike.
	if out.cubin == nil || out.bytes == 0 {
		return nil, "", fmt.Errorf("compile %s for %s with NVRTC %s: no code came back", src.Name, arch, c.Version)
	}
	return C.GoBytes(unsafe.Pointer(out.cubin), C.int(out.bytes)), C.GoString(out.log), nil
}

func nvrtcError(api *C.octet_nvrtc, s C.octet_status) error {
	return failed(s, func(code C.int) *C.char { return C.octet_nvrtc_text(api, code) })
}
