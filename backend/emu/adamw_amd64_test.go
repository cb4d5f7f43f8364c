//go:build !noasm

package emu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/backend/emu/pool"
	"octet/fp8"
)

// The path from codes to codes and the general path leave the same bits, for any old
// state.
func TestAdamWCodes(t *testing.T) {
	if !haveAdamCodes {
		t.Skip("no AVX-512")
	}
	defer func() { haveAdamCodes = true }()
	one := float32(1)
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	cases := []struct {
		name string
		edit func(op *backend.AdamW, d *device)
	}{
		{"finite codes", func(*backend.AdamW, *device) {}},
		{"zeros", func(op *backend.AdamW, d *device) {
			clear(d.memory[op.M1[1]])
			clear(d.memory[op.M2[1]])
		}},
		{"negative zeros", func(op *backend.AdamW, d *device) {
			for i := range d.memory[op.M1[1]] {
				d.memory[op.M1[1]][i] = 0x80
			}
		}},
		{"a first moment that is NaN", func(op *backend.AdamW, d *device) { d.memory[op.M1[1]][4000] = 0xff }},
		{"a first moment above the largest finite value of E4M3IEEE", func(op *backend.AdamW, d *device) { d.memory[op.M1[1]][7] = 0x78 }},
		{"an infinite second moment", func(op *backend.AdamW, d *device) { d.memory[op.M2[1]][4000] = 0x7c }},
		{"a negative second moment", func(op *backend.AdamW, d *device) { d.memory[op.M2[1]][4000] = 0xbc }},
		{"a master that is NaN", func(op *backend.AdamW, d *device) { d.memory[op.Master[1]][2001] = 0x7e }},
		{"an infinite gradient", func(op *backend.AdamW, d *device) { pool.View[float32](d.memory[op.Grad[2]])[1000] = inf }},
		{"no old scale", func(op *backend.AdamW, d *device) { pool.View[float32](d.memory[op.M1Scale[1]])[0] = 0 }},
		{"a scale that is NaN", func(op *backend.AdamW, d *device) { pool.View[float32](d.memory[op.M2Scale[1]])[0] = nan }},
		{"a negative scale", func(op *backend.AdamW, d *device) { pool.View[float32](d.memory[op.M2Scale[1]])[0] = -one }},
		{"scales near the end of float32", func(op *backend.AdamW, d *device) {
			pool.View[float32](d.memory[op.MasterScale[1]])[0] = 0x1p100
			pool.View[float32](d.memory[op.M1Scale[1]])[0] = 0x1p121
		}},
		{"values near zero", func(op *backend.AdamW, d *device) {
			clear(d.memory[op.Grad[2]])
			clear(d.memory[op.Master[2]])
			pool.View[float32](d.memory[op.M1Scale[2]])[0] = 0x1p-118
			pool.View[float32](d.memory[op.M2Scale[2]])[0] = 0x1p-126
		}},
	}
	for _, m1 := range []fp8.DType{fp8.E4M3, fp8.E4M3IEEE} {
		for _, rounding := range []fp8.Rounding{fp8.Nearest, fp8.Stochastic} {
			for i, c := range append(cases, cases...) {
				floor := i < len(cases)
				t.Run(fmt.Sprintf("%s %s floor=%v %s", m1, rounding, floor, c.name), func(t *testing.T) {
					update := func(codes bool) (*trial, *device) {
						haveAdamCodes = codes
						tr, op := adamTrial(t, fp8.F16, m1, fp8.E5M2, 0)
						op.Rounding, op.FloorV = rounding, floor
						tr.program.Add(op)
						d, x := tr.load(2)
						random := rand.New(rand.NewPCG(1, 2))
						for i := range op.Grad {
							for j := range d.memory[op.M1[i]] {
								code := uint8(random.Uint32())
								d.memory[op.M1[i]][j] = code&0x80 | min(code&0x7f, 0x77)
								d.memory[op.M2[i]][j] = uint8(random.IntN(0x7c))
							}
						}
						c.edit(op, d)
						require.NoError(t, x.Run(t.Context()))
						for i, a := range pool.View[float32](d.memory[op.Amaxes]) {
							if a != a { // ignore the payload
								pool.View[float32](d.memory[op.Amaxes])[i] = nan
							}
						}
						return tr, d
					}
					want, wantDevice := update(false)
					got, gotDevice := update(true)
					for x := range want.vars.All() {
						for y := range got.vars.All() {
							if x.Name == y.Name {
								require.Equal(t, wantDevice.memory[x], gotDevice.memory[y], "%s", x)
							}
						}
					}
				})
			}
		}
	}
}
