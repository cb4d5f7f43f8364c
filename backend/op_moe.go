package backend

import "octet/fp8"

// This file has the ops of a mixture of experts. A token has K assignments, one for each expert
// that it goes to; assignment t·K+j is the j-th of token t. Expert e holds the rows of up to
// Capacity assignments, its slots; slot e·Capacity+i is its i-th row.

// Route sends each token to the K experts with the largest logits; of equal logits the one with
// the lower number goes first. With p = softmax(Logits[t]) over all experts, an assignment to
// expert e has the weight
//
//	Weight = p[e] / Σ p[i] over the token's experts   for K > 1, as in Mixtral and GShard
//	Weight = p[e]                                     for K = 1, as in Switch Transformers
//
// Tokens in ascending order take the slots of their experts. An expert without a free slot drops
// the assignment, whose weight stays in the sums above. A token never depends on later ones.
type Route struct {
	Logits *Tensor `op:"in"`  // [T, experts]
	Weight *Tensor `op:"out"` // F32 [T·K]
	Slot   *Tensor `op:"out"` // I32 [T·K]: the slot, or −1−e for one that expert e dropped
	Source *Tensor `op:"out"` // I32 [experts·Capacity]: the assignment of a slot, or −1
	Counts *Tensor `op:"out"` // I32 [experts]: assignments, dropped ones included

	K, Capacity int
}

func (o *Route) check() error {
	var c checker
	_, experts := c.routing(o)
	c.ints("Source", o.Source, experts*o.Capacity)
	return c.err
}

// routing checks the operands of Route that RouteGrad reads, too.
func (c *checker) routing(o *Route) (tokens, experts int) {
	tokens, experts = o.Logits.Rows(), o.Logits.Cols()
	c.plain(field{"Logits", o.Logits})
	c.that(o.K > 0 && o.K <= experts, "K is %d, Logits is %s: expected 1 to %d experts per token", o.K, o.Logits, experts)
	c.that(o.Capacity > 0, "Capacity is %d, expected 1 or more", o.Capacity)
	c.vector("Weight", o.Weight, tokens*o.K)
	c.ints("Slot", o.Slot, tokens*o.K)
	c.ints("Counts", o.Counts, experts)
	return tokens, experts
}

// RouteGrad is the gradient of Route's Logits, given that of its weights, plus that of Aux times
// the auxiliary loss of Switch Transformers (arXiv 2101.03961, eq. 4 to 6),
//
//	A = experts · Σ_e f[e]·P[e]
//
// with f[e] the share of the assignments that go to e, dropped ones included, which counts as a
// constant, and P[e] the mean of p[e] over the tokens. A is 1 for balanced experts. For K > 1, for
// K = 1 with the one expert e, and in both cases:
//
//	DLogits[e] = Weight[e]·(DWeight[e] − Σ_i Weight[i]·DWeight[i])    for the token's experts
//	DLogits[i] = Weight[e]·DWeight[e]·((1 if i = e) − p[i])           for every i
//	DLogits[i] += Aux·InvTokens·LossScale · experts·p[i]·(f[i] − Σ_e f[e]·p[e])
//
// So a batch weighs in the sum of the auxiliary losses as its tokens do in CrossEntropy's.
//
// Stats, F32 [RouteStats+experts], adds up what one batch after the other has: its tokens, the
// dropped assignments, A times the tokens, and the assignments of each expert.
type RouteGrad struct {
	Logits    *Tensor `op:"in"`
	Weight    *Tensor `op:"in"`
	Slot      *Tensor `op:"in"`
	Counts    *Tensor `op:"in"`
	DWeight   *Tensor `op:"in"` // F32 [T·K]
	Control   *Tensor `op:"in"`
	LossScale *Tensor `op:"in,optional"` // F32 [1]; nil is 1
	DLogits   []Cast  `op:"cast"`
	Stats     *Tensor `op:"inout,optional"`

	K, Capacity int // those of Route
	Aux         float32
}

func (o *RouteGrad) check() error {
	var c checker
	tokens, experts := c.routing(&Route{Logits: o.Logits, Weight: o.Weight, Slot: o.Slot, Counts: o.Counts, K: o.K, Capacity: o.Capacity})
	c.vector("DWeight", o.DWeight, tokens*o.K)
	c.control(o.Control)
	if o.LossScale != nil {
		c.scalar("LossScale", o.LossScale)
	}
	if o.Stats != nil {
		c.vector("Stats", o.Stats, RouteStats+experts)
	}
	c.that(o.Aux >= 0, "Aux is %v, expected 0 or more", o.Aux)
	c.casts("DLogits", o.DLogits, tokens, experts)
	return c.err
}

