//go:build cuda && cgo && linux

package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"text/tabwriter"

	"octet/csrc/libcuda"
	"octet/csrc/libcuda/kernels"
	"octet/csrc/libcuda/sass"
)

// A path is how a step of fp8-smooth calls a kernel.
type path struct {
	kernel, what, source string
	threads              int
	// args are the words of the arguments for a block of so many elements, whose
	// addresses are the image's.
	args     func(m *image, elems int) []uint64
	from, to int // elements; what is counted is the difference, from 0 with the block's start
}

// image is the memory of a launch: tables, and tensors whose elements are all equal.
type image struct {
	words map[uint64]uint32
	fills []uint32 // of tensors, by their address / 2^32
}

// filled is the address of as many of these words as anyone asks for.
func (m *image) filled(word uint32) uint64 {
	m.fills = append(m.fills, word)
	return uint64(len(m.fills)-1) << 32
}

func (m *image) table(words []uint64) uint64 {
	at := m.filled(0)
	for i, w := range words {
		m.words[at+8*uint64(i)], m.words[at+8*uint64(i)+4] = uint32(w), uint32(w>>32)
	}
	return at
}

// one is 1 in a format, as often as it fits a word.
var one = map[kernels.Format]uint32{
	kernels.F32: 0x3f800000, kernels.BF16: 0x3f803f80, kernels.F16: 0x3c003c00,
	kernels.E4M3: 0x38383838, kernels.E5M2: 0x3c3c3c3c, kernels.I32: 1,
}

func (m *image) tensor(f kernels.Format, ld int, scaled bool) []uint64 {
	t := []uint64{m.filled(one[f]), uint64(ld), uint64(f), 0}
	if scaled {
		t[3] = m.filled(one[kernels.F32])
	}
	return t
}

func (m *image) vector(f kernels.Format) []uint64 { return m.tensor(f, 0, false) }

var none = make([]uint64, kernels.TensorWords)

// casts are those of one result: FP8 with one scale and an amax, a format that comes
// again transposed; BF16 as it is.
func (m *image) casts(cols int, flags kernels.Flag, formats ...kernels.Format) []uint64 {
	words := make([]uint64, kernels.CastsWords)
	words[0], words[1] = uint64(len(formats)), m.filled(1)
	scale, amax := m.filled(one[kernels.F32]), m.filled(0)
	before := kernels.Format(99)
	for i, f := range formats {
		c := words[2+i*kernels.CastWords:]
		c[0], c[1], c[2] = m.filled(0), uint64(cols), uint64(f)
		if f != kernels.BF16 {
			c[3], c[4], c[5], c[6] = scale, amax, uint64(flags), 1
		}
		if f == before {
			c[1] = tall
			c[4] = 0
			c[5] |= uint64(kernels.Transpose)
		}
		before = f
	}
	return words
}

const tall = 4096 // rows of a matrix

func join(parts ...[]uint64) (all []uint64) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

func words(v ...int) (w []uint64) {
	for _, x := range v {
		w = append(w, uint64(x))
	}
	return w
}

