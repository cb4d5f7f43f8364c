package kernels

import "fmt"

// AttentionShape is the geometry of both attention ops: what their arguments
// have in place of rows and cols.
type AttentionShape struct {
	Batch, Queries, Keys     int // sequences, and rows of each
	Heads, KeyHeads, HeadDim int
	// Fast picks the kernels on BF16 tensor cores; see FastAttention. The others
	// take any head size and format, at a small fraction of the speed.
	Fast bool
	// WGMMA picks those of them that take Hopper's wgmma: compute capability 9.0.
	WGMMA bool
}

// FastAttention reports whether the tensor core kernels can take operands of
// these formats, with this head size, and rows that begin at multiples of 16
// bytes.
func FastAttention(headDim int, aligned bool, operands ...Format) bool {
	for _, f := range operands {
		aligned = aligned && f == BF16
	}
	return aligned && (headDim == 64 || headDim == 128)
}

// What attention.cu and attention_grad.cu fix.
const (
	queryBlock   = 128
	keyBlock     = 128  // of the backward for keys and values
	plainThreads = 128  // a warp takes a query or a key
	pattern      = 1024 // wgmma.cuh: operands begin at a multiple of so many bytes
)

// Words are the shape's words in the arguments, in place of rows and cols.
func (s AttentionShape) Words() []uint64 {
	return []uint64{
		uint64(s.Batch), uint64(s.Queries), uint64(s.Keys),
		uint64(s.Heads), uint64(s.KeyHeads), uint64(s.HeadDim),
	}
}

// Attention is what op attention needs.
func Attention(s AttentionShape) Launches {
	if !s.Fast {
		return Launches{Kernels: []Kernel{s.plain("attention", "attention.cu", s.Queries, s.Heads, 2)}}
	}
	if s.WGMMA {
		return Launches{Kernels: []Kernel{s.wgmma("attention", "attention_wgmma.cu", s.Heads, s.Queries, queryBlock, 1280*s.HeadDim)}}
	}
	return Launches{Kernels: []Kernel{
		s.fast("attention", "attention.cu", s.Heads, s.Queries, queryBlock, 128, 512*s.HeadDim),
	}}
}

// AttentionGrad is what op attention_grad needs.
func AttentionGrad(s AttentionShape) Launches {
	dots := s.Batch * s.Queries * s.Heads
	l := Launches{
		Kernels: []Kernel{flat("attention_grad_dot", "attention_grad.cu", parts(32*dots, flatThreads))},
		Scratch: 4 * int64(dots),
	}
	if !s.Fast {
		l.Kernels = append(l.Kernels,
			s.plain("attention_grad_kv", "attention_grad.cu", s.Keys, s.KeyHeads, 4),
			s.plain("attention_grad_q", "attention_grad.cu", s.Queries, s.Heads, 3))
		return l
	}
	if s.WGMMA {
		l.Kernels = append(l.Kernels,
			s.wgmma("attention_grad_kv", "attention_grad_wgmma.cu", s.KeyHeads, s.Keys, keyBlock, 1280*s.HeadDim+1536),
			s.wgmma("attention_grad_q", "attention_grad_wgmma.cu", s.Heads, s.Queries, queryBlock, 1280*s.HeadDim))
		return l
	}
	threads := 256 // of the kernel for keys and values: 16 keys to a warp, or 32
	if s.HeadDim == 64 {
		threads = 128
	}
	l.Kernels = append(l.Kernels,
		s.fast("attention_grad_kv", "attention_grad.cu", s.KeyHeads, s.Keys, keyBlock, threads, 768*s.HeadDim+512),
		s.fast("attention_grad_q", "attention_grad.cu", s.Heads, s.Queries, queryBlock, 128, 768*s.HeadDim))
	return l
}

// plain is a kernel with a warp for each row and head, which keeps vectors of
// the size of a head in shared memory.
func (s AttentionShape) plain(name, source string, rows, heads, vectors int) Kernel {
	const warps = plainThreads / 32
	return Kernel{name, source, [3]int{parts(rows, warps), heads, s.Batch}, plainThreads, warps * vectors * s.HeadDim * 4}
}

// fast is a kernel with a block for so many rows of a head. Its shared memory
// has to hold the operands, and at the end the result in FP32, with the rows
// four words apart from banks' conflicts, beside the tile that transposes it.
// The heads come first in the grid and the rows, from the longest to the
// shortest, second: so the last blocks to start are short ones.
func (s AttentionShape) fast(name, source string, heads, rows, block, threads, operands int) Kernel {
	result := block*(s.HeadDim+4)*4 + tileRows*(s.HeadDim+1)*4
	return Kernel{
		fmt.Sprintf("%s_%d", name, s.HeadDim), source,
		[3]int{s.Batch * heads, parts(rows, block), 1},
		threads, max(operands, result),
	}
}

// wgmma is a fast kernel of two warpgroups.
func (s AttentionShape) wgmma(name, source string, heads, rows, block, operands int) Kernel {
	k := s.fast(name+"_wgmma", source, heads, rows, block, 256, operands)
	k.Shared += pattern
	return k
}
