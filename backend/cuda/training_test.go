//go:build cuda && cgo && linux

package cuda

import (
	"context"
	"encoding/binary"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/world"
	"octet/data"
	"octet/internal/trial"
	"octet/train"
)

// compared returns the configuration of a run that is compared between stand-ins and emu.
func compared(recipe string) train.Config {
	c := small(recipe)
	c.Model.Layers, c.Train.HealthEvery = 1, 0
	if recipe != "fp8-smooth" {
		c.Train.Accumulate = 1
	}
	return c
}

// A run on the stand-ins and one on emu see the same batches and the same random bits.
// They differ only in the order of FP32 sums, and in the few codes that this moves to a
// neighbor.
func TestTrainingAgreesWithEmu(t *testing.T) {
	standIns(t)
	for _, name := range []string{"bf16", "fp8-delayed", "fp8-smooth"} {
		t.Run(name, func(t *testing.T) {
			c := compared(name)
			agree(t, c, steps(t, c, "emu", 10), steps(t, c, "cuda", 10))
		})
	}
	t.Run("gradients in e4m3", func(t *testing.T) {
		c := compared("fp8-lm-adam")
		c.Train.Accumulate = 2
		agree(t, c, steps(t, c, "emu", 4), steps(t, c, "cuda", 4))
	})
	t.Run("rotated", func(t *testing.T) {
		c := compared("fp8-delayed")
		c.Precision.Rows = []train.PrecisionRow{{Scope: "layers.*", GEMM: "wgrad", Hadamard: 16, Signs: "seed"}}
		agree(t, c, steps(t, c, "emu", 10), steps(t, c, "cuda", 10))
	})
	t.Run("muon", func(t *testing.T) {
		c := compared("bf16")
		c.Optimizer.Kind, c.Precision.M1, c.Precision.StateBlock, c.Precision.StateFlat = "muon", "int8", new(2048), new(true)
		agree(t, c, steps(t, c, "emu", 4), steps(t, c, "cuda", 4))
	})
}

// A scale that is wrong by 2^-6 in the cast, without the inverse in the GEMM, is detected
// in every recipe with such a scale.
func TestTrainingWithAWrongScaleDisagrees(t *testing.T) {
	standIns(t)
	for _, name := range []string{"fp8-delayed", "fp8-smooth"} {
		t.Run(name, func(t *testing.T) {
			c := compared(name)
			tr, d := trainer(t, c, "cuda")
			scale, raw := trial.InputScale(tr.Job), make([]byte, 4)
			var got []train.StepResult
			for range 10 {
				require.NoError(t, d.Read(scale, raw))
				right := math.Float32frombits(binary.LittleEndian.Uint32(raw))
				binary.LittleEndian.PutUint32(raw, math.Float32bits(right*0x1p-6))
				require.NoError(t, d.Write(scale, raw))
				r, err := tr.Next(t.Context())
				require.NoError(t, err)
				got = append(got, r)
			}
			apart, most := trial.Between(steps(t, c, "emu", 10), got), tolerance(c, 10)
			t.Logf("apart %.2g, maximum %.2g", apart, most)
			require.True(t, apart.Exceeds(most))
		})
	}
}

// tolerance is how far two runs of n steps may differ because codes move to a neighbor.
//
// The relative rounding error of a format is at most u, half the step between its values:
// 2^-9 in BF16, 2^-4 in E4M3 (forward pass) and 2^-3 in E5M2 (backward pass). In BF16 the
// operands of all GEMMs may be off by as much.
//
// Values that are cast to FP8 come in BF16. If two runs cast values that are 2^-9 apart,
// with the same random bits if any, the threshold between two codes, which are 2u apart,
// lies between them for a fraction 2^-9/2u of the values; those differ by 2u. The RMS is
// 2u √(2^-9/2u) = √(2^-9 2u).
//
// A value passes through seven GEMMs: q, k and v; scores; attention; o; up and gate;
// down; the head. Independent errors add up to √7 of one. Loss and gradients are means
// over tokens, which leaves √(7/tokens) of it: relative to the gradient's norm, and,
// because logits are of the order of 1, in nats of the loss. The mean over n steps is √n
// times closer.
func tolerance(c train.Config, n int) trial.Difference {
	const bf16, e4m3, e5m2 = 0x1p-9, 0x1p-4, 0x1p-3
	forward, backward := bf16, bf16
	if c.Recipe != "bf16" {
		forward, backward = math.Sqrt(bf16*2*e4m3), math.Sqrt(bf16*2*e5m2)
	}
	tokens := c.Data.Seq * c.Train.MicroBatch * c.Train.Accumulate * c.Train.Ranks
	mean := math.Sqrt(7 / float64(tokens))
	return trial.Tolerance(forward*mean, backward*mean, n)
}

