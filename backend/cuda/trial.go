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

// The kernels of attention with wgmma are compared with those of every other GPU
// before a process takes them: what a descriptor's bits mean is known from documents,
// and a wrong one gives plausible numbers.

// trialError is how far an element of both may differ, of the root of the mean square
// of all. Weights are rounded to 2^-9 of themselves, which makes 0.02 behind stand-ins;
// what is read from a wrong place, or before it is there, makes about one.
const trialError = 0.1

// tried reports whether attention of programs may take wgmma. Where its kernels do
// something else than the others, those are taken, which Spec.Hint and Arithmetic tell.
func (d *device) tried(programs []*backend.Program) (bool, error) {
	if d.trying || !d.wgmma() || !attends(programs) {
		return d.wgmma(), nil
	}
	if err := d.watched("try attention by wgmma", d.trial); errors.Is(err, backend.ErrDeviceLost) {
		return false, fmt.Errorf("attention by wgmma: %w, with --backend cuda:N,attention=mma", err)
	} else if err != nil {
		d.spec.Hint = fmt.Sprintf("attention runs without wgmma, slower: %v", err)
		d.mma = true
	}
	return d.wgmma(), nil
}

// examine tells a doctor which kernels attention has.
func examine(name string, _ []*backend.Program) iter.Seq[backend.Finding] {
	return func(yield func(backend.Finding) bool) {
		f := backend.Finding{What: "attention", OK: true, Detail: "by mma.sync"}
		list, err := open(name, backend.Options{})
		if err == nil {
			d := list[0].(*device)
			if d.wgmma() {
				f.Detail, f.Optional = "by wgmma, like mma.sync", true
				if err = d.trial(); err != nil {
					err = fmt.Errorf("without wgmma, slower: %w", err)
				}
			}
			err = errors.Join(err, d.Close())
		}
		if err != nil {
			f.OK, f.Detail, f.Fix = false, err.Error(), "cuda:N,attention=mma does not try it"
		}
		yield(f)
	}
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
			if e := apart(got[i], want[i]); !(e < trialError) {
				return fmt.Errorf("its %s of heads of %d differs from that of mma.sync by %.2g of the root of the mean square, rounding explains less than %v: please report it", name, headDim, e, trialError)
			}
		}
	}
	return nil
}

// apart is the largest difference of an element, of the root of the mean square.
func apart(got, want []float64) float64 {
	var largest, squares float64
	for i, w := range want {
		largest = max(largest, math.Abs(got[i]-w))
		squares += w * w
	}
	return largest / math.Sqrt(squares/float64(len(want)))
}

var trialResults = []string{"result", "gradient of Q", "gradient of K", "gradient of V"}

// attend runs attention of 330 tokens with two heads that share their keys: three
// blocks of keys, so that every kernel uses a stage of its shared memory again, and
// the last one, of queries too, is not whole.
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