func paths() []path {
	const e4, e5, bf, f16, f32, random = kernels.E4M3, kernels.E5M2, kernels.BF16, kernels.F16, kernels.F32, kernels.Stochastic | kernels.Tokens
	tiles := func(kernel, what, source string, args func(m *image, cols int) []uint64) path {
		return path{kernel, what, source, 512, func(m *image, n int) []uint64 { return args(m, n/32) }, 32 * 512, 32 * 1024}
	}
	return []path{
		tiles("quantize", "FP16 to E4M3, both", "quantize.cu", func(m *image, n int) []uint64 {
			return join(m.tensor(f16, n, true), none, none, m.casts(n, 0, e4, e4), words(tall, n, 0))
		}),
		tiles("quantize", "the same, factor of columns", "quantize.cu", func(m *image, n int) []uint64 {
			return join(m.tensor(f16, n, true), none, m.vector(f32), m.casts(n, 0, e4, e4), words(tall, n, 0))
		}),
		tiles("quantize", "BF16 to E4M3", "quantize.cu", func(m *image, n int) []uint64 {
			return join(m.tensor(bf, n, false), none, none, m.casts(n, 0, e4), words(tall, n, 0))
		}),
		tiles("rms_norm", "BF16 to E4M3, both", "norm.cu", func(m *image, n int) []uint64 {
			return join(m.tensor(bf, n, false), m.vector(f32), m.casts(n, 0, e4, e4), m.vector(f32), words(tall, n, 0, 0))
		}),
		tiles("rms_norm_grad", "FP32, BF16 twice, to E5M2 both, BF16", "norm.cu", func(m *image, n int) []uint64 {
			return join(m.tensor(f32, n, false), m.tensor(bf, n, false), m.vector(f32), m.vector(f32), m.tensor(bf, n, false),
				m.casts(n, random, e5, e5, bf), m.vector(f32), words(tall, n, 1), []uint64{m.filled(0)})
		}),
		tiles("rope", "BF16", "rope.cu", func(m *image, n int) []uint64 {
			return join(m.tensor(bf, n, false), m.vector(kernels.I32), m.casts(n, 0, bf), words(tall, n, tall, 128), words(0, 0, 0))
		}),
		tiles("rope", "back, BF16 to E5M2, both", "rope.cu", func(m *image, n int) []uint64 {
			return join(m.tensor(bf, n, false), m.vector(kernels.I32), m.casts(n, random, e5, e5), words(tall, n, tall, 128), words(0, 1, 0))
		}),
		tiles("swiglu", "BF16 to E4M3, both", "mlp.cu", func(m *image, n int) []uint64 {
			return join(m.tensor(bf, n, false), m.tensor(bf, n, false), m.vector(f32), none, m.casts(n, 0, e4, e4), words(tall, n, 0, 0, 0))
		}),
		tiles("swiglu_grad", "to E5M2 twice, both, stochastic", "mlp.cu", func(m *image, n int) []uint64 {
			return join(m.tensor(bf, n, false), m.tensor(bf, n, false), m.tensor(bf, n, false), m.vector(f32), none,
				m.casts(n, random, e5, e5), m.casts(n, random, e5, e5), words(tall, n, 0))
		}),
		tiles("add", "BF16", "elementwise.cu", func(m *image, n int) []uint64 {
			return join(m.tensor(bf, n, false), m.tensor(bf, n, false), m.casts(n, 0, bf), words(tall, n, 0))
		}),
		{"amax_columns", "FP16", "quantize.cu", 512, func(m *image, n int) []uint64 {
			return join(m.tensor(f16, 256, true), m.vector(f32), words(256, n/256), []uint64{m.filled(0)})
		}, 0, 256 * 256},
		{"swiglu_amax", "BF16", "mlp.cu", 512, func(m *image, n int) []uint64 {
			return join(m.tensor(bf, 256, false), m.tensor(bf, 256, false), m.vector(f32), m.vector(f32), none, none, words(256, n/256), []uint64{m.filled(0)})
		}, 0, 256 * 256},
		{"amax", "BF16", "quantize.cu", 256, func(m *image, n int) []uint64 {
			return join(m.tensor(bf, n, false), m.vector(f32), words(1, n), []uint64{m.filled(0)})
		}, 4096, 8192},
		{"sum_squares", "FP32", "optimizer.cu", 256, func(m *image, n int) []uint64 {
			table, chunks, _ := kernels.SquareTable([]kernels.Square{{Address: m.filled(one[f32]), LD: n, Rows: 1, Cols: n}})
			return join([]uint64{m.table(table), 1, uint64(chunks)}, m.vector(f32), []uint64{m.filled(0)})
		}, 8192, 16384},
		{"cross_entropy", "FP32 to BF16", "loss.cu", 512, func(m *image, n int) []uint64 {
			return join(m.tensor(f32, n, false), m.vector(kernels.I32), m.vector(kernels.I32), m.vector(f32), m.tensor(bf, n, false), words(1, n, n, 0))
		}, 4096, 8192},
		{"adamw_amax", "FP16, E4M3, E5M2", "optimizer.cu", 256, adam(f16, e4, e5), 4096, 8192},
		{"adamw", "the same, stochastic", "optimizer.cu", 256, adam(f16, e4, e5), 4096, 8192},
		{"adamw", "FP32", "optimizer.cu", 256, adam(f32, f32, f32), 4096, 8192},
	}
}

