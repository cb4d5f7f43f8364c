// Package kernels holds the CUDA C++ sources of every op except GEMMs, and the launches
// of each op. It is plain Go: any machine can bind a program to launches.
//
// # Sources
//
// Sources lists the translation units, Headers their headers. They include no other file,
// in particular none of the toolkit, so NVRTC compiles them without an installation, for
// sm_89, sm_90a and sm_100; those named _wgmma.cu only for sm_90a. Compiled as C++ with
// csrc/standin/cuda_host.h they run on a CPU, with a fiber per thread.
//
// # Arguments
//
// A kernel has one parameter, a structure of 8-byte words: addresses, int64, uint64 and
// float64 (a float32 parameter is passed as float64). So a launch's arguments are a
// []uint64, without layout rules. The kernels of one op share one structure, FooArgs in
// their source. Its words are
//
//   - the operands in the order of the op's Go fields: a tensor as Tensor (4
//     words, all zero for nil), a []Cast as Casts (50 words);
//   - rows and cols of the op's first operand;
//   - the op's plain fields in the order of Go, a bool as 0 or 1, a Group as Size and Stride;
//   - the address of scratch memory, 0 if Launches.Scratch is 0.
//
// Some ops have other or additional words between cols and the plain fields:
//
//	embed, embed_grad   vocab (rows of the table); rows is the number of tokens
//	cache_write         rows of the cache
//	push_history        rows and cols are History's
//	update_scale        rows and cols are History's: window and n
//	smooth_scale        rows of ChannelMax; rows and cols are SmoothMax's
//	step_mu             rows is 1; cols the length of Mu
//	sum, step_gate      rows is 1; cols the length of X, of Amax (0 for nil)
//	sum_parts           rows and cols are X's; more words: the rows of Out, the rows and cols
//	                    that share a scale
//	cast_health         rows and cols are X's; more words: the number of scales of
//	                    Codes, the rows and cols that share one, the scales' format,
//	                    their lowest and highest, Codes' limit, the address of Outer
//
// Instead of rows, cols and plain fields, the attention ops have: batch, queries and keys
// of a sequence, heads, key heads, head size. SumSquares and AdamW have a table of
// tensors for their lists; see SquareTable and AdamTable.
//
//	struct Tensor { p, ld, format, scale }         // scale: *float32, or 0
//	struct Cast   { out, ld, format, scale, amax,  // 12 words
//	                flags, name_key, scale_inv, block_rows, block_cols, limit, precision }
//	struct Casts  { n, control, cast[4] }          // control: *int32, or 0
//
// The scale of a cast with block scales is that of the tensor beside them. I32 operands are
// contiguous. ld counts elements; blocks are counted in the layout of
// Out. Format and Flag define the codes.
package kernels

import (
	"embed"
	"io/fs"
	"path"
)

//go:embed *.cu *.cuh
var files embed.FS

// Sources returns the translation units by name, such as "norm.cu". Each is a module of
// its own.
func Sources() map[string]string { return read("*.cu") }

// Headers returns the headers of the sources, by name.
func Headers() map[string]string { return read("*.cuh") }

func read(pattern string) map[string]string {
	texts := map[string]string{}
	names, _ := fs.Glob(files, pattern) // the pattern is valid
	for _, name := range names {
		text, _ := files.ReadFile(name) // matched files are embedded
		texts[path.Base(name)] = string(text)
	}
	return texts
}

// Options returns the compiler options of every source. Multiplications and additions
// that must not be fused use intrinsics (__fmul_rn), so contraction stays enabled.
func Options() []string { return []string{"--std=c++17"} }

// Format is the code of a format in a Tensor or Cast.
type Format uint64

// The formats, in the order of enum Format in octet.cuh.
const (
	F32 Format = iota
	BF16
	F16
	E4M3
	E4M3IEEE
	E5M2
	I32
	E8M0
	E2M1 // two in a byte; a cast of Quantize only
	INT8 // State of LinearUpdate only
)

// Flag is a bit of Cast.flags.
type Flag uint64

// The flags, as in enum Flag in octet.cuh.
const (
	Stochastic Flag = 1 << iota
	Tokens
	Transpose
	Pow2
	ScaleE8M0 // block scales are E8M0, not F32
	ScaleE4M3 // block scales are E4M3
	ScaleDown // block scales in E8M0 are rounded down
)

// Words of the argument structures.
const (
	TensorWords = 4
	CastWords   = 12
	MaxCasts    = 4 // per result
	CastsWords  = 2 + MaxCasts*CastWords
)

// Kernel is one launch.
type Kernel struct {
	Name   string
	Source string // the file that defines it
	Grid   [3]int
	Block  int
	// Shared is the dynamic shared memory in bytes. If it is not 0, the function needs
	// CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, even below 48 KiB: that limit
	// includes static shared memory.
	Shared int
}

// Launches are the kernels of an op, to be launched in this order with the same
// arguments, and the bytes of their common scratch memory, 0 for none. It needs no
// initialization, is aligned to 256 bytes, and the next op may reuse it.
type Launches struct {
	Kernels []Kernel
	Scratch int64
}

