package cuda

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"octet/backend"
	"octet/train"
)

// fusion is the memory traffic that a fusion of ops would save.
type fusion struct {
	name  string
	bytes int64
}

// fusions counts, in the lowered programs of one layer with its head, the bytes that each
// fusion would save in a step of one micro-batch. Each op reads and writes each operand
// once; caches are ignored.
func fusions(micro, update *backend.Program) []fusion {
	var dx, operands, amax, logits, head, moments, norm, codes int64
	seen := map[*backend.Tensor]bool{} // operands that an earlier GEMM read
	for _, n := range micro.Nodes() {
		switch o := n.Op.(type) {
		case *backend.MatMul:
			gradient := o.Out.Root().Class != backend.Temp // of a weight
			switch {
			case strings.HasPrefix(n.Scope, "lm_head"):
				if o.Accumulate {
					head += 2 * o.Out.Bytes() // read and written again for each chunk
				}
				continue
			case o.Accumulate && !gradient:
				dx += 2 * o.Out.Bytes()
			}
			shared := o.A // by the GEMMs of fprop: q, k and v, or up and gate
			if gradient {
				shared = o.B // by those of wgrad
			}
			if seen[shared] {
				operands += shared.Bytes()
			}
			seen[shared] = true
		case *backend.SwiGLUAmax:
			amax += o.Up.Bytes() + o.Gate.Bytes()
		case *backend.CrossEntropy:
			logits += 2 * (o.Logits.Bytes() - o.DLogits.Bytes()) // written and read in FP32, not BF16
		}
	}
	sum := func(list []*backend.Tensor) (bytes int64) {
		for _, t := range list {
			bytes += t.Bytes()
		}
		return bytes
	}
	for _, n := range update.Nodes() {
		switch o := n.Op.(type) {
		case *backend.AdamW:
			if n.Scope == "adamw.layers" {
				moments += sum(o.Grad) + sum(o.Master) + sum(o.M1) + sum(o.M2)
				norm += sum(o.Grad)
			}
		case *backend.Quantize:
			if strings.HasPrefix(n.Scope, "layers.") {
				codes += o.X.Bytes()
			}
		}
	}
	return []fusion{
		{"dX of q, k, v and of up, gate: one GEMM each", dx},
		{"x of q, k, v and of up, gate, in fprop and wgrad", operands},
		{"SwiGLUAmax", amax},
		{"AdamW: the pass for the amaxes of new moments", moments},
		{"AdamW: the gradient norm's pass", norm},
		{"AdamW: weights read again for their codes", codes},
		{"the head: dW by one GEMM", head},
		{"the head: logits in BF16", logits},
	}
}

// TestFusions checks the figures of docs/accelerators.md for a layer of Llama-7B and its
// head: `go test ./backend/cuda -run TestFusions -v` prints them.
func TestFusions(t *testing.T) {
	c, err := train.Preset("llama2-7b")
	require.NoError(t, err)
	c.Recipe, c.Model.Layers, c.Data.Seq, c.Train.MicroBatch, c.Train.Accumulate = "fp8-smooth", 1, 4096, 4, 1
	s := forDevice(t)
	j, err := train.NewJob(c, s)
	require.NoError(t, err)
	list, err := lower(s, j.Programs())
	require.NoError(t, err)
	var micro, update *backend.Program
	for _, p := range list {
		switch {
		case strings.HasPrefix(p.Name(), "micro"):
			micro = p
		case p.Name() == "update":
			update = p
		}
	}
	const h100 = 0.85 * 3.35e12 // bytes per second
	got := map[string]int64{}
	for _, f := range fusions(micro, update) {
		t.Logf("%-50s %6d MB %6.2f ms", f.name, f.bytes/1e6, 1e3*float64(f.bytes)/h100)
		got[f.name] = f.bytes
	}
	const tokens, dim, ffn, vocab, params = 16_384, 4096, 11_008, 32_000, 4*4096*4096 + 3*4096*11_008
	require.Equal(t, map[string]int64{
		"dX of q, k, v and of up, gate: one GEMM each":     3 * 8 * tokens * dim,
		"x of q, k, v and of up, gate, in fprop and wgrad": 6 * tokens * dim,
		"SwiGLUAmax": 4 * tokens * ffn,
		"AdamW: the pass for the amaxes of new moments": 8 * params,
		"AdamW: the gradient norm's pass":               4 * params,
		"AdamW: weights read again for their codes":     2 * (params - dim*ffn), // down_proj's codes are made in each micro-batch
		"the head: dW by one GEMM":                      15 * 8 * vocab * dim,
		"the head: logits in BF16":                      4 * tokens * vocab,
	}, got)
}
