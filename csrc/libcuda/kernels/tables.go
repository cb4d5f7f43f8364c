package kernels

import "fmt"

// Ops over lists of tensors run as one launch for the whole list. A table in device
// memory, written once when the program is loaded, describes the tensors. Each tensor is
// split into chunks, one per thread block.

// Square is a tensor of SumSquares, rows LD elements apart.
type Square struct {
	Address, ScaleInv uint64 // ScaleInv is 0 for F32 and BF16
	Format            Format
	LD, Rows, Cols    int
}

// SquareTable returns the table of op sum_squares, and its launches. The words of its
// arguments are the table's address, the number of tensors, the number of chunks, Out as
// Tensor, InverseNorm, scratch.
func SquareTable(list []Square) (table []uint64, chunks int, l Launches) {
	for _, t := range list {
		if t.LD == t.Cols {
			t.Rows, t.Cols, t.LD = 1, t.Rows*t.Cols, t.Rows*t.Cols
		}
		table = append(table, t.Address, t.ScaleInv, uint64(t.Format), uint64(t.LD), uint64(t.Rows), uint64(t.Cols), uint64(chunks))
		chunks += t.Rows * ceilDiv(t.Cols, squareElems)
	}
	return table, chunks, Launches{[]Kernel{
		flat("sum_squares", "optimizer.cu", chunks), one("sum_squares_end", "optimizer.cu")(0, 0).Kernels[0],
	}, 8 * int64(chunks)}
}

// AdamState is a master weight or a moment of AdamW, contiguous.
type AdamState struct {
	Address, ScaleInv uint64 // ScaleInv is 0 for F32 and BF16
	Format            Format
	Block             int    // elements of a row per scale; 0: one scale for all
	Expand            bool   // ScaleInv has s, k and c of each block
	NameKey           uint64 // fp8.NameKey
}

// Adam is a parameter of AdamW.
type Adam struct {
	Grad, GradScaleInv uint64 // GradScaleInv is 0 for F32 and BF16
	GradFormat         Format
	LD                 int // of Grad
	Rows, Cols         int
	State              [3]AdamState // master, first and second moment
}

// AdamTable returns the table of op adamw, and its launches: the pass that computes
// amaxes, the pass that stores by them, or both. The words of its arguments are the
// table's address, the number of tensors, the number of chunks, then Control, Step, Coef,
// Skip and Amaxes as Tensor, the plain fields, scratch.
func AdamTable(list []Adam, find, store bool) (table []uint64, chunks int, l Launches, err error) {
	for i, t := range list {
		span, blocked := adamElems, t.State[1].Block > 0 || t.State[2].Block > 0
		switch {
		case blocked:
			if span, err = adamSpan(t.State[1].Block, t.State[2].Block); err != nil {
				return nil, 0, Launches{}, fmt.Errorf("tensor %d of the list: %w", i, err)
			}
		case t.LD == t.Cols && t.Rows*t.Cols < maxCols:
			t.Rows, t.Cols, t.LD = 1, t.Rows*t.Cols, t.Rows*t.Cols
		}
		table = append(table, t.Grad, t.GradScaleInv, uint64(t.GradFormat), uint64(t.LD), uint64(t.Rows), uint64(t.Cols), uint64(chunks), uint64(span))
		for _, s := range t.State {
			expand := uint64(0)
			if s.Expand {
				expand = 1
			}
			table = append(table, s.Address, s.ScaleInv, uint64(s.Format), uint64(s.Block), expand, s.NameKey)
		}
		chunks += t.Rows * ceilDiv(t.Cols, span)
	}
	states := ceilDiv(3*len(list), flatThreads)
	passes := []Kernel{one("adamw_begin", "adamw.cu")(0, 0).Kernels[0]}
	if find {
		passes = append(passes, flat("adamw_amax", "adamw.cu", chunks))
	}
	if store {
		passes = append(passes,
			flat("adamw_scale", "adamw.cu", states),
			flat("adamw", "adamw.cu", chunks),
			flat("adamw_end", "adamw.cu", states))
	}
	return table, chunks, Launches{passes, int64(len(list)) * ruleBytes}, nil
}

// maxCols limits the columns of a flattened tensor: the kernels count them in 32 bits, and
// add up to two chunks.
const maxCols = 1 << 30

// ruleBytes is the size of Rule in adamw.cuh.
const ruleBytes = 48

// UpdateStatsLaunches returns the launches of op update_stats over a table of AdamTable, with
// Step, Coef, Skip, MeanSquares, Largest and ZeroV as Tensor, and the plain fields.
func UpdateStatsLaunches(tensors, chunks int) Launches {
	return Launches{[]Kernel{
		one("update_stats_begin", "update_stats.cu")(0, 0).Kernels[0],
		flat("update_stats", "update_stats.cu", chunks),
		flat("update_stats_end", "update_stats.cu", ceilDiv(tensors, flatThreads)),
	}, ruleBytes + 16*int64(chunks)}
}

// adamSpan returns the number of elements of a row per thread block if moments have block
// scales: about adamElems, without splitting a scale block.
func adamSpan(blocks ...int) (int, error) {
	span, smallest := 1, adamElems
	for _, b := range blocks {
		if b > 0 {
			smallest = min(smallest, b)
			for step := span; span%b != 0; {
				span += step
			}
		}
	}
	if span/smallest > adamBlocks {
		return 0, fmt.Errorf("blocks of %d and %d elements have no common multiple of at most %d of the smaller: choose ones that divide each other", blocks[0], blocks[1], adamBlocks)
	}
	return span * max(1, min(adamElems/span, adamBlocks*smallest/span)), nil
}
