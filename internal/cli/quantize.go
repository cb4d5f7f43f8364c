package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"

	"octet/backend"
	"octet/fp8"
	"octet/internal/arrays"
	"octet/internal/gemm"
	"octet/internal/quantize"
	"octet/internal/writers"
	"octet/recipe"
)

type quantizeCmd struct {
	File     string `arg:"" name:"FILE" help:"A .npy or safetensors file of matrices in FP64, FP32, FP16 or BF16."`
	Tensor   string `placeholder:"NAME" help:"Name of a tensor of a safetensors file, or a glob pattern; default: all tensors of floating-point numbers."`
	Format   string `required:"" placeholder:"NAME" help:"Format of the codes: e4m3, e5m2, e2m1, e2m3, e3m2, int8, int4, or another e<exponent bits>m<mantissa bits>."`
	Rounding string `default:"nearest" placeholder:"NAME" help:"nearest (ties to even) or stochastic; default: ${default}."`
	Seed     uint64 `default:"1" placeholder:"N" help:"Seed of stochastic rounding; default: ${default}."`
	Out      string `placeholder:"FILE" help:"Write codes and scales to this safetensors file, or, of one matrix, to this .npy file and others beside it."`
	JSON     bool   `help:"Print one JSON object for each tensor."`
	castFlags
	device
}

// castFlags hold the part of a recipe's row that says how an operand is scaled.
type castFlags struct {
	Granularity string `default:"tensor" placeholder:"NAME" help:"Elements that share a scale: tensor, row, or a block's rows and columns, such as 1x32 and 128x128; default: ${default}."`
	Scale       string `default:"pow2" placeholder:"NAME" help:"Format of the scales: pow2, fp32, e8m0, e8m0:floor, or a format such as e4m3, with +fp32 for an outer scale per tensor; default: ${default}."`
}

// cast returns the cast to a format that the flags describe.
func (f castFlags) cast(flag, format, rounding string) (c recipe.Cast, err error) {
	c = recipe.Cast{Scaling: recipe.Current}
	if c.DType, err = fp8.ParseDType(format); err != nil {
		return c, fmt.Errorf("--%s: %w", flag, err)
	}
	if !c.DType.IsQuantized() {
		return c, fmt.Errorf("--%s %s: expected a format of up to eight bits, such as e4m3, e2m1 and int8", flag, format)
	}
	if c.Granularity, err = recipe.ParseGranularity(f.Granularity); err == nil && c.Granularity == (recipe.Granularity{}) {
		err = errors.New("it is empty (use tensor, row, or a block such as 1x32)")
	}
	if err != nil {
		return c, fmt.Errorf("--granularity: %w", err)
	}
	if c.Scale, err = recipe.ParseScaleFormat(f.Scale); err == nil && c.Scale == (recipe.ScaleFormat{}) {
		err = errors.New("it is empty (use pow2, fp32, e8m0 or e4m3+fp32)")
	}
	if err != nil {
		return c, fmt.Errorf("--scale: %w", err)
	}
	if c.Rounding, err = fp8.ParseRounding(rounding); err != nil {
		return c, fmt.Errorf("--rounding: %w", err)
	}
	return c, c.Validate()
}

// Help returns the text that quantize --help adds.
func (quantizeCmd) Help() string {
	return `The backend casts each matrix with the ops of a training step. Scales come from the matrix itself; blocks lie along the rows, K of a GEMM. FP64 is rounded to FP32 first.

"saturated" elements exceed the largest value by more than half a step; "flushed" ones become 0. "lowest" and "highest" are the shares of the stored scales at the ends of their format. Zeros of a block that is all 0 are not flushed. The relative error is the norm of the errors over the norm of the matrix. scale_inv is the stored scale, which multiplies a code to give its value. The histogram counts the codes by magnitude, or by binade in formats of more than four bits.

A safetensors file gets NAME, NAME.scale_inv and NAME.outer (the outer scale_inv, of the whole matrix). A .npy file holds one code in each byte, as do the files of the scales, unless these are FP32.

Examples:
  octet quantize w.npy --format e2m1 --granularity 1x16 --scale e4m3+fp32
  octet quantize model.safetensors --tensor '*.up_proj.weight' --format e4m3
  octet quantize w.npy --format e4m3 --granularity row --out q.safetensors`
}

