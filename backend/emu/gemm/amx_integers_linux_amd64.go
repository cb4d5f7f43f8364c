//go:build !noasm

package gemm

import (
	"sync"

	"golang.org/x/sys/cpu"
)

// amxIntegers multiplies words of four integers with the TDPBSSD of AMX.
var amxIntegers = IntegerKernel{
	Name: "amx int8", size: 4, contiguous: true,
	Multiply: func(k, rows int, a []float32, step, _ int, b, c []float32, load bool) {
		tiles := amxIntegerTiles(k, rows)
		multiplyIntegersAMX(&tiles, k, &a[0], step, &b[0], &c[0], load)
	},
	along: copyCodes,
	down:  avx512VNNI.down,
}

// amxTiles is the memory of LDTILECFG: the shapes of the tile registers.
type amxTiles struct {
	palette uint8
	_       [15]uint8
	bytes   [16]uint16 // of a row
	rows    [16]uint8
}

// amxIntegerTiles returns the tiles of a product of rows rows and k words.
func amxIntegerTiles(k, rows int) amxTiles {
	rest := k % 16
	if rest == 0 {
		rest = 16 // not used, but no tile may be empty
	}
	t, m := amxTiles{palette: 1}, uint8(rows)
	t.bytes = [16]uint16{0: 64, 1: 64, 2: 64, 3: 64, 4: 64, 5: uint16(4 * rest), 6: 64, 7: 64}
	t.rows = [16]uint8{0: m, 1: m, 2: uint8(rest), 3: uint8(rest), 4: m, 5: m, 6: 16, 7: 16}
	return t
}

// amxIntegerKernel returns the fastest kernel for integers, of a process that may use AMX.
var amxIntegerKernel = sync.OnceValue(func() *Kernel {
	if AMXAvailable() != nil || !cpu.X86.HasAMXInt8 {
		return Kernels()[0]
	}
	k := AVX512
	k.Integers = &amxIntegers
	return &k
})

// multiplyIntegersAMX is IntegerKernel.Multiply for a with stepK 1.
//
//go:noescape
func multiplyIntegersAMX(tiles *amxTiles, k int, a *float32, step int, b, c *float32, load bool)
