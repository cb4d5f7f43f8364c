//go:build cuda && cgo && linux

package cuda

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"

	"octet/backend"
	"octet/fp8"
)

// The kernels of attention with wgmma are compared with those of every other GPU
// before a process takes them: what a descriptor's bits mean is known from documents,
// and a wrong one gives plausible numbers.

// trialError is the largest difference between both, of the norm. Weights are rounded
// to 2^-9 of themselves; what is read from a wrong place changes all.
const trialError = 0.01

// tried reports whether attention of programs may take wgmma. Where its kernels do
// something else than the others, those are taken, which Spec.Arithmetic tells.
func (d *device) tried(programs []*backend.Program) (bool, error) {
	if d.trying || !d.wgmma() || !attends(programs) {
		return d.wgmma(), nil
	}
	if err := d.trial(); errors.Is(err, backend.ErrDeviceLost) {
		return false, fmt.Errorf("attention by wgmma: %w, with --backend cuda:N,attention=mma", err)
	} else if err != nil {
		fmt.Fprintf(os.Stderr, "octet: cuda: attention runs without wgmma, slower: %v\n", err)
		d.mma = true
	}
	return d.wgmma(), nil
}

// attends reports whether any attention could be by wgmma.
func attends(programs []*backend.Program) bool {
	for _, p := range programs {
		for _, n := range p.Nodes() {
			if o, ok := n.Op.(*backend.Attention); ok && (o.HeadDim == 64 || o.HeadDim == 128) {
				return true
			}
		}
	}
	return false
}

// tryWGMMA compares the results of a small attention, forward and backward.
func (g *gpu) tryWGMMA() error {
	for _, headDim := range []int{64, 128} {
		want, err := g.attend(headDim, true)
		if err != nil {
			return err
		}
		got, err := g.attend(headDim, false)
		if err != nil {
			return err
		}
		for i, name := range trialResults {
			var diff, norm float64
			for j, w := range want[i] {
				diff += (got[i][j] - w) * (got[i][j] - w)
				norm += w * w
			}
			if e := math.Sqrt(diff / norm); !(e < trialError) {
				return fmt.Errorf("its %s of heads of %d differs from that of mma.sync by %.2g of the norm, %v is what rounding explains: please report it", name, headDim, e, trialError)
			}
		}
	}
	return nil
}

var trialResults = []string{"result", "gradient of Q", "gradient of K", "gradient of V"}

// attend runs attention of 200 tokens, more than one block of keys, with two heads
// that share their keys.
func (g *gpu) attend(headDim int, mma bool) (results [][]float64, err error) {
	s, err := g.NewStream()
	if err != nil {
		return nil, err
	}
	d, err := (&device{gpu: g, stream: s, mma: mma, trying: true}).start()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	const tokens = 200
	vars := backend.NewVars()
	p := vars.Program("trial")
	tensor := func(name string, t fp8.DType, cols int) *backend.Tensor {
		return vars.Tensor(backend.Stash, name, t, tokens, cols)
	}
	inputs := []*backend.Tensor{tensor("q", fp8.BF16, 2*headDim), tensor("k", fp8.BF16, headDim), tensor("v", fp8.BF16, headDim), tensor("dout", fp8.BF16, 2*headDim)}
	q, k, v, dout := inputs[0], inputs[1], inputs[2], inputs[3]
	o, lse := tensor("o", fp8.BF16, 2*headDim), vars.Tensor(backend.Stash, "lse", fp8.F32, 2, tokens)
	var outputs []*backend.Tensor
	cast := func(i int, like *backend.Tensor) backend.Cast {
		outputs = append(outputs, tensor(trialResults[i], fp8.F32, like.Cols()))
		return backend.Cast{Out: outputs[i]}
	}
	p.Add(&backend.Attention{Q: q, K: k, V: v, Out: []backend.Cast{cast(0, q), {Out: o}}, LSE: lse, Batch: 1, HeadDim: headDim})
	p.Add(&backend.AttentionGrad{
		DOut: dout, Q: q, K: k, V: v, O: o, LSE: lse, Batch: 1, HeadDim: headDim,
		DQ: []backend.Cast{cast(1, q)}, DK: []backend.Cast{cast(2, k)}, DV: []backend.Cast{cast(3, v)},
	})
	if err := d.Bind(vars); err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for _, t := range inputs {
		raw := make([]byte, 0, t.Bytes())
		for range t.Elems() {
			raw = binary.LittleEndian.AppendUint16(raw, uint16(fp8.BF16.Nearest(float32(rng.NormFloat64()), fp8.Saturate)))
		}
		if err := d.Write(t, raw); err != nil {
			return nil, err
		}
	}
	list, err := d.Load(p)
	if err != nil {
		return nil, err
	}
	if err := list[0].Run(context.Background()); err != nil {
		return nil, err
	}
	for _, t := range outputs {
		raw := make([]byte, t.Bytes())
		if err := d.Read(t, raw); err != nil {
			return nil, err
		}
		values := make([]float64, t.Elems())
		for i := range values {
			values[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:])))
		}
		results = append(results, values)
	}
	return results, nil
}
