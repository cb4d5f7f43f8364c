package backend

// SwiGLU is Out = a with a = Up ⊙ silu(Gate), or Smooth-SwiGLU's h, which divides a by
// smoothing scales (method.md): h = a ⊙ InvC per channel, or h = a / r per token, where
// r depends on that token alone:
//
//	r = 2^⌈log2 max|a|⌉, or max|a| itself if Exact; of |Up| if ScaleOfUp
//
// clamped to 2^±30. r is 1 if the maximum is 0 or not finite, so that a non-finite value
// shows in the amax. The division is a multiplication by 1/r in FP32.
type SwiGLU struct {
	Up         *Tensor `op:"in"` // [tokens, ffn]
	Gate       *Tensor `op:"in"`
	InvC       *Tensor `op:"in,optional"`  // F32 [ffn]: 1/c, from SmoothScale
	TokenScale *Tensor `op:"out,optional"` // F32 [tokens]: r
	Out        []Cast  `op:"cast"`

	ScaleOfUp bool
	Exact     bool
}

func (o *SwiGLU) check() error {
	var c checker
	c.plain(field{"Up", o.Up}, field{"Gate", o.Gate})
	c.matrix("Gate", o.Gate, o.Up.Rows(), o.Up.Cols())
	if o.InvC != nil {
		c.vector("InvC", o.InvC, o.Up.Cols())
		c.that(o.TokenScale == nil, "InvC and TokenScale exclude each other")
	}
	if o.TokenScale != nil {
		c.vector("TokenScale", o.TokenScale, o.Up.Rows())
	} else {
		c.that(!o.ScaleOfUp && !o.Exact, "ScaleOfUp and Exact belong to a TokenScale")
	}
	c.casts("Out", o.Out, o.Up.Rows(), o.Up.Cols())
	return c.err
}

// SwiGLUAmax computes the channel maxima max_t |Up ⊙ silu(Gate)| (Out), without storing
// the product, and max_t |Up| (UpOut). Seen and UpSeen hold the step's maxima:
// Seen = max(Seen, Out), NaN counting as larger than infinity.
type SwiGLUAmax struct {
	Up     *Tensor `op:"in"`
	Gate   *Tensor `op:"in"`
	Out    *Tensor `op:"out"` // F32 [ffn], likewise below
	Seen   *Tensor `op:"inout,optional"`
	UpOut  *Tensor `op:"out,optional"`
	UpSeen *Tensor `op:"inout,optional"`
}

func (o *SwiGLUAmax) check() error {
	var c checker
	c.plain(field{"Up", o.Up}, field{"Gate", o.Gate})
	c.matrix("Gate", o.Gate, o.Up.Rows(), o.Up.Cols())
	for _, f := range []field{{"Out", o.Out}, {"Seen", o.Seen}, {"UpOut", o.UpOut}, {"UpSeen", o.UpSeen}} {
		if f.t != nil {
			c.vector(f.name, f.t, o.Up.Cols())
		}
	}
	c.that(o.UpSeen == nil || o.UpOut != nil, "UpSeen without UpOut")
	return c.err
}

// SwiGLUGrad is the backward of SwiGLU with constant smoothing scales. That is exact,
// because the function of the whole layer does not depend on them (method.md). With
// da = DOut ⊙ InvC, or DOut / TokenScale, and s = sigmoid(Gate):
//
//	DUp   = da ⊙ Gate·s
//	DGate = da ⊙ Up ⊙ s(1 + Gate(1 − s))
type SwiGLUGrad struct {
	DOut       *Tensor `op:"in"`
	Up         *Tensor `op:"in"`
	Gate       *Tensor `op:"in"`
	InvC       *Tensor `op:"in,optional"` // F32 [ffn]
	TokenScale *Tensor `op:"in,optional"` // F32 [tokens], as SwiGLU wrote it
	DUp        []Cast  `op:"cast"`
	DGate      []Cast  `op:"cast"`
}

