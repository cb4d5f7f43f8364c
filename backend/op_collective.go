package backend

import (
	"fmt"

	"octet/fp8"
)

// Reduction selects how a collective combines the ranks' values.
type Reduction uint8

const (
	ReduceSum Reduction = iota
	ReduceMax           // magnitudes: NaN counts as larger than infinity
)

func (r Reduction) String() string { return [...]string{"sum", "max"}[r] }

// Exchanged returns the name of a collective, as in NCCL's documentation, the tensor of all its
// ranks that it reduces, scatters, gathers or exchanges, and these ranks; nil for any other op.
func Exchanged(op Op) (name string, whole *Tensor, g Group) {
	switch o := op.(type) {
	case *AllReduce:
		return "all-reduce", o.X, o.Group
	case *ReduceScatter:
		return "reduce-scatter", o.X, o.Group
	case *AllGather:
		return "all-gather", o.Out, o.Group
	case *AllToAll:
		return "all-to-all", o.X, o.Group
	}
	return "", nil, Group{}
}

// GathersShards reports whether op gathers the rows of a tensor of which the ranks store parts.
func GathersShards(op Op) bool {
	o, ok := op.(*AllGather)
	return ok && o.X.Class != Temp
}

// Collective describes a collective over F32 tensors, for measurements of networks.
type Collective struct {
	Name   string // that of Exchanged
	Passes int    // of (n-1)/n of the whole tensor over a ring of n ranks
	// New returns the op; whole is the tensor of all ranks, part [n] that of one.
	New func(whole, part *Tensor) Op
}

// Collectives returns those that a data-parallel step is made of.
func Collectives() []Collective {
	return []Collective{
		{"all-reduce", 2, func(whole, _ *Tensor) Op { return &AllReduce{X: whole} }},
		{"reduce-scatter", 1, func(whole, part *Tensor) Op { return &ReduceScatter{X: whole, Out: part} }},
		{"all-gather", 1, func(whole, part *Tensor) Op { return &AllGather{X: part, Out: whole} }},
	}
}

// Group says which ranks a collective joins: Size ranks whose numbers differ by Stride. Every rank is in
// one group. Of eight ranks, for example, {Size: 4, Stride: 1} makes the groups 0 1 2 3 and 4 5 6 7, and
// {Size: 2, Stride: 4} the groups 0 4, 1 5, 2 6 and 3 7. The zero value joins all ranks.
type Group struct{ Size, Stride int }

// All reports whether the group joins all ranks.
func (g Group) All() bool { return g == Group{} }

// Ranks returns the number of ranks of a group, of so many in all, and an error if these do not
// divide into groups.
func (g Group) Ranks(all int) (int, error) {
	switch {
	case g.All():
		return all, nil
	case g.Size < 1 || g.Stride < 1 || all%(g.Size*g.Stride) != 0:
		return 0, fmt.Errorf("%d ranks do not divide into groups of %s", all, g)
	}
	return g.Size, nil
}

// Index returns the place of a rank in its group.
func (g Group) Index(rank int) int {
	if g.All() {
		return rank
	}
	return rank / g.Stride % g.Size
}

// Member returns the rank at a place in the group of a rank.
func (g Group) Member(rank, index int) int {
	if g.All() {
		return index
	}
	return rank + (index-g.Index(rank))*g.Stride
}

func (g Group) String() string {
	if g.All() {
		return "all ranks"
	}
	return fmt.Sprintf("%d ranks %d apart", g.Size, g.Stride)
}

func (k *checker) group(g Group) {
	k.that(g.All() || g.Size > 0 && g.Stride > 0, "Group is %d ranks %d apart, expected positive numbers, or none for all ranks", g.Size, g.Stride)
}

// split requires step.control, whose Rank says which part an op has, for an op that has one of several
// parts.
func (k *checker) split(g Group, control *Tensor) {
	if g.All() {
		return
	}
	k.group(g)
	k.that(control != nil, "Split needs step.control")
	if control != nil {
		k.control(control)
	}
}

// AllReduce combines X over the ranks of a group in place, in ascending order of rank.
type AllReduce struct {
	X *Tensor `op:"inout"` // F32

	Reduce Reduction
	Group  Group
}

func (o *AllReduce) check() error {
	var c checker
	c.vector("X", o.X, o.X.Elems())
	c.that(o.Reduce <= ReduceMax, "unknown reduction %d", uint8(o.Reduce))
	c.group(o.Group)
	return c.err
}

// ReduceScatter sums X over the ranks of a group; the r-th of them receives the r-th equal part.
type ReduceScatter struct {
	X   *Tensor `op:"in"`  // F32 [ranks·n]
	Out *Tensor `op:"out"` // F32 [n]

	Group Group
}

