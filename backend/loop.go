package backend

import "fmt"

// Looped is a CustomOp that computes its results in a loop over elements or rows. Backend
// emu runs Loop.F on all threads; backend cuda runs Loop.CUDA, and refuses loops over rows.
// Both cast the results as they cast those of their own ops.
type Looped interface {
	CustomOp
	// Loop returns the loop over the op's operands. It must list every operand that the
	// op reads as data, and every one that it writes.
	Loop() Loop
}

// Loop computes results in FP32 from inputs in FP32.
type Loop struct {
	// In lists the inputs, each with as many rows as the results, or with one row that
	// all rows read. Their formats are floats with one scale at most, which the backend
	// applies.
	In []*Tensor
	// Out lists the casts of each result. All results have the same number of rows.
	Out [][]Cast
	// F computes consecutive elements of one row, the same ones of each operand: out[i]
	// is a buffer for result i, whose old values are undefined, and in[j] has the values
	// of In[j]. F must write all of out, must not write to in and must not keep either.
	// Threads call it concurrently for different elements, in any order.
	//
	// A processor may fuse x*y + z into one operation with one rounding (arm64 does), so
	// write float32(x*y) + z.
	F func(out, in [][]float32)
	// WholeRows passes whole rows to F, for sums over a row, such as those of softmax and
	// norms. Widths may then differ between operands. Otherwise all operands have the same
	// width and F receives pieces of a row.
	WholeRows bool
	// CUDA is CUDA C++ source for backend cuda, which refuses the op without it. It
	// defines a function that computes F for one element,
	//
	//	__device__ void f(float *out, const float *in)
	//
	// with out[i] the element of result i and in[j] that of In[j], and anything that f
	// needs. It cannot include files, and cannot have WholeRows. Messages of the compiler
	// count its lines from 1.
	//
	// f gets no settings of the op: format them into the text, for example with
	// fmt.Sprintf.
	//
	// The compiler fuses x*y + z, so write __fmul_rn(x, y) + z for the bits of F. The hash
	// of a program includes the text.
	CUDA string
}

// ResultShape returns the shape of the result that casts store.
func ResultShape(casts []Cast) (rows, cols int) {
	rows, cols = casts[0].Out.Rows(), casts[0].Out.Cols()
	if casts[0].Transpose {
		return cols, rows
	}
	return rows, cols
}

// checkLoop checks that l reads and writes the operands of its op, and no other tensor.
func checkLoop(l Loop, operands []Operand) error {
	var k checker
	reads, writes := map[*Tensor]bool{}, map[*Tensor]bool{}
	for _, o := range operands {
		reads[o.Tensor] = reads[o.Tensor] || o.Access != Out
		writes[o.Tensor] = writes[o.Tensor] || o.Access != In
	}
	k.that(l.F != nil, "Loop.F is nil")
	k.that(l.CUDA == "" || !l.WholeRows, "Loop has CUDA and WholeRows, but CUDA computes single elements: clear one of them")
	k.that(l.CUDA == "" || len(l.In) > 0, "Loop has CUDA and no input: use backend.Fill")
	k.that(len(l.Out) > 0, "Loop.Out is empty: the op has no result")
	for i, casts := range l.Out {
		k.that(len(casts) > 0, "Loop.Out[%d] has no cast: the result would be lost", i)
		for j, c := range casts {
			k.that(c.Out != nil && writes[c.Out], "Loop.Out[%d][%d] is not stored in an operand that the op writes", i, j)
		}
	}
	for i, t := range l.In {
		k.that(t != nil && reads[t], "Loop.In[%d] is not an operand that the op reads", i)
	}
	if k.err != nil {
		return k.err
	}
	rows, cols := ResultShape(l.Out[0])
	for i, casts := range l.Out {
		width := cols
		if l.WholeRows {
			_, width = ResultShape(casts)
		}
		k.casts(fmt.Sprintf("Loop.Out[%d]", i), casts, rows, width)
		for _, c := range casts {
			delete(writes, c.Out)
			delete(writes, c.Amax)
			for _, t := range l.In {
				k.that(!t.Overlaps(c.Out), "Loop reads %s and writes %s, which share elements", t, c.Out)
			}
		}
	}
	for i, t := range l.In {
		k.float(fmt.Sprintf("Loop.In[%d]", i), t)
		k.that(t.Rows() == rows || t.Rows() == 1, "Loop.In[%d] is %s, expected %d rows or one", i, t, rows)
		k.that(l.WholeRows || t.Cols() == cols, "Loop.In[%d] is %s, expected %d columns", i, t, cols)
	}
	for _, o := range operands {
		k.that(!writes[o.Tensor], "Loop does not write %s, %s", o.Field, o.Tensor)
	}
	return k.err
}
