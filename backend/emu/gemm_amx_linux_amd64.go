//go:build !noasm

package emu

import (
	"errors"
	"fmt"
	"sync"
	"syscall"

	"golang.org/x/sys/cpu"

	"octet/fp8"
)

// amxKernels lists the kernels that this process can run, the best first.
func amxKernels() []*amxKernel {
	if amxAvailable() != nil {
		return []*amxKernel{&amxGoKernel}
	}
	return []*amxKernel{&amxUnitKernel, &amxGoKernel}
}

// amxProcessor says why this processor cannot, or nil.
func amxProcessor() error {
	x := &cpu.X86
	switch {
	case !x.HasAMXTile || !x.HasAMXBF16:
		return errors.New("this processor has no AMX unit for bf16")
	case !x.HasAVX512F || !x.HasAVX512BW || !x.HasAVX512DQ || !x.HasAVX512VL || !x.HasAVX512VBMI:
		return errors.New("this processor has AMX but lacks AVX-512 or its VBMI, which pack for it")
	}
	return nil
}

// amxAvailable says why this process cannot use the matrix unit, or nil. The
// first call asks Linux for it, which grants it to all threads for good: tiles
// are 8 KB that it saves with a thread only if they may be used. It refuses if
// a thread's signal stack is too small for them; the runtime's are 32 KB.
//
// See Documentation/arch/x86/xstate.rst in Linux.
var amxAvailable = sync.OnceValue(func() error {
	if err := amxProcessor(); err != nil {
		return err
	}
	const (
		archReqXCompPerm = 0x1023
		xfeatureXTile    = 18
	)
	if _, _, errno := syscall.RawSyscall(syscall.SYS_ARCH_PRCTL, archReqXCompPerm, xfeatureXTile, 0); errno != 0 {
		return fmt.Errorf("linux does not let this process use AMX: arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA): %w (5.16 or later is needed)", errno)
	}
	return nil
})

var amxUnitKernel = amxKernel{
	name: "amx",
	multiply: func(steps, across int, a, b []uint16, c []float32, load, _ bool) {
		multiplyAMX(steps, across, &a[0], &b[0], &c[0], load)
	},
	pack: func(dst []uint16, step int, src matrix, along, right bool, count int) {
		switch {
		case count == 0:
		case src.dtype == fp8.BF16 && along && right:
			packWideTurned16AMX(&dst[0], step, &src.u16[0], src.ld, count)
		case src.dtype == fp8.BF16 && along:
			packWide16AMX(&dst[0], step, &src.u16[0], src.ld, count)
		case src.dtype == fp8.BF16 && right:
			packTall16AMX(&dst[0], step, &src.u16[0], src.ld, count)
		case src.dtype == fp8.BF16:
			packTallTurned16AMX(&dst[0], step, &src.u16[0], src.ld, count)
		case along && right:
			packWideTurned8AMX(&dst[0], step, &src.u8[0], src.ld, count, &bf16Tables[src.dtype])
		case along:
			packWide8AMX(&dst[0], step, &src.u8[0], src.ld, count, &bf16Tables[src.dtype])
		case right:
			packTall8AMX(&dst[0], step, &src.u8[0], src.ld, count, &bf16Tables[src.dtype])
		default:
			packTallTurned8AMX(&dst[0], step, &src.u8[0], src.ld, count, &bf16Tables[src.dtype])
		}
	},
	finish: avx512Kernel.finish,
}

//go:noescape
func multiplyAMX(steps, across int, a, b *uint16, c *float32, load bool)

//go:noescape
func packWide8AMX(dst *uint16, step int, src *uint8, ld, count int, table *bf16Table)

//go:noescape
func packWideTurned8AMX(dst *uint16, step int, src *uint8, ld, count int, table *bf16Table)

//go:noescape
func packTall8AMX(dst *uint16, step int, src *uint8, ld, count int, table *bf16Table)

//go:noescape
func packTallTurned8AMX(dst *uint16, step int, src *uint8, ld, count int, table *bf16Table)

//go:noescape
func packWide16AMX(dst *uint16, step int, src *uint16, ld, count int)

//go:noescape
func packWideTurned16AMX(dst *uint16, step int, src *uint16, ld, count int)

//go:noescape
func packTall16AMX(dst *uint16, step int, src *uint16, ld, count int)

//go:noescape
func packTallTurned16AMX(dst *uint16, step int, src *uint16, ld, count int)