func (o *ReduceScatter) check() error {
	var c checker
	c.vector("X", o.X, o.X.Elems())
	c.vector("Out", o.Out, o.Out.Elems())
	c.that(o.X.Elems()%o.Out.Elems() == 0, "X is %s, Out is %s: the parts are not equal", o.X, o.Out)
	c.group(o.Group)
	return c.err
}

// AllGather concatenates the X of the ranks of a group in order of rank, bytes unchanged.
type AllGather struct {
	X   *Tensor `op:"in"`  // [n], any format
	Out *Tensor `op:"out"` // [ranks·n]

	Group Group
}

func (o *AllGather) check() error {
	var c checker
	c.that(o.X.DType == o.Out.DType && o.Out.Elems()%o.X.Elems() == 0, "X is %s, Out is %s", o.X, o.Out)
	c.that(o.X.Contiguous() && o.Out.Contiguous(), "X and Out must be contiguous")
	c.group(o.Group)
	return c.err
}

// AllToAll sends the r-th equal part of X to the r-th rank of a group: part r of Out is from that
// rank, bytes unchanged.
type AllToAll struct {
	X   *Tensor `op:"in"`  // [ranks·n], any format
	Out *Tensor `op:"out"` // [ranks·n]

	Group Group
}

func (o *AllToAll) check() error {
	var c checker
	c.that(o.X.DType == o.Out.DType && o.Out.Elems() == o.X.Elems(), "X is %s, Out is %s", o.X, o.Out)
	c.that(o.X.Contiguous() && o.Out.Contiguous(), "X and Out must be contiguous")
	c.group(o.Group)
	return c.err
}

// PartBytes returns the bytes of a part of X for so many ranks, and an error if X has no equal
// parts of whole bytes.
func (o *AllToAll) PartBytes(ranks int) (int64, error) {
	if o.X.Elems()%ranks != 0 || o.X.Bytes()%int64(ranks) != 0 {
		return 0, fmt.Errorf("operand X is %s, which has no equal parts for %d ranks", o.X, ranks)
	}
	return o.X.Bytes() / int64(ranks), nil
}

// SumParts adds the equal parts of X's rows, in FP32 and in ascending order. After an
// AllToAll it completes a reduce-scatter of any format, whose bits do not depend on the order
// in which a network adds. X may have a scale for each part (blocks of Out's rows), or scales
// for each row or for blocks of a row.
//
// Rounded sums stay in X's format of eight bits, as in FP8-LM (arXiv 2310.18313): the sum of
// codes is rounded to nearest even and saturates, after each addition with Each, else after
// the last. The parts share X's scale, which then dequantizes the sum.
type SumParts struct {
	X     *Tensor `op:"in"`                   // [parts·rows, cols], a float format
	Out   *Tensor `op:"out,inout=Accumulate"` // F32 [rows, cols]
	AtMax *Tensor `op:"inout,optional"`       // F32 [1]: plus the number of rounded sums at ± the format's largest value; exact below 2^24

	Rounded    bool
	Each       bool
	Accumulate bool // adds the sum to Out
}

func (o *SumParts) check() error {
	var c checker
	c.float("X", o.X)
	c.that(!o.X.DType.IsForScales(), "X is %s, a format for scales only", o.X)
	c.that(o.Out.DType == fp8.F32, "Out is %s, expected fp32", o.Out)
	c.unscaled("Out", o.Out)
	c.that(o.X.Cols() == o.Out.Cols() && o.X.Rows()%o.Out.Rows() == 0, "X is %s, Out is %s: the parts are not equal", o.X, o.Out)
	block := o.X.Block
	c.that(block.Rows <= 1 || block == ScaleBlock{Rows: o.Out.Rows()}, "X is %s with blocks of %s, expected a scale for each part of %d rows, or blocks within a row", o.X, block, o.Out.Rows())
	c.that(block.Rows == 1 || block.Cols == 0, "X is %s with blocks of %s, expected blocks within a row", o.X, block)
	c.that(o.X.Outer == nil, "X is %s with an outer scale, which differs between ranks", o.X)
	if o.X.Scale != nil {
		c.dtype("X.Scale", o.X.Scale, fp8.F32)
	}
	if o.Rounded {
		c.that(o.X.DType.Size() == 1 && o.X.DType.HasNaN() && block == PerTensor, "X is %s with blocks of %s, but rounded sums need eight bits with NaN, and one scale", o.X, block)
	} else {
		c.that(!o.Each && o.AtMax == nil, "Each and AtMax belong to rounded sums")
	}
	if o.AtMax != nil {
		c.scalar("AtMax", o.AtMax)
	}
	return c.err
}
