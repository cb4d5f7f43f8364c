//go:build !noasm

package gemm

import (
	"errors"
	"fmt"
	"sync"
	"syscall"

	"golang.org/x/sys/cpu"

	"octet/backend/emu/memory"
	"octet/fp8"
)

// amxKernels returns the kernels that this process can run, the fastest first.
func amxKernels() []*amxKernel {
	if AMXAvailable() != nil {
		return []*amxKernel{&amxGoKernel}
	}
	return []*amxKernel{&amxUnitKernel, &amxGoKernel}
}

// AMXProcessor returns why this processor cannot use the matrix unit, or nil.
func AMXProcessor() error {
	x := &cpu.X86
	switch {
	case !x.HasAMXTile || !x.HasAMXBF16:
		return errors.New("this processor has no AMX unit for bf16")
	case !x.HasAVX512F || !x.HasAVX512BW || !x.HasAVX512DQ || !x.HasAVX512VL || !x.HasAVX512VBMI:
		return errors.New("this processor has AMX but lacks AVX-512 or its VBMI, which emu needs to pack tiles")
	}
	return nil
}

// AMXAvailable returns why this process cannot use the matrix unit, or nil. The first
// call requests permission from Linux, which grants it to all threads permanently: Linux
// saves the 8 KB of tiles with a thread only if the process has it. Linux refuses if a
// thread's signal stack is too small for the tiles; the Go runtime's are 32 KB.
//
// See Documentation/arch/x86/xstate.rst in Linux.
var AMXAvailable = sync.OnceValue(func() error {
	if err := AMXProcessor(); err != nil {
		return err
	}
	const (
		archReqXCompPerm = 0x1023
		xfeatureXTile    = 18
	)
	if _, _, errno := syscall.RawSyscall(syscall.SYS_ARCH_PRCTL, archReqXCompPerm, xfeatureXTile, 0); errno != 0 {
		return fmt.Errorf("linux does not let this process use AMX (needs 5.16 or later): arch_prctl(ARCH_REQ_XCOMP_PERM, XTILEDATA): %w", errno)
	}
	return nil
})

var amxUnitKernel = amxKernel{
	name: "amx",
	multiply: func(steps, blocks int, a, b AMXTiles, c amxSums, load, _ bool) {
		row, tile := a.steps()
		multiplyAMX(steps, blocks, &a.Elems[0], a.Panel, row, tile, &b.Elems[0], b.Panel, &c.x[0], c.ld, c.blockStep, load)
	},
	pack: func(dst []uint16, step int, src memory.Matrix, along, right bool, count int) {
		switch {
		case count == 0:
		case src.DType == fp8.BF16 && along && right:
			packWideTransposed16AMX(&dst[0], step, &src.U16[0], src.LD, count)
		case src.DType == fp8.BF16 && along:
			packWide16AMX(&dst[0], step, &src.U16[0], src.LD, count)
		case src.DType == fp8.BF16 && right:
			packTall16AMX(&dst[0], step, &src.U16[0], src.LD, count)
		case src.DType == fp8.BF16:
			packTallTransposed16AMX(&dst[0], step, &src.U16[0], src.LD, count)
		case along && right:
			packWideTransposed8AMX(&dst[0], step, &src.U8[0], src.LD, count, bf16TableOf(src.DType))
		case along:
			packWide8AMX(&dst[0], step, &src.U8[0], src.LD, count, bf16TableOf(src.DType))
		case right:
			packTall8AMX(&dst[0], step, &src.U8[0], src.LD, count, bf16TableOf(src.DType))
		default:
			packTallTransposed8AMX(&dst[0], step, &src.U8[0], src.LD, count, bf16TableOf(src.DType))
		}
	},
	scale: func(tile *[amxTile]uint16, scales *tileScales, right bool) {
		if right {
			scaleColumnsAMX(tile, scales)
		} else {
			scaleRowsAMX(tile, scales)
		}
	},
	finish: AVX512.finish,
}

//go:noescape
func multiplyAMX(steps, blocks int, a *uint16, panelA, rowA, tileA int, b *uint16, panelB int, c *float32, ld, next int, load bool)

//go:noescape
func packWide8AMX(dst *uint16, step int, src *uint8, ld, count int, table *bf16Table)

//go:noescape
func packWideTransposed8AMX(dst *uint16, step int, src *uint8, ld, count int, table *bf16Table)

//go:noescape
func packTall8AMX(dst *uint16, step int, src *uint8, ld, count int, table *bf16Table)

//go:noescape
func packTallTransposed8AMX(dst *uint16, step int, src *uint8, ld, count int, table *bf16Table)

//go:noescape
func packWide16AMX(dst *uint16, step int, src *uint16, ld, count int)

//go:noescape
func packWideTransposed16AMX(dst *uint16, step int, src *uint16, ld, count int)

//go:noescape
func packTall16AMX(dst *uint16, step int, src *uint16, ld, count int)

//go:noescape
func packTallTransposed16AMX(dst *uint16, step int, src *uint16, ld, count int)

//go:noescape
func scaleRowsAMX(tile *[amxTile]uint16, scales *tileScales)

//go:noescape
func scaleColumnsAMX(tile *[amxTile]uint16, scales *tileScales)