// quantized is a line of quantize --json.
type quantized struct {
	Tensor        string         `json:"tensor"`
	Shape         [2]int         `json:"shape"`
	Source        string         `json:"source"` // format in the file
	Format        string         `json:"format"`
	Granularity   string         `json:"granularity"`
	Scale         string         `json:"scale"`
	Rounding      string         `json:"rounding"`
	Bits          float64        `json:"bits_per_element"` // scales included
	NaN           int            `json:"nan"`
	Infinite      int            `json:"infinite"`
	NotFinite     *[2]int        `json:"first_not_finite,omitempty"` // row and column
	Amax          writers.Float  `json:"amax"`
	RelativeError writers.Float  `json:"relative_error"`
	SQNR          writers.Float  `json:"sqnr_db"` // null: no error, or not finite
	Saturated     float64        `json:"saturated"`
	Flushed       float64        `json:"flushed"`
	Blocks        int            `json:"blocks"`
	ZeroBlocks    float64        `json:"zero_blocks"`
	ScaleInvMin   writers.Float  `json:"scale_inv_min"`
	ScaleInvMax   writers.Float  `json:"scale_inv_max"`
	ScaleInvMean  writers.Float  `json:"scale_inv_log2_mean"`
	ScaleInvStd   writers.Float  `json:"scale_inv_log2_std"`
	Lowest        float64        `json:"scale_inv_lowest"`  // share at the smallest scale_inv of the format
	Highest       float64        `json:"scale_inv_highest"` // share at the largest
	Outer         *writers.Float `json:"outer,omitempty"`
	Histogram     []quantize.Bin `json:"histogram"`
}

func (c quantizeCmd) Run(ctx context.Context, t *terminal) error {
	cast, err := c.cast("format", c.Format, c.Rounding)
	if err != nil {
		return badInput(err)
	}
	ext := ""
	if c.Out != "" {
		if ext, err = arrays.CheckOut(c.Out, c.File); err != nil {
			return badInput(fmt.Errorf("--out: %w", err))
		}
	}
	var results []arrays.Tensor
	seen := 0
	err = arrays.Each(c.File, c.Tensor, func(m arrays.Matrix) error {
		if seen++; seen > 1 && ext == ".npy" {
			return fmt.Errorf("--out %s: %s holds several matrices, a .npy file holds one: name a .safetensors file, or one matrix with --tensor", c.Out, c.File)
		}
		r, err := c.quantize(ctx, m, cast)
		if err != nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
		if c.Out != "" {
			results = append(results, r.Tensors()...)
		}
		q := newQuantized(m, r)
		if c.JSON {
			return json.NewEncoder(t.out).Encode(q)
		}
		if seen > 1 {
			fmt.Fprintln(t.out)
		}
		return q.print(prose(&printable{to: t.out})) // a file may hold names with control characters
	})
	if err != nil {
		return badInput(err)
	}
	return c.write(ext, results, cast)
}

// quantize casts one matrix. Each has a device of its own, because a backend is bound once.
func (c quantizeCmd) quantize(ctx context.Context, m arrays.Matrix, cast recipe.Cast) (r *quantize.Result, err error) {
	err = c.onDevice(func(dev backend.Backend) error {
		spec := dev.Spec()
		if cast.DType, err = gemm.Format(&spec, cast.DType.String()); err != nil {
			return err
		}
		r, err = quantize.Cast(ctx, dev, m, cast, c.Seed)
		return err
	})
	return r, err
}

// write writes the codes and scales to --out.
func (c quantizeCmd) write(ext string, list []arrays.Tensor, cast recipe.Cast) error {
	if ext == "" {
		return nil
	}
	return arrays.Write(c.Out, list, map[string]string{
		"scale": cast.Scale.String(), "rounding": cast.Rounding.String(),
	})
}

