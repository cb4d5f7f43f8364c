//go:build cuda && cgo && linux

package cuda

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"

	"octet/backend"
	"octet/fp8"
)

// The results of the wgmma kernels of attention are compared with those of mma.sync
// before a process uses them: the bits of wgmma descriptors are known only from
// documents, and a wrong bit yields plausible numbers.

// trialError is the maximum difference of an element, relative to the RMS of all
// elements. Weights are rounded to 2^-9 of themselves, which makes 0.02 on the stand-ins;
// a read from a wrong address, or of data not yet written, makes about one.
const trialError = 0.1

// checkWGMMA reports whether attention of programs uses wgmma. If the trial of its
// kernels fails, attention uses mma.sync, and Spec.Hint and Arithmetic say so.
func (d *device) checkWGMMA(programs []*backend.Program) (bool, error) {
	if d.trying || !d.wgmma() || !hasAttention(programs) {
		return d.wgmma(), nil
	}
	if err := d.trial(); errors.Is(err, backend.ErrDeviceLost) {
		return false, fmt.Errorf("attention by wgmma: %w, with --backend cuda:N,attention=mma", err)
	} else if err != nil {
		d.spec.Hint = fmt.Sprintf("attention runs by mma.sync, slower than wgmma: %v", err)
		d.mma = true
	}
	return d.wgmma(), nil
}

// examine reports which kernels attention uses.
func examine(name string, _ []*backend.Program) iter.Seq[backend.Finding] {
	return func(yield func(backend.Finding) bool) {
		f := backend.Finding{What: "attention", OK: true, Detail: "by mma.sync"}
		b, err := open(name, backend.Options{})
		if err == nil {
			d := b.(*device)
			if d.wgmma() {
				f.Detail, f.Optional = "by wgmma, results agree with mma.sync", true
				if err = d.trial(); err != nil {
					err = fmt.Errorf("by mma.sync, slower than wgmma: %w", err)
				}
			}
			err = errors.Join(err, d.Close())
		}
		if err != nil {
			f.OK, f.Detail, f.Fix = false, err.Error(), "the device cuda:N,attention=mma skips this trial"
		}
		yield(f)
	}
}

// hasAttention reports whether programs have attention that wgmma could compute.
func hasAttention(programs []*backend.Program) bool {
	for _, p := range programs {
		for _, n := range p.Nodes() {
			if o, ok := n.Op.(*backend.Attention); ok && (o.HeadDim == 64 || o.HeadDim == 128) {
				return true
			}
		}
	}
	return false
}

// tryWGMMA compares the results of a small attention by wgmma and by mma.sync, forward
// and backward.
func (g *gpu) tryWGMMA() error {
	for _, headDim := range []int{64, 128} {
		want, err := g.runAttention(headDim, true)
		if err != nil {
			return err
		}
		got, err := g.runAttention(headDim, false)
		if err != nil {
			return err
		}
		for i, name := range trialResults {
			if e := relativeError(got[i], want[i]); !(e < trialError) {
				return fmt.Errorf("wgmma's %s of heads of %d differs from that of mma.sync by %.2g of its RMS, rounding explains less than %v: please report it", name, headDim, e, trialError)
			}
		}
	}
	return nil
}

// relativeError returns the largest difference of an element, relative to the RMS of
// want.
func relativeError(got, want []float64) float64 {
	var largest, squares float64
	for i, w := range want {
		largest = max(largest, math.Abs(got[i]-w))
		squares += w * w
	}
	return largest / math.Sqrt(squares/float64(len(want)))
}

var trialResults = []string{"result", "gradient of Q", "gradient of K", "gradient of V"}

// runAttention runs attention of 330 tokens with two heads that share their keys. The
// keys are three blocks, so every kernel reuses a stage of its shared memory, and the
// last block, of queries too, is partial.
func (g *gpu) runAttention(headDim int, mma bool) (results [][]float64, err error) {
	s, err := g.NewStream()
	if err != nil {
		return nil, err
	}
	d, err := (&device{gpu: g, stream: s, mma: mma, trying: true}).start()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	const tokens = 330
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
	list, err := d.Load(p)
	if err != nil {
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
