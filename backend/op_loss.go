package backend

// CrossEntropy is Loss[t] = logΣexp(Logits[t]) − Logits[t, target] over the
// first Valid columns (the rest is vocabulary padding), and
// DLogits = (softmax − onehot) · Control.InvTokens · LossScale · Weights[t]. A row whose target
// is negative is ignored: loss 0, gradient 0.
//
// Correct[t] is 1 where the target is the first of the largest valid logits, as an argmax
// finds it, else 0; it is 0 where the row is ignored or its loss is NaN.
//
// With Stats, the ranks of the group Split hold equal parts of the vocabulary in their order, and Logits
// are those of one part: its first column is Split.Index(Control.Rank)·vocab of the whole. Targets and
// Valid count in the whole vocabulary. Stats are those of SoftmaxStats on these ranks.
type CrossEntropy struct {
	Logits  *Tensor `op:"in"` // [tokens, vocab]
	Targets *Tensor `op:"in"` // I32 [tokens]
	Control *Tensor `op:"in,optional"`
	// LossScale, F32 [1], multiplies the gradient alone; nil is 1. See StepGate.
	LossScale *Tensor `op:"in,optional"`
	// Weights, F32 [tokens], multiply the gradient of each token and not its Loss; nil is 1.
	Weights *Tensor `op:"in,optional"`
	Stats   *Tensor `op:"in,optional"` // F32 [parts·tokens, 4], part after part
	Loss    *Tensor `op:"out"`         // F32 [tokens], nats
	DLogits *Tensor `op:"out,optional"`
	Correct *Tensor `op:"out,optional"` // I32 [tokens]

	Valid int
	Split Group
}

func (o *CrossEntropy) check() error {
	var c checker
	rows, cols := o.Logits.Rows(), o.Logits.Cols()
	c.plain(field{"Logits", o.Logits})
	c.ints("Targets", o.Targets, rows)
	c.vector("Loss", o.Loss, rows)
	c.that(o.Valid > 0 && o.Valid <= cols*max(1, o.Split.Size), "Valid is %d, Logits is %s", o.Valid, o.Logits)
	c.that((o.Stats == nil) == o.Split.All(), "Stats and Split go together")
	if o.Stats != nil {
		c.vector("Stats", o.Stats, o.Split.Size*rows*SoftmaxWords)
		c.split(o.Split, o.Control)
	}
	if o.DLogits != nil {
		c.matrix("DLogits", o.DLogits, rows, cols)
		c.plain(field{"DLogits", o.DLogits})
		c.that(o.Control != nil, "DLogits needs step.control")
	}
	if o.Correct != nil {
		c.ints("Correct", o.Correct, rows)
	}
	if o.Control != nil {
		c.control(o.Control)
	}
	if o.LossScale != nil {
		c.scalar("LossScale", o.LossScale)
		c.that(o.DLogits != nil, "LossScale multiplies DLogits, which is nil")
	}
	if o.Weights != nil {
		c.vector("Weights", o.Weights, rows)
		c.that(o.DLogits != nil, "Weights multiply DLogits, which is nil")
	}
	return c.err
}

// SoftmaxStats is what CrossEntropy needs to know of other parts of the vocabulary. For each row of
// Logits, of its valid columns, Out has the words SoftmaxTop and those after it. Split, Valid and Targets
// are as in CrossEntropy.
type SoftmaxStats struct {
	Logits  *Tensor `op:"in"`  // [tokens, vocab]
	Targets *Tensor `op:"in"`  // I32 [tokens]
	Control *Tensor `op:"in"`  // for its Rank
	Out     *Tensor `op:"out"` // F32 [tokens, 4]

	Valid int
	Split Group
}

// The words of a row of SoftmaxStats.
const (
	SoftmaxTop    = iota // the largest logit, at least the lowest FP32: that without valid columns
	SoftmaxSum           // Σ e^(logit − largest), 0 without valid columns
	SoftmaxTarget        // the logit of the target; the lowest FP32 if this part does not have it
	SoftmaxFirst         // the first column of the largest logit, counted in the whole vocabulary of less than 2^24; without valid columns the part's first column
	SoftmaxWords         // number of words
)

func (o *SoftmaxStats) check() error {
	var c checker
	rows, cols := o.Logits.Rows(), o.Logits.Cols()
	c.plain(field{"Logits", o.Logits})
	c.ints("Targets", o.Targets, rows)
	c.vector("Out", o.Out, rows*SoftmaxWords)
	c.that(!o.Split.All(), "Split is empty, expected the ranks that hold the parts of the vocabulary")
	c.that(o.Valid > 0 && o.Valid <= cols*o.Split.Size && cols*o.Split.Size < 1<<24, "Valid is %d, Logits is %s, one part of %d", o.Valid, o.Logits, o.Split.Size)
	c.split(o.Split, o.Control)
	return c.err
}

// Sum adds up X in ascending order: Out = Σ X, or Out += Σ X if Accumulate.
type Sum struct {
	X   *Tensor `op:"in"`                   // F32 [n]
	Out *Tensor `op:"out,inout=Accumulate"` // F32 [1]

	Accumulate bool
}

func (o *Sum) check() error {
	var c checker
	c.vector("X", o.X, o.X.Elems())
	c.scalar("Out", o.Out)
	return c.err
}
