package backend

// Smooth is how Smooth-SwiGLU chooses its channel factors (method.md); one
// form is built, others are added here.
type Smooth uint8

// Balanced moves half of an outlier from the activation into w3:
// c = √(max|a| / max|w3|) per channel.
const Balanced Smooth = 0

func (Smooth) String() string { return "balanced" }

// SwiGLU is Out = Up ⊙ silu(Gate), times InvC per column where given:
// Smooth-SwiGLU's h = a ⊙ (1/c).
type SwiGLU struct {
	Up   *Tensor `op:"in"` // [tokens, ffn]
	Gate *Tensor `op:"in"`
	InvC *Tensor `op:"in,optional"` // F32 [ffn]
	Out  []Cast  `op:"cast"`
}

func (o *SwiGLU) check() error {
	var c checker
	c.plain(field{"Up", o.Up}, field{"Gate", o.Gate})
	c.matrix("Gate", o.Gate, o.Up.Rows(), o.Up.Cols())
	if o.InvC != nil {
		c.vector("InvC", o.InvC, o.Up.Cols())
	}
	c.casts("Out", o.Out, o.Up.Rows(), o.Up.Cols())
	return c.err
}

func (o *SwiGLU) flops() int64 { return 0 }

// SwiGLUAmax is the channel maximum max_t |Up ⊙ silu(Gate)|, computed without
// storing the product.
type SwiGLUAmax struct {
	Up   *Tensor `op:"in"`
	Gate *Tensor `op:"in"`
	Out  *Tensor `op:"out"` // F32 [ffn]
}

func (o *SwiGLUAmax) check() error {
	var c checker
	c.plain(field{"Up", o.Up}, field{"Gate", o.Gate})
	c.matrix("Gate", o.Gate, o.Up.Rows(), o.Up.Cols())
	c.vector("Out", o.Out, o.Up.Cols())
	return c.err
}

func (o *SwiGLUAmax) flops() int64 { return 0 }

// SwiGLUGrad is the backward of SwiGLU with c constant (method.md: exact, since
// the function does not depend on c). With da = DOut ⊙ InvC and s = sigmoid(Gate):
//
//	DUp   = da ⊙ Gate·s
//	DGate = da ⊙ Up ⊙ s(1 + Gate(1 − s))
type SwiGLUGrad struct {
	DOut  *Tensor `op:"in"`
	Up    *Tensor `op:"in"`
	Gate  *Tensor `op:"in"`
	InvC  *Tensor `op:"in,optional"`
	DUp   []Cast  `op:"cast"`
	DGate []Cast  `op:"cast"`
}

func (o *SwiGLUGrad) check() error {
	var c checker
	rows, cols := o.Up.Rows(), o.Up.Cols()
	c.plain(field{"DOut", o.DOut}, field{"Up", o.Up}, field{"Gate", o.Gate})
	c.matrix("DOut", o.DOut, rows, cols)
	c.matrix("Gate", o.Gate, rows, cols)
	if o.InvC != nil {
		c.vector("InvC", o.InvC, cols)
	}
	c.casts("DUp", o.DUp, rows, cols)
	c.casts("DGate", o.DGate, rows, cols)
	return c.err
}

func (o *SwiGLUGrad) flops() int64 { return 0 }

// SmoothScale turns channel maxima into Smooth-SwiGLU's factors and the two
// current scales, which follow from the maxima without another pass
// (method.md). With m the maximum over the rows of ChannelMax and k = WeightMax:
//
//	c      = 2^⌈log2 √(m/k)⌉, the exponent clamped to ±30; 1 where m or k is 0 or not finite
//	HScale = pow2floor(HLimit / max_i m_i/c_i)
//	WScale = pow2floor(WLimit / max_i c_i·k_i)
//
// with a scale of 1 where the maximum is 0 or not finite. Seen and Amax keep
// the step's record: Seen = max(Seen, m), Amax = max(Amax, max_i m_i), NaN
// counting as larger than infinity.
type SmoothScale struct {
	ChannelMax *Tensor `op:"in"`             // F32 [window, ffn]; one row in training
	WeightMax  *Tensor `op:"in"`             // F32 [ffn]: max_o |w3[o,i]|
	Seen       *Tensor `op:"inout,optional"` // F32 [ffn]
	Amax       *Tensor `op:"inout,optional"` // F32 [1]
	C          *Tensor `op:"out"`            // F32 [ffn]
	InvC       *Tensor `op:"out"`            // F32 [ffn]
	HScale     *Tensor `op:"out"`            // F32 [1], likewise below
	HScaleInv  *Tensor `op:"out"`
	WScale     *Tensor `op:"out"`
	WScaleInv  *Tensor `op:"out"`

	Form           Smooth
	HLimit, WLimit float32
}

func (o *SmoothScale) check() error {
	var c checker
	n := o.WeightMax.Elems()
	c.that(o.ChannelMax.Elems()%n == 0, "ChannelMax is %s, expected fp32[window, %d]", o.ChannelMax, n)
	for _, f := range []field{{"WeightMax", o.WeightMax}, {"C", o.C}, {"InvC", o.InvC}} {
		c.vector(f.name, f.t, n)
	}
	for _, f := range []field{{"HScale", o.HScale}, {"HScaleInv", o.HScaleInv}, {"WScale", o.WScale}, {"WScaleInv", o.WScaleInv}} {
		c.scalar(f.name, f.t)
	}
	if o.Seen != nil {
		c.vector("Seen", o.Seen, n)
	}
	if o.Amax != nil {
		c.scalar("Amax", o.Amax)
	}
	c.that(o.HLimit > 0 && o.WLimit > 0, "HLimit and WLimit must be positive")
	c.that(o.Form == Balanced, "unknown form %d", uint8(o.Form))
	return c.err
}

func (o *SmoothScale) flops() int64 { return 0 }

// ActivationKind names the activation of an ungated MLP.
type ActivationKind uint8

const (
	GELU ActivationKind = iota // x·Φ(x), the exact form by erf, as torch.nn.GELU()
	ReLU                       // max(x, 0), with the derivative 0 at 0
)

// Activation is Out = f(X).
type Activation struct {
	X   *Tensor `op:"in"`
	Out []Cast  `op:"cast"`

	Kind ActivationKind
}

func (o *Activation) check() error {
	var c checker
	c.plain(field{"X", o.X})
	c.that(o.Kind <= ReLU, "unknown activation %d", uint8(o.Kind))
	c.casts("Out", o.Out, o.X.Rows(), o.X.Cols())
	return c.err
}

func (o *Activation) flops() int64 { return 0 }

// ActivationGrad is DX = DOut ⊙ f′(X).
type ActivationGrad struct {
	DOut *Tensor `op:"in"`
	X    *Tensor `op:"in"`
	DX   []Cast  `op:"cast"`

	Kind ActivationKind
}

func (o *ActivationGrad) check() error {
	var c checker
	c.plain(field{"DOut", o.DOut}, field{"X", o.X})
	c.matrix("DOut", o.DOut, o.X.Rows(), o.X.Cols())
	c.that(o.Kind <= ReLU, "unknown activation %d", uint8(o.Kind))
	c.casts("DX", o.DX, o.X.Rows(), o.X.Cols())
	return c.err
}

func (o *ActivationGrad) flops() int64 { return 0 }