// The first elements of RouteGrad.Stats; the assignments of each expert follow.
const (
	RouteTokens  = iota
	RouteDropped // assignments
	RouteAux     // times tokens
	RouteStats   // the number of these elements
)

// ExpertOf returns the expert of an assignment, given its element of Route.Slot.
func ExpertOf(slot, capacity int) int {
	if slot < 0 {
		return -1 - slot
	}
	return slot / capacity
}

// Gather copies the rows of tokens to slots: with a = Source[s], Out[s] = X[a/K], times Weight[a]
// unless Weight is nil. The row of an empty slot, a < 0, is 0.
type Gather struct {
	X      *Tensor `op:"in"`          // [T, dim]
	Source *Tensor `op:"in"`          // I32 [slots]: Route's, or those of some experts
	Weight *Tensor `op:"in,optional"` // F32 [T·K]
	Out    []Cast  `op:"cast"`        // [slots, dim]

	K int
}

func (o *Gather) check() error {
	var c checker
	c.plain(field{"X", o.X})
	c.ints("Source", o.Source, o.Source.Elems())
	c.that(o.K > 0, "K is %d, expected 1 or more", o.K)
	if o.Weight != nil {
		c.vector("Weight", o.Weight, o.X.Rows()*o.K)
	}
	c.casts("Out", o.Out, o.Source.Elems(), o.X.Cols())
	return c.err
}

// Combine adds up the rows of each token's slots, those of dropped assignments being 0:
//
//	Out[t] = Σ_j Weight[t·K+j]·Y[Slot[t·K+j]] + Residual[t]   in FP32, j ascending
//
// Weight is 1 if nil, Residual 0. It is the inverse and the transpose of Gather.
type Combine struct {
	Y        []*Tensor `op:"in"`          // of each expert, [Capacity, dim]
	Slot     *Tensor   `op:"in"`          // I32 [T·K]
	Weight   *Tensor   `op:"in,optional"` // F32 [T·K]
	Residual *Tensor   `op:"in,optional"` // [T, dim]
	Out      []Cast    `op:"cast"`

	K int
}

func (o *Combine) check() error {
	var c checker
	tokens, dim := c.slots(o.Y, o.Slot, o.K)
	if o.Weight != nil {
		c.vector("Weight", o.Weight, tokens*o.K)
	}
	if o.Residual != nil {
		c.plain(field{"Residual", o.Residual})
		c.matrix("Residual", o.Residual, tokens, dim)
	}
	c.casts("Out", o.Out, tokens, dim)
	return c.err
}

// slots checks the results of the experts and the slots of the assignments.
func (c *checker) slots(y []*Tensor, slot *Tensor, k int) (tokens, dim int) {
	c.that(len(y) > 0, "Y is empty: there is no expert")
	c.that(k > 0 && slot.Elems()%max(k, 1) == 0, "K is %d, Slot is %s: expected K assignments of each token", k, slot)
	if c.err != nil {
		return 1, 1
	}
	for _, t := range y {
		c.plain(field{"Y", t})
		c.matrix("Y", t, y[0].Rows(), y[0].Cols())
		c.that(t.DType == y[0].DType, "Y has %s and %s: the formats must be equal", y[0], t)
	}
	c.that(slot.DType == fp8.I32, "Slot is %s, expected i32", slot)
	return slot.Elems() / k, y[0].Cols()
}

// CombineGrad is the gradient of Combine's Weight: DWeight[t·K+j] = DOut[t]·Y[Slot[t·K+j]], 0 for
// a dropped assignment. That of its Y is a Gather of DOut with Weight.
type CombineGrad struct {
	DOut    *Tensor   `op:"in"` // [T, dim]
	Y       []*Tensor `op:"in"`
	Slot    *Tensor   `op:"in"`
	DWeight *Tensor   `op:"out"` // F32 [T·K]

	K int
}

func (o *CombineGrad) check() error {
	var c checker
	tokens, dim := c.slots(o.Y, o.Slot, o.K)
	c.plain(field{"DOut", o.DOut})
	c.matrix("DOut", o.DOut, tokens, dim)
	c.vector("DWeight", o.DWeight, o.Slot.Elems())
	return c.err
}
