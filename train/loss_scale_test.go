package train

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/fp8"
	"octet/nn"
)

// setLossScale writes the loss scale and the number of updates since it changed.
func setLossScale(t *testing.T, tr *team, scale float32, good uint32) {
	t.Helper()
	for _, r := range tr.ranks {
		require.NoError(t, r.device.Write(tr.LossScale, fp8.AppendFloats(nil, scale)))
		require.NoError(t, r.device.Write(tr.optimizer.GoodSteps, binary.LittleEndian.AppendUint32(nil, good)))
	}
}

// FP16 with loss scaling trains like BF16.
func TestFP16Learns(t *testing.T) {
	last := map[string]float64{}
	for _, name := range []string{"bf16", "fp16"} {
		c := small(t, name)
		c.Train.Steps = 30
		list := steps(t, newTrainer(t, c, 1, false), c.Train.Steps)
		for _, res := range list {
			require.False(t, res.Skipped)
			require.Equal(t, map[string]float64{"bf16": 0, "fp16": nn.InitialLossScale}[name], res.LossScale)
		}
		last[name] = list[len(list)-1].Loss
		require.Less(t, last[name], list[0].Loss-0.2)
	}
	require.InDelta(t, last["bf16"], last["fp16"], 0.005)
}

// The loss scale changes neither gradient norm nor weights but for the rounding of
// gradients, as long as nothing over- or underflows.
func TestUpdatesDivideByTheLossScale(t *testing.T) {
	c := small(t, "fp16")
	var norms []float64
	var weights [][]float64
	for _, scale := range []float32{0x1p8, 0x1p12} {
		tr := newTrainer(t, c, 1, false)
		setLossScale(t, tr, scale, 0)
		list := steps(t, tr, 3)
		require.InDelta(t, scale, list[2].LossScale, 0)
		norms = append(norms, list[2].GradNorm)
		weights = append(weights, values(t, tr.ranks[0], tr.Model.Params[1].Master))
	}
	require.InEpsilon(t, norms[0], norms[1], 1e-3)
	require.Less(t, distance(weights[0], weights[1]), 1e-3)
}

// Clipping compares the norm of the gradients without the loss scale with the limit: an update
// that is clipped is the same under any scale. Coef, its factor, is min(1, clip/norm)/scale.
func TestClippingFollowsUnscaling(t *testing.T) {
	for _, scale := range []float32{0x1p6, 0x1p12} {
		c := small(t, "fp16")
		c.Optimizer.Clip = 0.1
		tr := newTrainer(t, c, 1, false)
		setLossScale(t, tr, scale, 0)
		res := steps(t, tr, 1)[0]
		require.Greater(t, res.GradNorm, 0.2, "the norm is clipped")
		require.Less(t, res.GradNorm, 10.0, "the norm does not contain the loss scale")
		// After one update m1 is (1-beta1) times the clipped gradient without the loss scale.
		squares := 0.0
		for _, p := range tr.Model.Params {
			for _, m := range values(t, tr.ranks[0], tr.optimizer.m1[p]) {
				squares += m * m
			}
		}
		require.InEpsilon(t, 0.1, math.Sqrt(squares)/(1-c.Optimizer.Betas[0]), 1e-3)
	}
}

