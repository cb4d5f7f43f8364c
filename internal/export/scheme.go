package export

import (
	"encoding/binary"
	"fmt"
	"io"
	"strings"

	"octet/checkpoint"
	"octet/fp8"
	"octet/internal/ptq"
	"octet/safetensors"
)

// CheckScheme returns an error for a scheme that no runtime reads in a model of this shape:
// weights of 2 or 3 bits, and groups that do not divide a row.
func CheckScheme(s ptq.Scheme, c checkpoint.Config) error {
	if s.Bits == 0 {
		return nil
	}
	if s.Bits != 4 {
		return fmt.Errorf("quantization %s is for octet eval alone: an export has weights of 4 or 8 bits; use another, such as w4a16-g128", s.Name)
	}
	for name, shape := range c.Layout() {
		if isLinear(name) && shape[1]%s.Group != 0 {
			return fmt.Errorf("quantization %s: rows of %s have %d weights, which compressed-tensors cannot divide into groups of %d; use w4a16-g32, or w8a8-fp8", s.Name, name, shape[1], s.Group)
		}
	}
	return nil
}

// Quantize returns the model to export after quantization.
func (m Model) Quantize(q *ptq.Model) Model {
	m.Param, m.Smooth, m.Quantized = q.Param, nil, q
	return m
}

// schemeFormat returns the format of a quantized model, one of compressed-tensors:
//
//   - "float-quantized" and "int-quantized" of W8A8: codes and F32 scales [rows, 1] of a
//     weight; the runtime casts inputs per token;
//   - "pack-quantized" of W4A16: weight_packed, eight codes plus 8 in an I32, the first in the
//     lowest bits; weight_scale, BF16 [rows, cols/group]; weight_shape.
func schemeFormat(q *ptq.Model) format {
	f := format{dtype: "BF16", torch: "bfloat16"}
	s := q.Scheme
	if s.Bits > 0 {
		f.size = func(t checkpoint.Tensor) int64 { return t.Elems()/2 + 2*t.Elems()/int64(s.Group) + 16 }
		f.linear = func(_ Model, t checkpoint.Tensor) ([]safetensors.Source, error) { return packed(q, t), nil }
		f.quantization = quantizationConfig("pack-quantized", values{Bits: s.Bits, Type: "int", Strategy: "group", Group: s.Group}, nil)
		return f
	}
	layout, kind, dtype := "float-quantized", "float", "F8_E4M3"
	if s.Input == fp8.INT8 {
		layout, kind, dtype = "int-quantized", "int", "I8"
	}
	f.size = func(t checkpoint.Tensor) int64 { return t.Elems() + 4*int64(t.Shape[0]) }
	f.linear = func(_ Model, t checkpoint.Tensor) ([]safetensors.Source, error) { return perRow(q, t, dtype), nil }
	f.quantization = quantizationConfig(layout, values{Bits: 8, Type: kind, Strategy: "channel"}, &values{Bits: 8, Type: kind, Strategy: "token", Dynamic: true})
	return f
}

// values describes the cast of a weight or an input in the terms of compressed-tensors.
type values struct {
	Bits      int    `json:"num_bits"`
	Type      string `json:"type"`
	Strategy  string `json:"strategy"`
	Group     int    `json:"group_size,omitempty"`
	Symmetric bool   `json:"symmetric"`
	Dynamic   bool   `json:"dynamic"`
}

func quantizationConfig(layout string, weights values, inputs *values) any {
	weights.Symmetric = true
	group := map[string]any{"targets": []string{"Linear"}, "weights": weights, "input_activations": nil}
	if inputs != nil {
		inputs.Symmetric = true
		group["input_activations"] = inputs
	}
	return map[string]any{
		"quant_method": "compressed-tensors", "format": layout, "quantization_status": "compressed",
		"ignore": []string{"lm_head"}, "config_groups": map[string]any{"group_0": group},
	}
}

// lazily returns a Data that encodes the quantized weight when it is written, so that one
// weight is in memory at a time.
func lazily(q *ptq.Model, name string, encode func(ptq.Matrix) []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		m, err := q.Weight(name)
		if err == nil {
			_, err = w.Write(encode(m))
		}
		return err
	}
}

func perRow(q *ptq.Model, t checkpoint.Tensor, dtype string) []safetensors.Source {
	module := strings.TrimSuffix(t.Name, ".weight")
	return []safetensors.Source{
		source(t.Name, dtype, t.Shape, lazily(q, t.Name, func(m ptq.Matrix) []byte { return m.Codes })),
		source(module+".weight_scale", "F32", []int{t.Shape[0], 1}, lazily(q, t.Name, func(m ptq.Matrix) []byte {
			return fp8.AppendFloats(nil, m.ScaleInv...)
		})),
	}
}

func packed(q *ptq.Model, t checkpoint.Tensor) []safetensors.Source {
	module := strings.TrimSuffix(t.Name, ".weight")
	rows, cols, group := t.Shape[0], t.Shape[1], q.Scheme.Group
	return []safetensors.Source{
		source(module+".weight_packed", "I32", []int{rows, cols / 8}, lazily(q, t.Name, pack4)),
		source(module+".weight_scale", "BF16", []int{rows, cols / group}, lazily(q, t.Name, func(m ptq.Matrix) []byte {
			codes := make([]uint16, len(m.ScaleInv))
			fp8.EncodeBF16(codes, m.ScaleInv) // exact: the scales are BF16 values
			var raw []byte
			for _, c := range codes {
				raw = binary.LittleEndian.AppendUint16(raw, c)
			}
			return raw
		})),
		source(module+".weight_shape", "I64", []int{2}, safetensors.Bytes(
			binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(rows)), uint64(cols)))),
	}
}

// pack4 packs signed codes of 4 bits, plus 8, two in a byte, the first in the low half. Rows
// of a multiple of 8 are then whole little-endian I32 words.
func pack4(m ptq.Matrix) []byte {
	raw := make([]byte, len(m.Codes)/2)
	for i := range raw {
		raw[i] = (m.Codes[2*i]+8)&15 | (m.Codes[2*i+1]+8)<<4
	}
	return raw
}