// Of returns the launches of the op of this name (snake case: "rms_norm_grad") for a
// matrix of rows × cols, the two words of its arguments. ok is false for unknown names,
// including those with functions of their own: rope, quantize, attention, attention_grad,
// sum_squares, sum_parts, linear_update and adamw. Three ops have a second kernel for one of their cases:
// "amax_columns" for column maxima, "swiglu_by_row" for a TokenScale, "cross_entropy_parts" for Stats.
// "magnitudes" is applied to AllReduce's X before a maximum over ranks.
func Of(op string, rows, cols int) (l Launches, ok bool) {
	shape, ok := shapes[op]
	if !ok {
		return Launches{}, false
	}
	return shape(rows, cols), true
}

// Constants of the sources: each has the same name, in capitals, in octet.cuh or in the
// named file.
const (
	tileThreads    = 512   // tile.cuh: a warp takes two rows
	tileRows       = 32    // tile.cuh
	tileSpan       = 2048  // tile.cuh: columns of a block that does not need whole rows
	stripRows      = 256   // strips.cuh: rows of a block that computes column maxima
	stripCols      = 256   // tile.cuh: TILE_COLS
	flatThreads    = 256   // kernels without tiles
	hadamardGroups = 32    // hadamard.cu: groups of a block
	flatElems      = 8192  // flat.cuh: elements of a block
	lossThreads    = 512   // loss.cu
	oneThreads     = 1024  // kernels of one block
	squareElems    = 16384 // optimizer.cu: elements of a chunk of SumSquares
	adamElems      = 8192  // adamw.cuh: elements of a chunk of AdamW
	adamBlocks     = 512   // adamw.cuh: block scales in a chunk
)

func ceilDiv(n, size int) int { return (n + size - 1) / size }

type shape func(rows, cols int) Launches

// tiles is a kernel by tiles, whose blocks take TILE_SPAN columns of some rows.
func tiles(name, source string) shape {
	return func(rows, cols int) Launches {
		return Launches{Kernels: []Kernel{{name, source, [3]int{ceilDiv(rows, tileRows), ceilDiv(cols, tileSpan), 1}, tileThreads, 0}}}
	}
}

// wholeRows is a kernel by tiles that first reduces whole rows.
func wholeRows(name, source string) shape {
	return func(rows, _ int) Launches {
		return Launches{Kernels: []Kernel{{name, source, [3]int{ceilDiv(rows, tileRows), 1, 1}, tileThreads, 0}}}
	}
}

// one is a kernel of one block.
func one(name, source string) shape {
	return func(int, int) Launches {
		return Launches{Kernels: []Kernel{{name, source, [3]int{1, 1, 1}, oneThreads, 0}}}
	}
}

func flat(name, source string, blocks int) Kernel {
	return Kernel{name, source, [3]int{blocks, 1, 1}, flatThreads, 0}
}

// losses is a kernel of the loss, a block for each row.
func losses(name string) shape {
	return func(rows, _ int) Launches {
		return Launches{Kernels: []Kernel{{name, "loss.cu", [3]int{rows, 1, 1}, lossThreads, 0}}}
	}
}

// strips is a pair of kernels: column maxima by strips of rows, and their reduction over
// the strips. maxima is the number of maxima per column.
func strips(name, source string, maxima int64) shape {
	return func(rows, cols int) Launches {
		high := ceilDiv(rows, stripRows)
		return Launches{[]Kernel{
			{name, source, [3]int{high, ceilDiv(cols, stripCols), 1}, tileThreads, 0},
			flat(name+"_end", source, ceilDiv(cols, flatThreads)),
		}, maxima * 4 * int64(high) * int64(cols)}
	}
}

// counted is a pair of kernels: the first stores bytes for each of its blocks, the second
// is one block that combines them.
func counted(name, source string, bytes int64) shape {
	return func(rows, cols int) Launches {
		blocks := ceilDiv(rows*cols, flatElems)
		return Launches{[]Kernel{flat(name, source, blocks), one(name+"_end", source)(0, 0).Kernels[0]}, bytes * int64(blocks)}
	}
}