func adam(formats ...kernels.Format) func(m *image, n int) []uint64 {
	return func(m *image, n int) []uint64 {
		a := kernels.Adam{Grad: m.filled(one[kernels.F32]), LD: n, Rows: 1, Cols: n}
		random := 0
		for k, f := range formats {
			a.State[k] = kernels.AdamState{Address: m.filled(one[f]), Format: f, NameKey: 1}
			if f != kernels.F32 {
				random = 1
				a.State[k].ScaleInv = m.filled(one[kernels.F32])
			}
		}
		table, chunks, _, err := kernels.AdamTable([]kernels.Adam{a}, true, true)
		if err != nil {
			panic(err)
		}
		skip := []uint64{m.filled(0), 0, uint64(kernels.I32), 0}
		rule := m.filled(one[kernels.F32])
		return join([]uint64{m.table(table), 1, uint64(chunks)}, m.vector(kernels.I32), m.vector(kernels.I32), m.vector(kernels.F32), skip, m.vector(kernels.F32),
			words(0, 0, 0, 0, 0, random, 1, random, 0, 0, 0), []uint64{rule})
	}
}

// kernelsOf are the kernels of a source, as the assembler made them.
type kernelsOf struct {
	code map[string][]sass.Instruction
	file *elf.File
}

func disassemble(tool string, cubin []byte) (k kernelsOf, err error) {
	dir, err := os.MkdirTemp("", "usage")
	if err != nil {
		return k, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	name := filepath.Join(dir, "kernels.cubin")
	if err := os.WriteFile(name, cubin, 0o600); err != nil {
		return k, err
	}
	out, err := exec.Command(tool, "-c", name).Output()
	if err != nil {
		return k, fmt.Errorf("%s: %w", tool, err)
	}
	if k.code, err = sass.Parse(string(out)); err != nil {
		return k, err
	}
	// CUDA 12 has the toolkit's version in e_version, where debug/elf demands 1.
	cubin = bytes.Clone(cubin)
	binary.LittleEndian.PutUint32(cubin[20:], uint32(elf.EV_CURRENT))
	k.file, err = elf.NewFile(bytes.NewReader(cubin))
	return k, err
}

// run counts a block of so many elements.
func (k kernelsOf) run(p path, elems int) (sass.Count, error) {
	m := &image{map[uint64]uint32{}, []uint32{0}} // no tensor has the address 0
	bank := make([]byte, 0x210)
	binary.LittleEndian.PutUint32(bank, uint32(p.threads)) // blockDim.x
	binary.LittleEndian.PutUint32(bank[0x28:], 0x1000)     // the stack
	for _, w := range p.args(m, elems) {
		bank = binary.LittleEndian.AppendUint64(bank, w)
	}
	b := sass.Block{
		Code: k.code[p.kernel], Threads: p.threads, Constant: map[int][]byte{0: bank},
		Global: m.words, Fill: func(at uint64) uint32 { return m.fills[at>>32] },
	}
	if s := k.file.Section(".nv.constant2." + p.kernel); s != nil {
		b.Constant[2], _ = s.Data()
	}
	return b.Run()
}

// issued prints what a warp issues for 256 elements, eight of each lane, and the bytes
// that are asked of memory for one.
func issued(compiler *libcuda.Compiler, arch, tool string, out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "instructions\tloaded\tstored\t  for 256 elements, bytes of one\n")
	known := map[string]kernelsOf{}
	for _, p := range paths() {
		k, ok := known[p.source]
		if !ok {
			source := libcuda.Source{Name: p.source, Text: kernels.Sources()[p.source], Headers: kernels.Headers()}
			cubin, err := compiler.Compile(source, arch, kernels.Options()...)
			if err != nil {
				return err
			}
			if k, err = disassemble(tool, cubin); err != nil {
				return err
			}
			known[p.source] = k
		}
		var one sass.Count
		if p.from > 0 {
			var err error
			if one, err = k.run(p, p.from); err != nil {
				return fmt.Errorf("%s: %w", p.kernel, err)
			}
		}
		two, err := k.run(p, p.to)
		if err != nil {
			return fmt.Errorf("%s: %w", p.kernel, err)
		}
		n := float64(p.to - p.from)
		fmt.Fprintf(w, "%.0f\t%.1f\t%.1f\t  %s, %s\n", 256*float64(two.Issued-one.Issued)/n,
			float64(two.Loaded-one.Loaded)/n, float64(two.Stored-one.Stored)/n, p.kernel, p.what)
	}
	return w.Flush()
}
