// Package export writes a trained model as a Hugging Face folder for other programs:
// config.json, model.safetensors and the files of the tokenizer.
//
// The export folds the smoothing scales c of Smooth-SwiGLU into the weights: it divides row
// i of up_proj by c_i and multiplies column i of down_proj by c_i. The model's function does
// not change, bit for bit if c is a power of two and nothing is quantized. Any Llama runtime
// then computes the smoothed hidden activation, which a per-tensor scale fits.
//
// In FP8, every linear layer of the decoder has E4M3 codes with one scale, and one scale for
// its input, from the amaxes of the run's last updates. The layout is that of
// compressed-tensors ("float-quantized", static per-tensor scales), which transformers and
// vLLM read. Models that package ptq quantized have its layouts for scales per row, token
// and group.
package export

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"octet/checkpoint"
	"octet/fp8"
	"octet/infer"
	"octet/internal/disk"
	"octet/internal/ptq"
	"octet/internal/writers"
	"octet/safetensors"
	"octet/tokenizer"
)

// Formats are the formats of exported weights, besides that of Model.Quantized.
var Formats = []string{"fp32", "bf16", "fp8"}

// format says how weights are written.
type format struct {
	dtype, torch string // of tensors that are not quantized
	// linear returns the tensors of a linear layer, and size their bytes; nil: as others.
	linear func(m Model, t checkpoint.Tensor) ([]safetensors.Source, error)
	size   func(t checkpoint.Tensor) int64
	// fp8 says that config.json describes static per-tensor FP8. quantization replaces that
	// description unless it is nil.
	fp8          bool
	quantization any
}

var formats = map[string]format{
	"fp32": {dtype: "F32", torch: "float32"},
	"bf16": {dtype: "BF16", torch: "bfloat16"},
	"fp8": {
		dtype: "BF16", torch: "bfloat16", linear: Model.staticFP8, fp8: true,
		size: func(t checkpoint.Tensor) int64 { return t.Elems() + 8 }, // two scales
	},
}

// format returns the row of a format; it knows that of m.Quantized by its scheme's name.
func (m Model) format(name string) (format, error) {
	if m.Quantized != nil && name == m.Quantized.Scheme.Name {
		return schemeFormat(m.Quantized), nil
	}
	f, ok := formats[name]
	if ok && f.linear != nil && m.Config.Experts.Experts > 0 {
		return f, fmt.Errorf("format %s has no layout for experts here; use fp32 or bf16", name)
	}
	if !ok {
		return f, fmt.Errorf("format %q is unknown; use one of %s", name, strings.Join(Formats, ", "))
	}
	return f, nil
}

// Model is the model to export.
type Model struct {
	Config checkpoint.Config
	// Param returns a parameter by name, in FP32; List has all names and shapes.
	Param func(name string) ([]float32, error)
	List  []checkpoint.Tensor
	// ScaleInv returns the scale_inv of a linear layer's input by the input's name:
	// "layers.0.mlp.input". Only FP8 calls it.
	ScaleInv func(name string) (float32, error)
	// Smooth holds the smoothing scales of each MLP, in the order of layers and experts; nil if there
	// is nothing to fold.
	Smooth []infer.Smoothing
	// Tokenizer has the files of the tokenizer.
	Tokenizer []tokenizer.File
	// Quantized is what Quantize sets; its scheme is then a format.
	Quantized *ptq.Model
}

// Memory returns how many bytes Write needs: the values of the largest tensor, in FP32 and
// as they are written.
func (m Model) Memory() int64 {
	largest := int64(0)
	for _, t := range m.List {
		largest = max(largest, t.Elems())
	}
	return 8 * largest
}

// Size returns how many bytes of tensors Write writes in a format; 0 for one that Write
// refuses.
func (m Model) Size(name string) int64 {
	f, err := m.format(name)
	if err != nil {
		return 0
	}
	total := int64(0)
	for _, t := range m.List {
		switch {
		case f.linear != nil && isLinear(t.Name):
			total += f.size(t)
		case f.dtype == "F32":
			total += 4 * t.Elems()
		default:
			total += 2 * t.Elems()
		}
	}
	return total
}

