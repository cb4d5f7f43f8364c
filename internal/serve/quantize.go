package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"octet/backend"
	"octet/fp8"
	"octet/internal/arrays"
	"octet/internal/quantize"
	"octet/recipe"
)

// quantizeRequest asks for the codes of a matrix with scales from its own values, as octet
// quantize computes them. It has one buffer, the values.
type quantizeRequest struct {
	Rows        int64  `json:"rows"`
	Cols        int64  `json:"cols"`
	Source      string `json:"source"` // fp32, bf16 or fp16
	Format      string `json:"format"`
	Device      string `json:"device"`
	Granularity string `json:"granularity"`
	Scale       string `json:"scale"` // format of the scales
	Rounding    string `json:"rounding"`
	Seed        uint64 `json:"seed"`
	Name        string `json:"name"` // selects the random bits, too
}

// quantizeReply describes the buffers: the codes, one in a byte, and the scales.
type quantizeReply struct {
	Format        string  `json:"format"`
	Block         string  `json:"block"`
	ScaleFormat   string  `json:"scale_format"`
	ScaleRows     int     `json:"scale_rows"`
	ScaleCols     int     `json:"scale_cols"`
	Outer         number  `json:"outer"` // multiplies every scale; 1: none
	Bits          float64 `json:"bits_per_element"`
	RelativeNoise number  `json:"relative_noise"` // squared error over squared values
	Saturated     number  `json:"saturated"`      // share of the elements
	Flushed       number  `json:"flushed"`
}

// number is null in JSON if it is not finite.
type number float32

func (n number) MarshalJSON() ([]byte, error) {
	if x := float64(n); math.IsNaN(x) || math.IsInf(x, 0) {
		return []byte("null"), nil
	}
	return json.Marshal(float32(n))
}

func quantizeMatrix(ctx context.Context, s *server, q *request) (a reply, err error) {
	var c quantizeRequest
	if err := q.fields(&c); err != nil {
		return a, valueError{err}
	}
	from, err := sourceOf(c.Source)
	if err != nil {
		return a, err
	}
	row, err := c.cast()
	if err != nil {
		return a, valueError{err}
	}
	if err := checkMatrix(c.Rows, c.Cols); err != nil {
		return a, err
	}
	size := c.Rows * c.Cols * int64(from.Size())
	if err := q.sized(size); err != nil {
		return a, valueError{err}
	}
	raw, err := q.read(size)
	if err != nil {
		return a, err
	}
	m := arrays.Matrix{Name: c.Name, Rows: int(c.Rows), Cols: int(c.Cols), Values: make([]float32, c.Rows*c.Cols)}
	from.Decode(m.Values, raw)
	on, err := backendOf(c.Device)
	if err != nil {
		return a, err
	}
	dev, err := backend.Open(on, backend.Options{Threads: s.threads})
	if err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	r, err := quantize.Cast(ctx, dev, m, row, c.Seed)
	if err != nil {
		return a, valueError{err}
	}
	return quantized(r), nil
}

// cast returns the row of a recipe that the request describes.
func (c quantizeRequest) cast() (row recipe.Cast, err error) {
	row.Scaling = recipe.Current
	if row.DType, err = formatOn(c.Device, c.Format); err != nil {
		return row, err
	}
	if row.Granularity, err = recipe.ParseGranularity(c.Granularity); err != nil {
		return row, fmt.Errorf("granularity: %w", err)
	}
	if row.Scale, err = recipe.ParseScaleFormat(c.Scale); err != nil {
		return row, fmt.Errorf("scale: %w", err)
	}
	row.Rounding, err = fp8.ParseRounding(c.Rounding)
	return row, err
}

func quantized(r *quantize.Result) reply {
	h := r.Health
	fields := quantizeReply{
		Format: r.DType.String(), Block: r.Block.String(), ScaleFormat: r.ScaleDType.String(), ScaleRows: r.ScaleRows, ScaleCols: r.ScaleCols,
		Outer: 1, Bits: r.Bits(),
		RelativeNoise: number(h[backend.HealthNoise]), Saturated: number(h[backend.HealthSaturated]), Flushed: number(h[backend.HealthFlushed]),
	}
	if r.Cast.Scale.Outer {
		fields.Outer = number(r.Outer)
	}
	codes := r.Codes
	if r.DType.Size() == 0 {
		codes = make([]byte, r.Rows*r.Cols)
		fp8.Unpack4(codes, r.Codes)
	}
	return reply{fields, [][]byte{codes, r.Scale}}
}