var shapes = map[string]shape{
	"add":             tiles("add", "elementwise.cu"),
	"activation":      tiles("activation", "elementwise.cu"),
	"activation_grad": tiles("activation_grad", "elementwise.cu"),
	"epilogue":        tiles("epilogue", "elementwise.cu"),
	"transpose":       tiles("transpose", "transpose.cu"),
	"fill": func(rows, cols int) Launches {
		return Launches{Kernels: []Kernel{flat("fill", "elementwise.cu", ceilDiv(rows*cols, flatElems))}}
	},

	"amax_columns": strips("amax_columns", "quantize.cu", 1),
	"amax":         counted("amax", "quantize.cu", 4),
	"cast_health":  counted("cast_health", "health.cu", 48),

	"update_scale": func(_, cols int) Launches {
		return Launches{Kernels: []Kernel{flat("update_scale", "scale.cu", ceilDiv(cols, flatThreads))}}
	},
	"step_mu": func(_, cols int) Launches {
		return Launches{Kernels: []Kernel{flat("step_mu", "scale.cu", ceilDiv(cols, flatThreads))}}
	},
	"push_history": func(_, cols int) Launches {
		return Launches{Kernels: []Kernel{flat("push_history", "scale.cu", ceilDiv(cols, flatThreads))}}
	},
	"smooth_scale": one("smooth_scale", "scale.cu"),
	"magnitudes": func(rows, cols int) Launches {
		return Launches{Kernels: []Kernel{flat("magnitudes", "scale.cu", ceilDiv(rows*cols, flatThreads))}}
	},

	"rms_norm": wholeRows("rms_norm", "norm.cu"),
	"rms_norm_grad": func(rows, cols int) Launches {
		l := wholeRows("rms_norm_grad", "norm.cu")(rows, cols)
		l.Kernels = append(l.Kernels, flat("rms_norm_grad_gain", "norm.cu", ceilDiv(cols, flatThreads)))
		l.Scratch = 4 * int64(ceilDiv(rows, tileRows)) * int64(cols)
		return l
	},

	"swiglu":        tiles("swiglu", "mlp.cu"),
	"swiglu_by_row": wholeRows("swiglu_by_row", "mlp.cu"),
	"swiglu_grad":   tiles("swiglu_grad", "mlp.cu"),
	"swiglu_amax":   strips("swiglu_amax", "mlp.cu", 2),

	"embed": tiles("embed", "embed.cu"),
	"embed_grad": func(rows, cols int) Launches {
		return Launches{Kernels: []Kernel{
			flat("embed_grad_begin", "embed.cu", 1024),
			{"embed_grad", "embed.cu", [3]int{rows, ceilDiv(cols, 8*flatThreads), 1}, flatThreads, 0},
		}}
	},
	"cache_write": tiles("cache_write", "embed.cu"),

	"cross_entropy":       losses("cross_entropy"),
	"cross_entropy_parts": losses("cross_entropy_parts"),
	"softmax_stats":       losses("softmax_stats"),
	"sum":                 one("sum", "loss.cu"),

	"step_gate": one("step_gate", "optimizer.cu"),
	"row_cosine": func(rows, _ int) Launches {
		return Launches{Kernels: []Kernel{flat("row_cosine", "norm.cu", ceilDiv(rows, flatThreads/32))}}
	},
}

// Rope returns the launches of op rope, for heads of this size. Its blocks keep the
// cosines and sines of their rows in shared memory.
func Rope(rows, cols, headDim int) Launches {
	l := tiles("rope", "rope.cu")(rows, cols)
	l.Kernels[0].Shared = headDim/2*8 + tileRows*(headDim/2)*8
	return l
}

// SumParts returns the launches of op sum_parts, for the rows and cols of its Out.
func SumParts(rows, cols int) Launches {
	return Launches{Kernels: []Kernel{flat("sum_parts", "sum_parts.cu", ceilDiv(rows*cols, flatElems))}}
}

// Hadamard returns the launches of op hadamard, for groups of this size.
func Hadamard(rows, cols, size int, columns bool) Launches {
	high, wide := hadamardGroups, size
	if columns {
		high, wide = size, hadamardGroups
	}
	return Launches{Kernels: []Kernel{{"hadamard", "hadamard.cu", [3]int{ceilDiv(rows, high), ceilDiv(cols, wide), 1}, flatThreads, 0}}}
}

// LinearUpdate returns the launches of op linear_update for a State of rows × cols, one row
// without block scales, and the elements of a part. Its words beside rows and cols are the
// elements of a scale, 0 for one scale or none, those of a part, and fp8.NameKey of State.
func LinearUpdate(rows, cols, block int, oneScale bool) (l Launches, span int) {
	if span = block; block == 0 {
		span = flatElems
	}
	l.Kernels = []Kernel{flat("linear_update", "linear_update.cu", rows*ceilDiv(cols, span))}
	if oneScale {
		single := func(name string) Kernel { return one(name, "linear_update.cu")(0, 0).Kernels[0] }
		amax := flat("linear_update_amax", "linear_update.cu", rows*ceilDiv(cols, span))
		l = Launches{[]Kernel{single("linear_update_begin"), amax, l.Kernels[0], single("linear_update_end")}, 8}
	}
	return l, span
}

// Quantize returns the launches of op quantize. scales lists the number of block scales
// of each cast, 0 for a cast with one scale.
func Quantize(rows, cols int, scales []int) Launches {
	total := 0
	for _, n := range scales {
		total += n
	}
	if total == 0 {
		return tiles("quantize", "quantize.cu")(rows, cols)
	}
	l := tiles("quantize_blocks", "quantize.cu")(rows, cols)
	l.Kernels = append([]Kernel{flat("quantize_scales", "quantize.cu", ceilDiv(32*total, flatThreads))}, l.Kernels...)
	l.Scratch = 4 * int64(total)
	return l
}