// The share of the logits' gradient that becomes 0 in FP16, with 2,048 tokens per step: with a
// loss scale of 1 most of it, with 2^12 none. 2^-11, the control, stands for 4.2M tokens per
// step and a loss scale of 1. A scale that is too high skips the step and is halved.
func TestLossScaleKeepsGradients(t *testing.T) {
	c := small(t, "fp16")
	c.Train.MicroBatch, c.Train.OnNonfinite, c.Optimizer.LR = 64, 0, 0.01
	tr, d := corruptible(t, c)
	steps(t, tr, 80) // rare bytes become improbable
	total, zero := 0, 0
	d.corrupt = func(n *backend.Node, m backend.Memory) error {
		op, ok := n.Op.(*backend.CrossEntropy)
		if !ok || op.DLogits == nil {
			return nil
		}
		raw, err := m.Read(op.DLogits)
		require.NoError(t, err)
		for i := 0; i < len(raw); i += 2 {
			if binary.LittleEndian.Uint16(raw[i:])&0x7fff == 0 {
				zero++
			}
		}
		total += len(raw) / 2
		return nil
	}
	flushed, skipped := map[int]float64{}, map[int]bool{}
	for _, exponent := range []int{-11, 0, 4, 8, 12, 16, 20, 22, 24, 25, 26, 28} {
		setLossScale(t, tr, float32(math.Ldexp(1, exponent)), 0)
		total, zero = 0, 0
		res := steps(t, tr, 1)[0]
		flushed[exponent], skipped[exponent] = float64(zero)/float64(total), res.Skipped
		t.Logf("loss scale 2^%-3d: %5.1f %% of dlogits are 0, skipped: %v", exponent, 100*flushed[exponent], res.Skipped)
		want := math.Ldexp(1, exponent)
		if res.Skipped {
			want /= 2
		}
		require.InDelta(t, want, res.LossScale, 0)
	}
	require.Greater(t, flushed[-11], 0.95)
	require.Greater(t, flushed[0], 0.5)
	require.Less(t, flushed[4], flushed[0])
	require.Zero(t, flushed[12])
	require.False(t, skipped[16])
	require.True(t, skipped[28])
}

// The loss scale doubles after 2,000 updates and halves with each skipped step, whose
// weights and optimizer state stay. A scale that overflows the gradients comes down by itself.
func TestLossScaleGrowsAndBacksOff(t *testing.T) {
	tr := newTrainer(t, small(t, "fp16"), 1, false)
	setLossScale(t, tr, 0x1p10, 1998)
	scales := []float64{}
	for _, res := range steps(t, tr, 3) {
		scales = append(scales, res.LossScale)
	}
	require.Equal(t, []float64{0x1p10, 0x1p11, 0x1p11}, scales)

	setLossScale(t, tr, 0x1p40, 1999)
	unchanged := func() map[string][]byte { // parameters and state without the loss scale
		all := persistent(t, tr)
		delete(all, tr.LossScale.Name)
		delete(all, tr.optimizer.GoodSteps.Name)
		return all
	}
	before := unchanged()
	for range 3 {
		res := steps(t, tr, 1)[0]
		require.True(t, res.Skipped)
		scales = append(scales, res.LossScale)
	}
	require.Equal(t, []float64{0x1p39, 0x1p38, 0x1p37}, scales[3:])
	require.Equal(t, before, unchanged())

	setLossScale(t, tr, 0x1p26, 1999) // a step without overflow would double it
	tr.Config.Train.OnNonfinite = 0
	skipped := 0
	for range 20 {
		res := steps(t, tr, 1)[0]
		if !res.Skipped {
			require.InDelta(t, math.Ldexp(1, 26-skipped), res.LossScale, 0)
			require.Less(t, res.GradNorm, 100.0)
			require.Positive(t, skipped)
			return
		}
		skipped++
	}
	require.Fail(t, "20 steps were skipped")
}

// An infinity in the gradient of the logits skips one step and halves the scale.
func TestInjectedOverflow(t *testing.T) {
	j, err := NewJob(small(t, "fp16"), specOf(t, "emu"))
	require.NoError(t, err)
	d := &corrupting{}
	tr := newTeam(t, func() (*Job, error) { return j, nil }, 1, d.wrap)
	require.NoError(t, tr.Init(t.Context()))
	steps(t, tr, 1)
	d.corrupt = func(n *backend.Node, m backend.Memory) error {
		op, ok := n.Op.(*backend.CrossEntropy)
		if !ok || op.DLogits == nil {
			return nil
		}
		require.Same(t, tr.LossScale, op.LossScale)
		raw, err := m.Read(op.DLogits)
		require.NoError(t, err)
		binary.LittleEndian.PutUint16(raw[6:], 0x7c00)
		return m.Write(op.DLogits, raw)
	}
	res := steps(t, tr, 1)[0]
	require.True(t, res.Skipped)
	require.InDelta(t, 0x1p15, res.LossScale, 0)
	d.corrupt = nil
	res = steps(t, tr, 1)[0]
	require.False(t, res.Skipped)
	require.InDelta(t, 0x1p15, res.LossScale, 0)
}

