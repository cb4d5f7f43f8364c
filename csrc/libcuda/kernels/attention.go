package kernels

import "fmt"

// AttentionShape is the geometry of both attention ops: the words of their arguments in
// place of rows and cols.
type AttentionShape struct {
	Batch, Queries, Keys     int // sequences, and rows of each
	Heads, KeyHeads, HeadDim int
	// Fast selects the kernels on BF16 tensor cores; see FastAttention. The others
	// support any head size and format, at a small fraction of the speed.
	Fast bool
	// WGMMA selects the fast kernels with Hopper's wgmma: compute capability 9.0.
	WGMMA bool
	// Documents selects the fast kernels that read Start. The others do if it is given.
	Documents bool
}

// FastAttention reports whether the tensor core kernels support operands of these formats
// with this head size; aligned: rows begin at multiples of 16 bytes.
func FastAttention(headDim int, aligned bool, operands ...Format) bool {
	for _, f := range operands {
		aligned = aligned && f == BF16
	}
	return aligned && (headDim == 64 || headDim == 128)
}

// Constants of attention.cuh and wgmma.cuh.
const (
	queryBlock   = 128
	keyBlock     = 128  // of the backward for K and V
	plainThreads = 128  // a warp per query or key
	pattern      = 1024 // wgmma.cuh: alignment of operands in bytes
)

// Words returns the shape's words in the arguments, in place of rows and cols.
func (s AttentionShape) Words() []uint64 {
	return []uint64{
		uint64(s.Batch), uint64(s.Queries), uint64(s.Keys),
		uint64(s.Heads), uint64(s.KeyHeads), uint64(s.HeadDim),
	}
}

// Attention returns the launches of op attention.
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

// AttentionGrad returns the launches of op attention_grad.
func AttentionGrad(s AttentionShape) Launches {
	dots := s.Batch * s.Queries * s.Heads
	l := Launches{
		Kernels: []Kernel{flat("attention_grad_dot", "attention_grad.cu", ceilDiv(32*dots, flatThreads))},
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
	threads := 256 // of the kernel for K and V: 16 keys per warp, or 32
	if s.HeadDim == 64 {
		threads = 128
	}
	l.Kernels = append(l.Kernels,
		s.fast("attention_grad_kv", "attention_grad.cu", s.KeyHeads, s.Keys, keyBlock, threads, 768*s.HeadDim+512),
		s.fast("attention_grad_q", "attention_grad.cu", s.Heads, s.Queries, queryBlock, 128, 768*s.HeadDim))
	return l
}

// plain is a kernel with a warp per row and head, which keeps vectors of a head's size in
// shared memory.
func (s AttentionShape) plain(name, source string, rows, heads, vectors int) Kernel {
	const warps = plainThreads / 32
	return Kernel{name, source, [3]int{ceilDiv(rows, warps), heads, s.Batch}, plainThreads, warps * vectors * s.HeadDim * 4}
}

// fast is a kernel with a block per so many rows of a head. Its shared memory holds the
// operands, and at the end the result in FP32, with four words of padding per row against
// bank conflicts, and the transpose buffer. Heads come first in the grid, rows second,
// from the longest to the shortest, so the last blocks to start are short.
func (s AttentionShape) fast(name, source string, heads, rows, block, threads, operands int) Kernel {
	result := block*(s.HeadDim+4)*4 + tileRows*(s.HeadDim+1)*4
	if s.Documents {
		name += "_documents"
	}
	return Kernel{
		fmt.Sprintf("%s_%d", name, s.HeadDim), source,
		[3]int{s.Batch * heads, ceilDiv(rows, block), 1},
		threads, max(operands, result),
	}
}

// wgmma is a fast kernel of two warpgroups.
func (s AttentionShape) wgmma(name, source string, heads, rows, block, operands int) Kernel {
	k := s.fast(name+"_wgmma", source, heads, rows, block, 256, operands)
	k.Shared += pattern
	return k
}
