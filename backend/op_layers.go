package backend

import (
	"math"

	"octet/fp8"
)

// Embed looks up rows: Out[t] = Table[IDs[t]].
//
// With Split, Table is one of the equal parts of a table that the ranks of a group hold in their order
// (see Group): its first row is Split.Index(Control.Rank)·vocab. An ID of another part gives a row of
// zeros, so that the sum over the group is the lookup in the whole table.
type Embed struct {
	Table   *Tensor `op:"in"`          // [vocab, dim] F32, BF16 or F16
	IDs     *Tensor `op:"in"`          // I32 [tokens]
	Control *Tensor `op:"in,optional"` // with Split
	Out     []Cast  `op:"cast"`

	Split Group
}

func (o *Embed) check() error {
	var c checker
	c.plain(field{"Table", o.Table})
	c.ints("IDs", o.IDs, o.IDs.Elems())
	c.casts("Out", o.Out, o.IDs.Elems(), o.Table.Cols())
	c.split(o.Split, o.Control)
	return c.err
}

// EmbedGrad adds each token's gradient to its row of the table's gradient,
// tokens in ascending order. With Split, as in Embed, it leaves out the tokens of other parts.
type EmbedGrad struct {
	IDs     *Tensor `op:"in"`          // I32 [tokens]
	DOut    *Tensor `op:"in"`          // [tokens, dim]
	Control *Tensor `op:"in,optional"` // with Split
	DTable  *Tensor `op:"out,inout=Accumulate"`

	Accumulate bool
	Split      Group
}

func (o *EmbedGrad) check() error {
	var c checker
	c.ints("IDs", o.IDs, o.DOut.Rows())
	c.plain(field{"DOut", o.DOut})
	c.dtype("DTable", o.DTable, fp8.F32)
	c.unscaled("DTable", o.DTable)
	c.that(o.DTable.Cols() == o.DOut.Cols(), "DTable is %s, DOut is %s: widths differ", o.DTable, o.DOut)
	c.split(o.Split, o.Control)
	return c.err
}

// Add is Out = A + B. A B of one row is added to each row of A, as a bias.
type Add struct {
	A   *Tensor `op:"in"`
	B   *Tensor `op:"in"` // [rows, cols] or [cols], F32, BF16 or F16
	Out []Cast  `op:"cast"`
}

func (o *Add) check() error {
	var c checker
	c.plain(field{"A", o.A}, field{"B", o.B})
	if o.Bias() {
		c.matrix("B", o.B, 1, o.A.Cols())
	} else {
		c.matrix("B", o.B, o.A.Rows(), o.A.Cols())
	}
	c.casts("Out", o.Out, o.A.Rows(), o.A.Cols())
	return c.err
}

// Bias reports whether B is one row, which is added to each of several rows of A.
func (o *Add) Bias() bool { return o.B.Rows() == 1 && o.A.Rows() > 1 }

// RMSNorm is Out[t] = X[t] · InvRMS[t] ⊙ Gain with
// InvRMS[t] = 1/√(mean(X[t]²) + Eps), which the backward reads.
type RMSNorm struct {
	X      *Tensor `op:"in"` // [tokens, dim]
	Gain   *Tensor `op:"in"` // F32 [dim]
	Out    []Cast  `op:"cast"`
	InvRMS *Tensor `op:"out,optional"` // F32 [tokens]

	Eps float32
}

func (o *RMSNorm) check() error {
	var c checker
	c.plain(field{"X", o.X})
	c.vector("Gain", o.Gain, o.X.Cols())
	if o.InvRMS != nil {
		c.vector("InvRMS", o.InvRMS, o.X.Rows())
	}
	c.casts("Out", o.Out, o.X.Rows(), o.X.Cols())
	return c.err
}

