package arrays

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"octet/fp8"
	"octet/safetensors"
)

// blockKey is the prefix of a metadata key that ends in the name of a tensor with scales.
const blockKey = "block."

// Codes are a tensor of codes with its scales, as a safetensors file holds them.
type Codes struct {
	Tensor
	Scale Tensor  // NAME.scale_inv
	Outer float32 // NAME.outer; 0 without one
}

// HoldsCodes reports whether a file is a safetensors file with a tensor NAME.scale_inv.
func HoldsCodes(file string) bool {
	ext, err := Ext(file)
	if err != nil || ext != ".safetensors" {
		return false
	}
	f, err := safetensors.Open(file)
	if err != nil {
		return false
	}
	found := len(scaled(f)) > 0
	return f.Close() == nil && found
}

// scaled returns the names of the tensors that have scales.
func scaled(f *safetensors.File) (names []string) {
	for _, t := range f.Tensors() {
		if name, ok := strings.CutSuffix(t.Name, scaleSuffix); ok {
			names = append(names, name)
		}
	}
	return names
}

// isScaleOf reports whether a tensor holds scales of one of the codes.
func isScaleOf(codes []string, name string) bool {
	return slices.ContainsFunc(codes, func(of string) bool { return name == of+scaleSuffix || name == of+outerSuffix })
}

// ReadCodes reads the one tensor with scales of a safetensors file that WriteSafetensors
// wrote.
func ReadCodes(file string) (c Codes, err error) {
	f, err := safetensors.Open(file)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	names := scaled(f)
	if len(names) != 1 {
		return c, fmt.Errorf("%s holds %d tensors with scales (NAME%s), expected one: write it with octet quantize --tensor NAME --out FILE", file, len(names), scaleSuffix)
	}
	if c.Tensor, err = readCodes(f, names[0]); err == nil {
		c.Scale, err = readCodes(f, names[0]+scaleSuffix)
	}
	if _, ok := f.Tensor(names[0] + outerSuffix); ok && err == nil {
		var outer Tensor
		if outer, err = readCodes(f, names[0]+outerSuffix); err == nil {
			if outer.DType != fp8.F32 || outer.Elems() != 1 {
				return c, fmt.Errorf("%s: %s is %s %v, expected one fp32", file, outer.Name, outer.DType, outer.Shape)
			}
			one := make([]float32, 1)
			fp8.F32.Decode(one, outer.Data)
			c.Outer = one[0]
		}
	}
	if err != nil {
		return c, fmt.Errorf("%s: %w", file, err)
	}
	return c, nil
}

// readCodes reads a tensor as in a device's memory.
func readCodes(f *safetensors.File, name string) (t Tensor, err error) {
	stored, ok := f.Tensor(name)
	if !ok {
		return t, fmt.Errorf("it has no tensor %s", name)
	}
	t.Name = name
	if t.DType, err = fp8.ParseDType(f.Metadata()[safetensors.FormatKey+name]); err != nil {
		return t, fmt.Errorf("metadata %s%s: %w: give the format of the codes", safetensors.FormatKey, name, err)
	}
	for _, n := range stored.Shape {
		t.Shape = append(t.Shape, int(n))
	}
	t.Block = f.Metadata()[blockKey+name]
	t.Data = make([]byte, stored.Size)
	if err := f.ReadInto(name, t.Data); err != nil {
		return t, err
	}
	format := t.DType.Format()
	packed := (t.Elems()*format.Bits + 7) / 8
	switch {
	case stored.DType == "U8" && format.Bits <= 8:
		for _, code := range t.Data {
			if int(code) >= 1<<format.Bits {
				return t, fmt.Errorf("%s: %#x is no code of %s", name, code, t.DType)
			}
		}
	case stored.DType != format.File || len(t.Data) != packed:
		return t, fmt.Errorf("%s has dtype %s and %d bytes, which is not %s of the metadata", name, stored.DType, len(t.Data), t.DType)
	case format.Bits < 8:
		t.Data = unpack(t.Data, t.Elems(), format.Bits)
	}
	if t.DType.InBytes() != t.DType {
		fp8.Pack4(t.Data, t.Data)
		t.Data = t.Data[:t.DType.Bytes(t.Elems())]
	}
	return t, nil
}

// unpack is the inverse of pack for n codes.
func unpack(packed []byte, n, bits int) []byte {
	codes := make([]byte, n)
	for i := range codes {
		at := i * bits
		wide := uint16(packed[at/8])
		if at/8+1 < len(packed) {
			wide |= uint16(packed[at/8+1]) << 8
		}
		codes[i] = byte(wide>>(at%8)) & (1<<bits - 1)
	}
	return codes
}
