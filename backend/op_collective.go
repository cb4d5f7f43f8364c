package backend

// Reduction selects how a collective combines the ranks' values.
type Reduction uint8

const (
	ReduceSum Reduction = iota
	ReduceMax           // magnitudes: NaN counts as larger than infinity
)

func (r Reduction) String() string { return [...]string{"sum", "max"}[r] }

// AllReduce combines X over all ranks in place, in ascending order of rank.
type AllReduce struct {
	X *Tensor `op:"inout"` // F32

	Reduce Reduction
}

func (o *AllReduce) check() error {
	var c checker
	c.vector("X", o.X, o.X.Elems())
	c.that(o.Reduce <= ReduceMax, "unknown reduction %d", uint8(o.Reduce))
	return c.err
}

// ReduceScatter sums X over the ranks; rank r receives the r-th equal part.
type ReduceScatter struct {
	X   *Tensor `op:"in"`  // F32 [ranks·n]
	Out *Tensor `op:"out"` // F32 [n]
}

func (o *ReduceScatter) check() error {
	var c checker
	c.vector("X", o.X, o.X.Elems())
	c.vector("Out", o.Out, o.Out.Elems())
	c.that(o.X.Elems()%o.Out.Elems() == 0, "X is %s, Out is %s: the parts are not equal", o.X, o.Out)
	return c.err
}

// AllGather concatenates every rank's X in order of rank, bytes unchanged.
type AllGather struct {
	X   *Tensor `op:"in"`  // [n], any format
	Out *Tensor `op:"out"` // [ranks·n]
}

func (o *AllGather) check() error {
	var c checker
	c.that(o.X.DType == o.Out.DType && o.Out.Elems()%o.X.Elems() == 0, "X is %s, Out is %s", o.X, o.Out)
	c.that(o.X.Contiguous() && o.Out.Contiguous(), "X and Out must be contiguous")
	return c.err
}
