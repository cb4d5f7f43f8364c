package backend

import (
	"math/bits"

	"octet/fp8"
)

// Hadamard rotates groups of Size consecutive elements of a row, or of a column if Columns.
// With x a group and s the signs,
//
//	y = H·(s ⊙ x) / √Size      H[i,j] = −1 where i AND j has an odd number of ones, else 1
//
// H is orthogonal and symmetric, so that a GEMM whose operands are both rotated along K, in
// the same groups and with the same signs, keeps its result. An outlier of x spreads over
// its group, which lowers the amax.
//
// The order of the additions is part of the definition: log2(Size) passes with the strides
// 1, 2, 4, …, each of which replaces elements a and b, one stride apart, by a+b and a−b.
// The multiplication by 1/√Size, rounded to FP32, follows. Every operation is FP32.
//
// Element i of a group changes its sign if bit i mod 16 of Signs is set. With Control, the
// signs come from its seed instead (SignOf), and so stay the same in all steps of a run.
type Hadamard struct {
	X       *Tensor `op:"in"`          // F32 or BF16
	Control *Tensor `op:"in,optional"` // nil: Signs
	Out     []Cast  `op:"cast"`

	Size    int // a power of two from 4 to MaxHadamard that divides X's columns, or rows
	Columns bool
	Signs   uint16
}

// MaxHadamard is the largest group of Hadamard.
const MaxHadamard = 128

// signKey is the name of the random stream of signs.
var signKey = fp8.NameKey("hadamard.signs")

// SignOf returns the sign that element i of a group is multiplied by: 1 or -1. seed is
// Control's, and has no effect without Control.
func (o *Hadamard) SignOf(i int, seed uint64) float32 {
	negative := o.Signs>>(i%16)&1 != 0
	if o.Control != nil {
		negative = fp8.Random(fp8.StreamKey(seed, 0, signKey), uint64(i))>>31 != 0
	}
	if negative {
		return -1
	}
	return 1
}

func (o *Hadamard) check() error {
	var c checker
	c.plain(field{"X", o.X})
	c.that(o.Size >= 4 && o.Size <= MaxHadamard && bits.OnesCount(uint(o.Size)) == 1, "Size is %d, expected a power of two from 4 to %d", o.Size, MaxHadamard)
	extent, n := "columns", o.X.Cols()
	if o.Columns {
		extent, n = "rows", o.X.Rows()
	}
	c.that(o.Size <= 0 || n%o.Size == 0, "X is %s, whose %d %s are not a multiple of Size, %d", o.X, n, extent, o.Size)
	if o.Control != nil {
		c.control(o.Control)
		c.that(o.Signs == 0, "Signs is %#x, but with Control the signs come from the seed: set one of them", o.Signs)
	}
	c.casts("Out", o.Out, o.X.Rows(), o.X.Cols())
	return c.err
}