// A run that is restored after a skipped step goes on with the same bits.
func TestLossScaleIsRestored(t *testing.T) {
	c := small(t, "fp16")
	tr := newTrainer(t, c, 1, false)
	setLossScale(t, tr, 0x1p30, 0)
	require.True(t, steps(t, tr, 1)[0].Skipped)
	setLossScale(t, tr, 0x1p9, 1998)
	steps(t, tr, 1)
	saved := snapshot(t, tr)
	want := steps(t, tr, 3)
	require.InDelta(t, 0x1p10, want[0].LossScale, 0)

	resumed := newTrainer(t, c, 1, false)
	require.NoError(t, resumed.Restore(t.Context(), saved))
	require.Equal(t, want, steps(t, resumed, 3))
	for i, p := range tr.Model.Params {
		require.Equal(t, memory(t, tr.ranks[0], p.Master), memory(t, resumed.ranks[0], resumed.Model.Params[i].Master), p.Name)
	}
}

// A network whose loss does not take the loss scale is refused: its updates would be too
// small by that factor.
func TestLossScaleMustBeRead(t *testing.T) {
	c := small(t, "fp16")
	c.Network = newOwn
	_, err := NewJob(c, specOf(t, "emu"))
	require.NoError(t, err)
	c.Network = func(b *nn.Base, c Config) (Network, error) {
		m, err := newOwn(b, c)
		return unscaled{m}, err
	}
	_, err = NewJob(c, specOf(t, "emu"))
	require.EqualError(t, err, "recipe fp16 scales the loss, but no op of the network reads the loss scale: give it to CrossEntropy, LossScale: pass.LossScale")
}

type unscaled struct{ Network }

func (u unscaled) LossAndGrads(p *nn.Pass, tokens, targets *backend.Tensor) *backend.Tensor {
	p.LossScale = nil
	return u.Network.LossAndGrads(p, tokens, targets)
}

// A device without FP16 ops, or without a recipe's casts and rotations, is refused by name.
func TestRecipesNeedTheDevice(t *testing.T) {
	for name, want := range map[string]string{
		"coat-adam": "moments with block scales, and this backend has one scale per tensor; add precision.state_block=0 precision.state_expand=false precision.state_flat=false, or use --backend emu",
		"fp16":      "activations in fp16, and this backend has no ops for them; use recipe bf16, or --backend emu",
		"bf16-e8m5": "operands in e8m5, and this backend's casts do not round BF16 to fewer bits; use recipe bf16, or --backend emu",
		"mxfp4-rht": "rotations with signs from the seed, and this backend has fixed ones only; add signs = \"te\" to the row with hadamard, or use --backend emu",
	} {
		_, err := NewJob(small(t, name), backend.Spec{Backend: "old", E4M3: fp8.E4M3})
		require.ErrorIs(t, err, backend.ErrUnsupported)
		require.EqualError(t, err, "unsupported by backend old: recipe "+name+" has "+want)
	}
}

// FP16 needs the loss scale: with 2^-11, which stands for 4.2M tokens per step and a scale of 1,
// the control, the gradients of most elements are 0, and the model learns less. With 1 a small
// batch like this one loses nothing.
func TestFP16WithoutLossScaling(t *testing.T) {
	loss := map[int]float64{}
	for _, exponent := range []int{16, 0, -11} {
		c := small(t, "fp16")
		c.Train.MicroBatch, c.Train.Steps, c.Optimizer.LossScale = 64, 30, math.Ldexp(1, exponent)
		list := steps(t, newTrainer(t, c, 2, false), c.Train.Steps)
		require.InDelta(t, c.Optimizer.LossScale, list[29].LossScale, 0)
		loss[exponent] = list[29].Loss
		t.Logf("loss scale 2^%-3d: loss %.4f after 30 steps", exponent, loss[exponent])
	}
	require.InDelta(t, loss[16], loss[0], 0.05)
	require.Greater(t, loss[-11], loss[16]+0.1)
}