// RMSNormGrad is, with x̂ = X·InvRMS and g = DOut ⊙ Gain,
//
//	DX    = Residual + InvRMS · (g − x̂ · mean(g ⊙ x̂))
//	DGain = Σ_t DOut ⊙ x̂
//
// Residual is the gradient that bypasses the norm.
type RMSNormGrad struct {
	DOut     *Tensor `op:"in"`
	X        *Tensor `op:"in"`
	Gain     *Tensor `op:"in"`
	InvRMS   *Tensor `op:"in"`
	Residual *Tensor `op:"in,optional"`
	DX       []Cast  `op:"cast"`
	DGain    *Tensor `op:"out,inout=Accumulate"` // F32 [dim]

	Accumulate bool // of DGain
}

func (o *RMSNormGrad) check() error {
	var c checker
	rows, cols := o.X.Rows(), o.X.Cols()
	c.plain(field{"X", o.X}, field{"DOut", o.DOut})
	c.matrix("DOut", o.DOut, rows, cols)
	c.vector("Gain", o.Gain, cols)
	c.vector("InvRMS", o.InvRMS, rows)
	if o.Residual != nil {
		c.plain(field{"Residual", o.Residual})
		c.matrix("Residual", o.Residual, rows, cols)
	}
	c.casts("DX", o.DX, rows, cols)
	c.vector("DGain", o.DGain, cols)
	return c.err
}

// Rope rotates each head by its position, in the half-split form of Hugging Face: the
// pair (i, i+HeadDim/2) by the angle pos·Frequencies()[i]. Row r is at position
// Control.Position + r mod Seq. Inverse, the backward, rotates by the negative angle.
type Rope struct {
	X       *Tensor `op:"in"`          // [batch·Seq, heads·HeadDim]
	Control *Tensor `op:"in,optional"` // nil: positions start at 0
	Out     []Cast  `op:"cast"`

	Seq, HeadDim int
	Theta        float64
	Inverse      bool

	// Factor, unless 0, divides frequencies, so that more positions have the angles of
	// fewer: all of them if Original is 0, else as Llama 3.1 does. There a pair makes turns
	// t = Original·frequency/2π in the Original positions of the first training. Pairs with
	// t ≤ LowFreq are divided by Factor, those with t ≥ HighFreq keep their frequency.
	Factor, LowFreq, HighFreq float64
	Original                  int
}

// Frequencies returns the angle per position of each pair of a head [HeadDim/2], in radians:
//
//	f[i] = Theta^(−2i/HeadDim)
//	f[i] = f[i] / Factor                  if Factor is not 0 and Original is 0
//	f[i] = f[i] · (s + (1−s) / Factor)    if neither is 0
//
// with s = (Original·f[i]/2π − LowFreq) / (HighFreq − LowFreq), limited to [0, 1]. The last two
// are the types linear and llama3 of transformers (modeling_rope_utils.py, 5.24.0).
func (o *Rope) Frequencies() []float64 {
	list := make([]float64, o.HeadDim/2)
	for i := range list {
		f := math.Pow(o.Theta, -2*float64(i)/float64(o.HeadDim))
		switch {
		case o.Factor != 0 && o.Original == 0:
			f /= o.Factor
		case o.Factor != 0:
			turns := float64(o.Original) * f / (2 * math.Pi)
			kept := max(0, min(1, (turns-o.LowFreq)/(o.HighFreq-o.LowFreq)))
			f *= kept + (1-kept)/o.Factor
		}
		list[i] = f
	}
	return list
}

func (o *Rope) check() error {
	var c checker
	c.plain(field{"X", o.X})
	c.that(o.Seq > 0 && o.X.Rows()%o.Seq == 0, "X is %s: rows are not a multiple of the sequence length %d", o.X, o.Seq)
	c.that(o.HeadDim > 0 && o.HeadDim%2 == 0 && o.X.Cols()%o.HeadDim == 0, "X is %s: columns are not a multiple of an even head size (%d)", o.X, o.HeadDim)
	c.that(o.Theta > 1, "Theta is %v, expected more than 1", o.Theta)
	c.that(o.Factor == 0 || o.Factor >= 1 && !math.IsInf(o.Factor, 1), "Factor is %v, expected 0 or at least 1", o.Factor)
	c.that(o.Original >= 0, "Original is %d, expected at least 0", o.Original)
	c.that(o.Original == 0 || o.Factor != 0 && o.LowFreq > 0 && o.HighFreq > o.LowFreq && !math.IsInf(o.HighFreq, 1),
		"LowFreq is %v and HighFreq %v, with Factor %v: expected a factor, and two positive numbers in ascending order", o.LowFreq, o.HighFreq, o.Factor)
	c.that(o.Original != 0 || o.LowFreq == 0 && o.HighFreq == 0, "LowFreq is %v and HighFreq %v without Original", o.LowFreq, o.HighFreq)
	if o.Control != nil {
		c.control(o.Control)
	}
	c.casts("Out", o.Out, o.X.Rows(), o.X.Cols())
	return c.err
}

