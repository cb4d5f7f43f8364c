package backend

// StepMu moves the factors μ of n scales that ranks share ([UpdateScale].Factor) after an
// update, as FP8-LM's automatic scaling does (arXiv 2310.18313, section 2.1):
//
//	μ = μ/2                         where AtMax > Limit, at least MinMu
//	μ = min(1, μ·MuGrowth)          elsewhere
//
// in FP32. Nothing changes if Skip is set.
type StepMu struct {
	AtMax *Tensor `op:"in"`          // F32 [n]: numbers of sums at the largest value, of SumParts
	Skip  *Tensor `op:"in,optional"` // I32 [1]
	Mu    *Tensor `op:"inout"`       // F32 [n]

	Limit float32 // the number of sums at the largest value that is not too many
}

// MuGrowth doubles StepMu's μ in 1,000 updates; MinMu keeps it normal.
const (
	MuGrowth = 1.0006933874625807 // 2^(1/1000)
	MinMu    = 0x1p-126
)

func (o *StepMu) check() error {
	var c checker
	n := o.Mu.Elems()
	c.vector("AtMax", o.AtMax, n)
	c.vector("Mu", o.Mu, n)
	if o.Skip != nil {
		c.ints("Skip", o.Skip, 1)
	}
	c.that(o.Limit >= 0, "Limit is %v, expected 0 or more", o.Limit)
	return c.err
}

// Next returns μ after an update.
func (o *StepMu) Next(mu, atMax float32) float32 {
	if atMax > o.Limit {
		return max(mu/2, MinMu)
	}
	return min(mu*MuGrowth, 1)
}
