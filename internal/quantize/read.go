package quantize

import (
	"fmt"

	"octet/backend"
	"octet/internal/arrays"
	"octet/internal/gemm"
)

// Read reads codes with their scales from a safetensors file, as [Result.Tensors] gives them.
// The file's metadata gives the blocks, since scales of one shape suit blocks of several
// sizes.
func Read(file string) (o gemm.Operand, err error) {
	c, err := arrays.ReadCodes(file)
	if err != nil {
		return o, err
	}
	if len(c.Shape) != 2 {
		return o, fmt.Errorf("%s: %s has shape %v, expected a matrix", file, c.Name, c.Shape)
	}
	o = gemm.Operand{
		DType: c.DType, Rows: c.Shape[0], Cols: c.Shape[1], Codes: c.Data,
		Scale: c.Scale.Data, ScaleDType: c.Scale.DType, Outer: c.Outer,
	}
	if o.Block, err = backend.ParseScaleBlock(c.Block); err != nil {
		return o, fmt.Errorf("%s: metadata block.%s: %w (octet quantize --out and octet dump --out write it)", file, c.Name, err)
	}
	o.ScaleRows, o.ScaleCols = o.Block.ScaleShape(o.Rows, o.Cols)
	if c.Scale.Elems() != o.ScaleRows*o.ScaleCols {
		return o, fmt.Errorf("%s: %s has shape %v, expected [%d %d]: %s has shape %v and blocks of %s",
			file, c.Scale.Name, c.Scale.Shape, o.ScaleRows, o.ScaleCols, c.Name, c.Shape, o.Block)
	}
	return o, nil
}