// Attention is causal softmax attention over grouped heads, per sequence and
// head: Out = softmax(Q·Kᵀ/√HeadDim)·V, where the query in row i of a sequence
// is at position Control.Position + i and attends to keys up to that position.
// K and V may be longer than Q (a cache). The T×T scores are never stored; the
// backward recomputes them from LSE = log Σ exp(score).
//
// With Start the query in row i of a sequence attends to the keys Start[i] to i only: the
// first key is that of the query's document. Positions start at 0 then, and K is as long as
// Q. In a sequence Start does not decrease, and 0 ≤ Start[i] ≤ i; with other values the
// results are undefined, but no other memory is read.
type Attention struct {
	Q       *Tensor `op:"in"`          // [batch·queries, heads·HeadDim]
	K       *Tensor `op:"in"`          // [batch·keys, kvHeads·HeadDim]
	V       *Tensor `op:"in"`          // like K
	Start   *Tensor `op:"in,optional"` // I32 [batch·queries]; nil: all 0
	Control *Tensor `op:"in,optional"` // nil: positions start at 0
	Out     []Cast  `op:"cast"`
	LSE     *Tensor `op:"out,optional"` // F32 [batch·heads, queries]

	Batch, HeadDim int
}

func (o *Attention) check() error {
	var c checker
	c.plain(field{"Q", o.Q}, field{"K", o.K}, field{"V", o.V})
	if o.Control != nil {
		c.control(o.Control)
	}
	checkHeads(&c, o.Q, o.K, o.V, o.Batch, o.HeadDim)
	if o.Start != nil {
		c.starts(o.Start, o.Q.Rows())
		c.that(o.Control == nil && o.Q.Rows() == o.K.Rows(), "Q is %s, K is %s: Start, for documents, takes neither step.control nor a cache of keys", o.Q, o.K)
	}
	if c.err == nil && o.LSE != nil {
		c.vector("LSE", o.LSE, o.Q.Rows()*(o.Q.Cols()/o.HeadDim))
	}
	c.casts("Out", o.Out, o.Q.Rows(), o.Q.Cols())
	return c.err
}

// starts requires n contiguous first keys.
func (k *checker) starts(t *Tensor, n int) {
	k.ints("Start", t, n)
	k.that(t.Contiguous(), "Start is %s with gaps between its rows: make it a tensor of its own", t)
}

func checkHeads(c *checker, q, k, v *Tensor, batch, headDim int) {
	c.that(batch > 0 && q.Rows()%batch == 0 && k.Rows()%batch == 0, "Q is %s, K is %s: rows are not a multiple of the %d sequences", q, k, batch)
	c.that(headDim > 0 && q.Cols()%headDim == 0 && k.Cols()%headDim == 0, "Q is %s, K is %s: columns are not a multiple of the head size %d", q, k, headDim)
	c.that(q.Cols()%k.Cols() == 0, "Q is %s, K is %s: query heads are not a multiple of key heads", q, k)
	c.matrix("V", v, k.Rows(), k.Cols())
}