// agree requires that two runs of a one-layer model differ by rounding only.
func agree(t *testing.T, c train.Config, want, got []train.StepResult) {
	t.Helper()
	require.Equal(t, 1, c.Model.Layers, "tolerance is derived for one layer")
	for _, r := range got {
		require.False(t, r.Skipped)
	}
	d, most := trial.Between(want, got), tolerance(c, len(want))
	t.Logf("apart %.2g, maximum %.2g", d, most)
	require.False(t, d.Exceeds(most), "apart %.3g, maximum %.3g", d, most)
}

// team is the trainers of all ranks of a run in this process, and their devices.
type team struct {
	ranks   []*train.Trainer
	devices []backend.Backend
	groups  []*world.Group
}

// newTeam starts a run of all ranks.
func newTeam(t *testing.T, c train.Config, on string) *team {
	t.Helper()
	n := c.Train.Ranks
	tm := &team{make([]*train.Trainer, n), make([]backend.Backend, n), world.Local(n, time.Minute)}
	t.Cleanup(func() {
		require.NoError(t, world.Each(tm.groups, func(g *world.Group) error {
			if d := tm.devices[g.Rank()]; d != nil { // it was opened
				return d.Close()
			}
			return nil
		}))
	})
	require.NoError(t, tm.each(func(g *world.Group) error { return tm.start(t, c, on, g) }))
	return tm
}

// start opens the device of a rank and makes its trainer.
func (tm *team) start(t *testing.T, c train.Config, on string, g *world.Group) error {
	spec, err := spec("")
	if err != nil {
		return err
	}
	j, err := train.NewJob(c, spec)
	if err != nil {
		return err
	}
	rank := g.Rank()
	reopen := func() (backend.Backend, error) {
		if d := tm.devices[rank]; d != nil {
			if err := d.Close(); err != nil {
				return nil, err
			}
		}
		d, err := backend.Open(on, backend.Options{Threads: 1, Group: g})
		tm.devices[rank] = d
		return d, err
	}
	d, err := reopen()
	if err != nil {
		return err
	}
	text := strings.Repeat("to be or not to be, that is the question: ", 120)
	if tm.ranks[rank], err = train.NewTrainer(j, &data.Corpus{Train: data.Text(text)}, d, g); err != nil {
		return err
	}
	tm.ranks[rank].Reopen = reopen
	return tm.ranks[rank].Init(t.Context())
}

func (tm *team) each(f func(*world.Group) error) error { return world.Each(tm.groups, f) }

// next runs a step on all ranks, by Next or NextAhead, and returns the result of rank 0.
func (tm *team) next(ctx context.Context, ahead bool) (result train.StepResult, err error) {
	err = tm.each(func(g *world.Group) error {
		tr := tm.ranks[g.Rank()]
		next := tr.Next
		if ahead {
			next = tr.NextAhead
		}
		r, err := next(ctx)
		if g.Rank() == 0 {
			result = r
		}
		return err
	})
	return result, err
}

// trainer returns a new trainer of one rank, and its device.
func trainer(t *testing.T, c train.Config, on string) (*train.Trainer, backend.Backend) {
	t.Helper()
	tm := newTeam(t, c, on)
	return tm.ranks[0], tm.devices[0]
}

func steps(t *testing.T, c train.Config, on string, n int) (list []train.StepResult) {
	t.Helper()
	tm := newTeam(t, c, on)
	for range n {
		r, err := tm.next(t.Context(), false)
		require.NoError(t, err)
		list = append(list, r)
	}
	if c.Train.ZeroStage == 0 && c.Train.Tensor < 2 {
		tm.sameOnAll(t)
	}
	return list
}

// sameOnAll requires that all ranks hold the same model, to the bit.
func (tm *team) sameOnAll(t *testing.T) {
	t.Helper()
	for x := range tm.ranks[0].Vars.All() {
		if x.Class != backend.Param && x.Class != backend.State || x.Base != nil {
			continue
		}
		want, got := make([]byte, x.Bytes()), make([]byte, x.Bytes())
		require.NoError(t, tm.devices[0].Read(x, want))
		for rank, d := range tm.devices[1:] {
			require.NoError(t, d.Read(tm.ranks[rank+1].Vars.Lookup(x.Name), got))
			require.Equal(t, want, got, "%s on rank %d", x, rank+1)
		}
	}
}