// Write makes the folder dir, which must not exist. The folder appears complete or not at
// all; after Write returns, it survives a power cut. Write checks the free space of the file
// system before it writes. When ctx is cancelled, Write stops, removes what it wrote and
// returns the error of ctx. It calls report, if not nil, with the bytes written so far.
func Write(ctx context.Context, dir, format string, m Model, report func(written int64)) (err error) {
	f, err := m.format(format)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(dir); err == nil {
		return fmt.Errorf("%s exists already; name another folder", dir)
	}
	partial := filepath.Join(filepath.Dir(dir), "."+filepath.Base(dir)+".partial")
	if err := disk.RemoveAll(partial); err != nil {
		return err
	}
	if free, ok := disk.Free(filepath.Dir(dir)); ok && free < m.Size(format) {
		return fmt.Errorf("%s in %s needs %s of disk and its file system has %s free: name a folder on a larger one, or use a smaller --format", dir, format, writers.Bytes(m.Size(format)), writers.Bytes(free))
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, disk.RemoveAll(partial))
		}
	}()
	if err := disk.MakeDirs(partial); err != nil {
		return err
	}
	if err := m.writeWeights(ctx, filepath.Join(partial, "model.safetensors"), f, m.Size(format), report); err != nil {
		return err
	}
	for _, x := range m.Tokenizer {
		if err := disk.WriteAtomic(filepath.Join(partial, x.Name), x.Data); err != nil {
			return err
		}
	}
	if err := m.writeConfig(filepath.Join(partial, "config.json"), f); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil { // cancelled during the last write
		return err
	}
	if err := disk.Move(partial, dir); err != nil {
		return err
	}
	return disk.SyncDir(filepath.Dir(dir))
}

// writeConfig writes config.json, the last file; WriteAtomic also syncs the folder's names.
func (m Model) writeConfig(path string, f format) error {
	c := m.Config
	c.TorchDType, c.FP8 = f.torch, f.fp8
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(text, &fields); err != nil {
		return err
	}
	if f.quantization != nil {
		if fields["quantization_config"], err = json.Marshal(f.quantization); err != nil {
			return err
		}
	}
	if text, err = json.MarshalIndent(fields, "", "  "); err != nil {
		return err
	}
	return disk.WriteAtomic(path, append(text, '\n'))
}

func (m Model) writeWeights(ctx context.Context, path string, f format, size int64, report func(written int64)) (err error) {
	param := m.Param
	m.Param = func(name string) ([]float32, error) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		return param(name)
	}
	var list []safetensors.Source
	for _, t := range m.List {
		if f.linear != nil && isLinear(t.Name) {
			quantized, err := f.linear(m, t)
			if err != nil {
				return err
			}
			list = append(list, quantized...)
			continue
		}
		list = append(list, source(t.Name, f.dtype, t.Shape, func(w io.Writer) error {
			x, err := m.Folded(t.Name)
			if err != nil {
				return err
			}
			if f.dtype == "F32" {
				return binary.Write(w, binary.LittleEndian, x)
			}
			codes := make([]uint16, len(x))
			fp8.EncodeBF16(codes, x)
			for i, code := range codes {
				if code&0x7f80 == 0x7f80 { // rounded up to infinity
					return fmt.Errorf("%s: element %d is %v, beyond what BF16 holds; use --format fp32", t.Name, i, x[i])
				}
			}
			return binary.Write(w, binary.LittleEndian, codes)
		}))
	}
	file, err := disk.Open(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return err
	}
	to := &piecewise{ctx: ctx, to: file, report: func(written int64) {
		if report != nil {
			report(min(written, size)) // the header is not counted
		}
	}}
	var failed error
	for i, data := range list {
		list[i].Data = func(w io.Writer) error {
			failed = data.Data(w)
			return failed
		}
	}
	err = safetensors.Write(to, list, map[string]string{"format": "pt"})
	if failed != nil {
		err = failed // this error already names the tensor
	}
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

// piecewise is a writer that writes in pieces. Between them it reports the bytes written so
// far and checks ctx.
type piecewise struct {
	ctx     context.Context
	to      io.Writer
	report  func(written int64)
	written int64
}

const pieceBytes = 1 << 20

func (p *piecewise) Write(b []byte) (n int, err error) {
	for piece := range slices.Chunk(b, pieceBytes) {
		if err := p.ctx.Err(); err != nil {
			return n, err
		}
		k, err := p.to.Write(piece)
		n += k
		p.written += int64(k)
		if err != nil {
			return n, err
		}
		p.report(p.written)
	}
	return n, nil
}

// staticFP8 returns a linear layer's codes and its two scales. To keep one weight in memory
// at a time, it reads a weight once for its amax, and again to write it.
func (m Model) staticFP8(t checkpoint.Tensor) ([]safetensors.Source, error) {
	x, err := m.Folded(t.Name)
	if err != nil {
		return nil, err
	}
	scale, ok := fp8.ScaleFor(fp8.Amax(x), fp8.E4M3.Max(), true)
	if !ok {
		scale = 1
	}
	inputInv, err := m.inputScaleInv(t.Name)
	if err != nil {
		return nil, err
	}
	module := strings.TrimSuffix(t.Name, ".weight")
	return []safetensors.Source{
		source(t.Name, "F8_E4M3", t.Shape, func(w io.Writer) error {
			x, err := m.Folded(t.Name)
			if err != nil {
				return err
			}
			codes := make([]uint8, len(x))
			fp8.Quantize8(codes, x, fp8.E4M3, scale, false)
			_, err = w.Write(codes)
			return err
		}),
		scalar(module+".weight_scale", 1/scale),
		scalar(module+".input_scale", inputInv),
	}, nil
}