// AttentionGrad is the backward of Attention; it recomputes the probabilities
// from Q, K and LSE in blocks. For query i and a key j that it attends to, with
// s = 1/√HeadDim and positions starting at 0:
//
//	P[i,j] = exp(s·Q[i]·K[j] − LSE[i])
//	D[i,j] = s·P[i,j] · (DOut[i]·V[j] − DOut[i]·O[i])
//	DQ[i] = Σ_j D[i,j]·K[j]    DK[j] = Σ_i D[i,j]·Q[i]    DV[j] = Σ_i P[i,j]·DOut[i]
//
// where the sums for K and V run over all query heads that share the key head.
type AttentionGrad struct {
	DOut  *Tensor `op:"in"`
	Q     *Tensor `op:"in"`
	K     *Tensor `op:"in"`
	V     *Tensor `op:"in"`
	O     *Tensor `op:"in"` // the forward's Out
	LSE   *Tensor `op:"in"`
	Start *Tensor `op:"in,optional"` // the forward's
	DQ    []Cast  `op:"cast"`
	DK    []Cast  `op:"cast"`
	DV    []Cast  `op:"cast"`

	Batch, HeadDim int
}

func (o *AttentionGrad) check() error {
	var c checker
	c.plain(field{"DOut", o.DOut}, field{"Q", o.Q}, field{"K", o.K}, field{"V", o.V}, field{"O", o.O})
	checkHeads(&c, o.Q, o.K, o.V, o.Batch, o.HeadDim)
	c.that(o.Q.Rows() == o.K.Rows(), "Q is %s, K is %s: the backward needs as many queries as keys", o.Q, o.K)
	c.matrix("O", o.O, o.Q.Rows(), o.Q.Cols())
	c.matrix("DOut", o.DOut, o.Q.Rows(), o.Q.Cols())
	if o.Start != nil {
		c.starts(o.Start, o.Q.Rows())
	}
	if c.err == nil {
		c.vector("LSE", o.LSE, o.Q.Rows()*(o.Q.Cols()/o.HeadDim))
	}
	c.casts("DQ", o.DQ, o.Q.Rows(), o.Q.Cols())
	c.casts("DK", o.DK, o.K.Rows(), o.K.Cols())
	c.casts("DV", o.DV, o.K.Rows(), o.K.Cols())
	return c.err
}

// FLOPs counts the GEMMs QKᵀ and PV, halved by causality. With Start it is an upper bound.
func (o *Attention) FLOPs() int64 {
	keys := int64(o.K.Rows() / o.Batch)
	return 4 * int64(o.Q.Elems()) * keys / 2
}

// FLOPs counts five GEMMs: QKᵀ again, dV, dP, dQ, dK, halved by causality. With Start it is
// an upper bound.
func (o *AttentionGrad) FLOPs() int64 {
	keys := int64(o.K.Rows() / o.Batch)
	return 10 * int64(o.Q.Elems()) * keys / 2
}

// CacheWrite copies the rows of each sequence of X into its cache, starting at row
// Control.Position: the key/value cache of prefill and decode. Of a cache with scales it moves
// the codes or the scales, see [Tensor.Codes].
type CacheWrite struct {
	X       *Tensor `op:"in"` // [batch·n, width]
	Control *Tensor `op:"in"`
	Cache   *Tensor `op:"inout"` // [batch·max, width]

	Batch int
}

func (o *CacheWrite) check() error {
	var c checker
	for _, f := range []field{{"X", o.X}, {"Cache", o.Cache}} {
		c.that(f.t.DType.IsFloat() && f.t.DType.Size() > 0, "%s is %s, expected a float format of at least eight bits", f.name, f.t)
		c.that(f.t.Scale == nil || f.t.Scale.Value == 1, "%s is %s with a scale, which this op does not read: give its codes", f.name, f.t)
	}
	c.control(o.Control)
	c.that(o.X.DType == o.Cache.DType && o.X.Cols() == o.Cache.Cols(), "X is %s, Cache is %s: they differ in width or format", o.X, o.Cache)
	c.that(o.Batch > 0 && o.X.Rows()%o.Batch == 0 && o.Cache.Rows()%o.Batch == 0, "X is %s, Cache is %s: rows are not a multiple of the %d sequences", o.X, o.Cache, o.Batch)
	c.that(o.X.Rows() <= o.Cache.Rows(), "X is %s, Cache is %s: the cache is too short", o.X, o.Cache)
	return c.err
}
