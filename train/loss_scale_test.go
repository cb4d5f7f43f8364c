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

// The loss scale doubles after 2,000 updates and halves with each skipped step, whose
// weights stay. A scale that overflows the gradients comes down by itself.
func TestLossScaleGrowsAndBacksOff(t *testing.T) {
	tr := newTrainer(t, small(t, "fp16"), 1, false)
	setLossScale(t, tr, 0x1p10, 1998)
	scales := []float64{}
	for _, res := range steps(t, tr, 3) {
		scales = append(scales, res.LossScale)
	}
	require.Equal(t, []float64{0x1p10, 0x1p11, 0x1p11}, scales)

	setLossScale(t, tr, 0x1p40, 1999)
	before := memory(t, tr.ranks[0], tr.Model.Params[1].Master)
	for range 3 {
		res := steps(t, tr, 1)[0]
		require.True(t, res.Skipped)
		scales = append(scales, res.LossScale)
	}
	require.Equal(t, []float64{0x1p39, 0x1p38, 0x1p37}, scales[3:])
	require.Equal(t, before, memory(t, tr.ranks[0], tr.Model.Params[1].Master))

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