func (o *SwiGLUGrad) check() error {
	var c checker
	rows, cols := o.Up.Rows(), o.Up.Cols()
	c.plain(field{"DOut", o.DOut}, field{"Up", o.Up}, field{"Gate", o.Gate})
	c.matrix("DOut", o.DOut, rows, cols)
	c.matrix("Gate", o.Gate, rows, cols)
	if o.InvC != nil {
		c.vector("InvC", o.InvC, cols)
		c.that(o.TokenScale == nil, "InvC and TokenScale exclude each other")
	}
	if o.TokenScale != nil {
		c.vector("TokenScale", o.TokenScale, rows)
	}
	c.casts("DUp", o.DUp, rows, cols)
	c.casts("DGate", o.DGate, rows, cols)
	return c.err
}

// SmoothScale computes Smooth-SwiGLU's smoothing scales per channel, c, and the current
// scales of h and W3′ from channel maxima, without another pass over the data
// (method.md). F and m are the maxima over the rows of SmoothMax and of ChannelMax, k is
// WeightMax:
//
//	q = √(F/k) if Balanced, else F            in float64
//	c = q·2^Margin, rounded up to a power of two, or to FP32 if Exact
//	amax(h) = max_i m_i/c_i                   in FP32, by 1/c
//	amax(W3′) = max_i c_i·k_i
//
// c is clamped to 2^±30, so that c and its products stay in the range of FP32. It is 1
// where F, or a k that it depends on, is 0 or not finite. SmoothMax and ChannelMax are
// the same tensor unless c comes from other maxima than those of the a that it divides:
// from |Up|, or from earlier updates.
//
// HScale and WScale are Limit/amax (fp8.ScaleFor), rounded down to a power of two if
// Pow2, and 1 if the amax is 0 or not finite. They are nil if the scale comes from
// elsewhere. HAmax and WAmax hold the step's maxima: max(HAmax, amax(h)), NaN counting
// as larger than infinity.
type SmoothScale struct {
	SmoothMax  *Tensor `op:"in"`             // F32 [window, ffn]
	ChannelMax *Tensor `op:"in"`             // F32 [window, ffn]: max_t |a[t,i]|
	WeightMax  *Tensor `op:"in"`             // F32 [ffn]: max_o |w3[o,i]|
	HAmax      *Tensor `op:"inout,optional"` // F32 [1]
	WAmax      *Tensor `op:"inout,optional"`
	C          *Tensor `op:"out"` // F32 [ffn]
	InvC       *Tensor `op:"out"`
	HScale     *Tensor `op:"out,optional"` // F32 [1], likewise below
	HScaleInv  *Tensor `op:"out,optional"`
	WScale     *Tensor `op:"out,optional"`
	WScaleInv  *Tensor `op:"out,optional"`

	Balanced       bool
	Exact          bool
	Margin         int
	HLimit, WLimit float32
	HPow2, WPow2   bool
}

// maxMargin exceeds the clamp and fits the integer types of every device.
const maxMargin = 64

func (o *SmoothScale) check() error {
	var c checker
	n := o.WeightMax.Elems()
	c.that(o.Margin >= -maxMargin && o.Margin <= maxMargin, "Margin is %d, expected %d at most in magnitude", o.Margin, maxMargin)
	c.window("SmoothMax", o.SmoothMax, n)
	c.window("ChannelMax", o.ChannelMax, n)
	for _, f := range []field{{"WeightMax", o.WeightMax}, {"C", o.C}, {"InvC", o.InvC}} {
		c.vector(f.name, f.t, n)
	}
	for _, f := range []field{
		{"HAmax", o.HAmax},
		{"HScale", o.HScale},
		{"HScaleInv", o.HScaleInv},
		{"WAmax", o.WAmax},
		{"WScale", o.WScale},
		{"WScaleInv", o.WScaleInv},
	} {
		if f.t != nil {
			c.scalar(f.name, f.t)
		}
	}
	for _, s := range []struct {
		name       string
		scale, inv *Tensor
		limit      float32
	}{{"H", o.HScale, o.HScaleInv, o.HLimit}, {"W", o.WScale, o.WScaleInv, o.WLimit}} {
		c.that((s.scale == nil) == (s.inv == nil), "%[1]sScale and %[1]sScaleInv go together", s.name)
		c.that(s.scale == nil || s.limit > 0, "%sLimit is %v, expected a positive number", s.name, s.limit)
	}
	return c.err
}

// ActivationKind is the activation of an ungated MLP.
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