func newQuantized(m arrays.Matrix, r *quantize.Result) quantized {
	h := func(field int) float64 { return float64(r.Health[field]) }
	q := quantized{
		Tensor: m.Name, Shape: [2]int{m.Rows, m.Cols}, Source: m.Source,
		Format: r.Cast.DType.String(), Granularity: r.Cast.Granularity.String(), Scale: r.Cast.Scale.String(), Rounding: r.Cast.Rounding.String(),
		Bits: r.Bits(), Amax: writers.Float(h(backend.HealthAmax)),
		RelativeError: writers.Float(math.Sqrt(h(backend.HealthNoise))), SQNR: writers.Float(-10 * math.Log10(h(backend.HealthNoise))),
		Saturated: h(backend.HealthSaturated), Flushed: h(backend.HealthFlushed),
		Blocks: r.ScaleRows * r.ScaleCols, ZeroBlocks: h(backend.HealthZeroBlocks),
		ScaleInvMin: writers.Float(h(backend.HealthScaleInvMin)), ScaleInvMax: writers.Float(h(backend.HealthScaleInvMax)),
		ScaleInvMean: writers.Float(h(backend.HealthScaleInvLog2Mean)), ScaleInvStd: writers.Float(h(backend.HealthScaleInvLog2Std)),
		Lowest: h(backend.HealthLowestScales), Highest: h(backend.HealthHighestScales),
		Histogram: r.Histogram(),
	}
	for i, v := range m.Values {
		switch {
		case v-v == 0:
			continue
		case v != v:
			q.NaN++
		default:
			q.Infinite++
		}
		if q.NotFinite == nil {
			q.NotFinite = &[2]int{i / m.Cols, i % m.Cols}
		}
	}
	if r.Cast.Scale.Outer {
		q.Outer = new(writers.Float(r.Outer))
	}
	return q
}

// print prints the result in 80 columns.
func (q quantized) print(out io.Writer) error {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "tensor\t%s: %s %v, amax %.4g\n", q.Tensor, q.Source, q.Shape, float64(q.Amax))
	fmt.Fprintf(w, "cast\t%s %s %s %s, %.4g bits per element\n", q.Format, q.Granularity, q.Scale, q.Rounding, q.Bits)
	if q.NotFinite != nil {
		fmt.Fprintf(w, "not finite\t%d NaN, %d infinite, the first at %v: the error has no value\n", q.NaN, q.Infinite, *q.NotFinite)
	}
	sqnr := fmt.Sprintf("%.2f dB", float64(q.SQNR))
	if q.RelativeError == 0 {
		sqnr = "no error"
	}
	fmt.Fprintf(w, "error\trelative %.4g, SQNR %s\n", float64(q.RelativeError), sqnr)
	fmt.Fprintf(w, "elements\t%s saturated, %s flushed to zero\n", smallShare(q.Saturated), smallShare(q.Flushed))
	if q.Blocks > 1 {
		fmt.Fprintf(w, "blocks\t%s, %s of zeros\n", writers.Count(int64(q.Blocks)), smallShare(q.ZeroBlocks))
		fmt.Fprintf(w, "scale_inv\t%s to %s, log2 %.2f ± %.2f; %s lowest, %s highest\n", power(q.ScaleInvMin), power(q.ScaleInvMax),
			float64(q.ScaleInvMean), float64(q.ScaleInvStd), smallShare(q.Lowest), smallShare(q.Highest))
	} else {
		fmt.Fprintf(w, "scale_inv\t%s\n", power(q.ScaleInvMin))
	}
	if q.Outer != nil {
		fmt.Fprintf(w, "outer\t%s\n", power(*q.Outer))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	text.WriteString(histogramText(q.Histogram, q.Shape[0]*q.Shape[1]))
	_, err := io.WriteString(out, text.String())
	return err
}

// histogramText returns a line with a bar for each bin, the largest of 50 characters.
func histogramText(bins []quantize.Bin, total int) string {
	most := 1
	for _, b := range bins {
		most = max(most, b.Count)
	}
	var text strings.Builder
	for _, b := range bins {
		const longest = 50
		bar := strings.Repeat("#", (b.Count*longest+most/2)/most)
		fmt.Fprintf(&text, "%s\n", strings.TrimRight(fmt.Sprintf("  %-6s %8s  %s", b.Value, smallShare(float64(b.Count)/float64(total)), bar), " "))
	}
	return text.String()
}

// smallShare writes a share in percent with three digits, however small.
func smallShare(x float64) string { return fmt.Sprintf("%.3g%%", 100*x) }