func source(name, dtype string, shape []int, data func(io.Writer) error) safetensors.Source {
	s := safetensors.Source{Name: name, DType: dtype, Data: data}
	for _, n := range shape {
		s.Shape = append(s.Shape, int64(n))
	}
	return s
}

func scalar(name string, x float32) safetensors.Source {
	return source(name, "F32", []int{1}, safetensors.Bytes(fp8.AppendFloats(nil, x)))
}

// linear splits the name of a linear weight into its layer and its module: "mlp.up_proj".
func linear(name string) (layer int, module string, ok bool) {
	rest, inLayer := strings.CutPrefix(name, "model.layers.")
	rest, isWeight := strings.CutSuffix(rest, "_proj.weight")
	number, module, found := strings.Cut(rest, ".")
	n, err := strconv.ParseUint(number, 10, 31)
	if err != nil || !inLayer || !isWeight || !found {
		return 0, "", false
	}
	return int(n), module + "_proj", true
}

func isLinear(name string) bool {
	_, _, ok := linear(name)
	return ok
}

// smooth returns the smoothing scales of the i-th MLP; empty if there is nothing to fold.
func (m Model) smooth(i int) infer.Smoothing {
	if i < len(m.Smooth) {
		return m.Smooth[i]
	}
	return infer.Smoothing{}
}

// expert returns the MLP and the module of an expert's weight: 5 and "mlp.up_proj" of
// "model.layers.1.block_sparse_moe.experts.1.w3.weight" with 4 experts.
func (m Model) expert(name string) (mlp int, module string, ok bool) {
	var layer, number int
	var w string
	name = strings.ReplaceAll(strings.TrimSuffix(name, ".weight"), ".", " ")
	if n, _ := fmt.Sscanf(name, "model layers %d block_sparse_moe experts %d %s", &layer, &number, &w); n < 3 {
		return 0, "", false
	}
	return layer*m.Config.Experts.Experts + number, map[string]string{"w1": "mlp.gate_proj", "w2": "mlp.down_proj", "w3": "mlp.up_proj"}[w], true
}

// Folded returns a parameter with the smoothing scales folded in.
func (m Model) Folded(name string) ([]float32, error) {
	x, err := m.Param(name)
	mlp, module, ok := linear(name)
	if m.Config.Experts.Experts > 0 {
		mlp, module, ok = m.expert(name)
	}
	c := m.smooth(mlp).C
	if err != nil || !ok || c == nil {
		return x, err
	}
	bad := -1
	switch module {
	case "mlp.up_proj":
		cols := len(x) / len(c)
		for i := range x {
			if x[i] /= c[i/cols]; x[i]-x[i] != 0 {
				bad = i
			}
		}
	case "mlp.down_proj":
		for i := range x {
			if x[i] *= c[i%len(c)]; x[i]-x[i] != 0 {
				bad = i
			}
		}
	}
	if bad >= 0 {
		return nil, fmt.Errorf("%s: element %d is %v with its smoothing scale folded in; octet inspect shows the amaxes that the scale comes from", name, bad, x[bad])
	}
	return x, nil
}

// inputs names the input of each linear layer.
var inputs = map[string]string{
	"self_attn.q_proj": "self_attn.input", "self_attn.k_proj": "self_attn.input", "self_attn.v_proj": "self_attn.input",
	"self_attn.o_proj": "self_attn.output",
	"mlp.up_proj":      "mlp.input", "mlp.gate_proj": "mlp.input", "mlp.down_proj": "mlp.hidden",
}

func (m Model) inputScaleInv(name string) (x float32, err error) {
	layer, module, _ := linear(name)
	if s := m.smooth(layer); module == "mlp.down_proj" && s.C != nil {
		x = s.HiddenScaleInv
	} else if x, err = m.ScaleInv(fmt.Sprintf("layers.%d.%s", layer, inputs[module])); err != nil {
		return 0, err
	}
	if !(x > 0 && x <= math.MaxFloat32) {
		return 0, fmt.Errorf("%s: the scale of its input is %v: expected a positive number; octet inspect shows the amaxes that the scale comes from", name, x)
	}
	return x, nil
}
