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
	return &Compiler{Library{lib.path, version}, lib}, nil
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
	status := C.octet_nvrtc_compile(c.lib.api, str(src.Name), str(src.Text),
		C.int(len(names)), unsafe.SliceData(texts), unsafe.SliceData(names),
		C.int(len(flags)), unsafe.SliceData(flags), &out)
	owned = append(owned, unsafe.Pointer(out.log), unsafe.Pointer(out.cubin))
	if err := nvrtcError(c.lib.api, status); err != nil {
		err = fmt.Errorf("compile %s for %s with NVRTC %s: %w", src.Name, arch, c.Version, err)
		if log := strings.TrimSpace(C.GoString(out.log)); log != "" {
			err = fmt.Errorf("%w\n%s", err, log)
		}
		return nil, err
	}
	// An empty cubin and one that there was no memory for look alike.
	if out.cubin == nil || out.bytes == 0 {
		return nil, fmt.Errorf("compile %s for %s with NVRTC %s: no code came back", src.Name, arch, c.Version)
	}
	return C.GoBytes(unsafe.Pointer(out.cubin), C.int(out.bytes)), nil
}

func nvrtcError(api *C.octet_nvrtc, s C.octet_status) error {
	return failed(s, func(code C.int) *C.char { return C.octet_nvrtc_text(api, code) })
}
