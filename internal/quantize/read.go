package quantize

import (
	"fmt"

	"octet/internal/arrays"
	"octet/internal/gemm"
)

// Read reads codes with their scales from a safetensors file, as [Result.Tensors] gives them.
// The shapes of codes and scales determine the blocks.
func Read(file string) (o gemm.Operand, err error) {
	c, err := arrays.ReadCodes(file)
	if err != nil {
		return o, err
	}
	if len(c.Shape) != 2 || len(c.Scale.Shape) != 2 {
		return o, fmt.Errorf("%s: %s has shape %v and its scales %v, expected two matrices", file, c.Name, c.Shape, c.Scale.Shape)
	}
	o = gemm.Operand{
		DType: c.DType, Rows: c.Shape[0], Cols: c.Shape[1], Codes: c.Data,
		Scale: c.Scale.Data, ScaleDType: c.Scale.DType, ScaleRows: c.Scale.Shape[0], ScaleCols: c.Scale.Shape[1], Outer: c.Outer,
	}
	if o.Block.Rows, err = blockOf(o.Rows, o.ScaleRows); err == nil {
		o.Block.Cols, err = blockOf(o.Cols, o.ScaleCols)
	}
	if err != nil {
		return o, fmt.Errorf("%s: %s: %w", file, c.Scale.Name, err)
	}
	return o, nil
}

// blockOf returns the number of n elements that share one of scales scales; 0: all.
func blockOf(n, scales int) (int, error) {
	switch {
	case scales == 1:
		return 0, nil
	case scales < 1 || n%scales != 0:
		return 0, fmt.Errorf("%d scales for %d elements: the number of elements must be a multiple", scales, n)
	}
	return n / scales, nil
}
