package arrays

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"octet/fp8"
	"octet/internal/disk"
	"octet/internal/npy"
	"octet/safetensors"
)

// Tensor is a tensor to write, with its bytes as in a device's memory: row-major, without
// gaps, codes of four bits two in a byte.
type Tensor struct {
	Name  string
	DType fp8.DType
	Shape []int
	Data  []byte
	Block string // of a tensor with scales: the rows and columns that share one, as backend.ScaleBlock names them
}

// Elems returns the number of elements.
func (t Tensor) Elems() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// Suffixes of the names of tensors that belong to a tensor of codes: the scale_inv of its
// blocks, and that of the whole tensor beside them.
const scaleSuffix, outerSuffix = ".scale_inv", ".outer"

// CheckOut returns the extension of a file that Write shall write, see Ext. It refuses a file,
// or one beside it, that a command also reads.
func CheckOut(file string, inputs ...string) (ext string, err error) {
	if ext, err = Ext(file); err != nil {
		return "", err
	}
	written := []string{file}
	if ext == ".npy" {
		base := strings.TrimSuffix(file, filepath.Ext(file))
		written = append(written, base+scaleSuffix+".npy", base+outerSuffix+".npy")
	}
	for _, out := range written {
		to, err := os.Stat(out)
		if err != nil {
			continue // it does not exist
		}
		for _, in := range inputs {
			if from, err := os.Stat(in); err == nil && os.SameFile(from, to) {
				return "", fmt.Errorf("%s is the input: name another file", out)
			}
		}
	}
	return ext, nil
}

// Write writes tensors to a safetensors file, see WriteSafetensors, or to .npy files in the
// same folder: the first to file, another one by the part of its name that follows the
// first one's. So the tensors w and w.scale_inv become q.npy and q.scale_inv.npy.
func Write(file string, list []Tensor, metadata map[string]string) error {
	ext, err := Ext(file)
	if err != nil {
		return err
	}
	if ext == ".safetensors" {
		return WriteSafetensors(file, list, metadata)
	}
	base := filepath.Base(file)
	named := slices.Clone(list)
	for i := range named {
		named[i].Name = base[:len(base)-len(ext)] + strings.TrimPrefix(list[i].Name, list[0].Name)
	}
	return WriteNpy(filepath.Dir(file), named)
}

// WriteSafetensors writes a file of tensors. A format that safetensors names (F8_E4M3, F4,
// F6_E2M3, …) has that dtype; codes of less than eight bits follow each other without gaps,
// the first in the lowest bits. Other formats have one code in each byte (U8), and the
// metadata "format.NAME" gives the format of every tensor in Octet's words, "block.NAME" the
// Block of a tensor that has one.
func WriteSafetensors(file string, list []Tensor, metadata map[string]string) error {
	all := map[string]string{}
	var sources []safetensors.Source
	for _, t := range list {
		f := t.DType.Format().Container.Format() // the format in memory
		s := safetensors.Source{Name: t.Name, DType: f.File, Shape: []int64{}}
		for _, n := range t.Shape {
			s.Shape = append(s.Shape, int64(n))
		}
		data := t.Data
		switch {
		case s.DType == "" || f.Bits*t.Elems()%8 != 0:
			s.DType, data = "U8", t.inBytes()
		case f.Bits < 8:
			data = pack(t.inBytes(), f.Bits)
		}
		s.Data = safetensors.Bytes(data)
		all[safetensors.FormatKey+t.Name] = t.DType.String()
		if t.Block != "" {
			all[blockKey+t.Name] = t.Block
		}
		sources = append(sources, s)
	}
	for key, value := range metadata {
		all[key] = value
	}
	var b bytes.Buffer
	if err := safetensors.Write(&b, sources, all); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return disk.WriteAtomic(file, b.Bytes())
}

// WriteNpy writes each tensor to NAME.npy in a folder, which it makes if it is missing:
// FP32, FP16, INT8 and I32 as such, BF16 as the float32 of the same value, and the codes of
// other formats as uint8, one in each byte. The name of a file has "all" for "*".
func WriteNpy(dir string, list []Tensor) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	for _, t := range list {
		if filepath.Base(t.Name) != t.Name {
			return fmt.Errorf("tensor %q: its name cannot be that of a file: write a .safetensors file", t.Name)
		}
		a := npy.Array{Shape: t.Shape, Data: t.Data}
		switch t.DType.Format().Container {
		case fp8.F32:
			a.DType = npy.Float32
		case fp8.F16:
			a.DType = npy.Float16
		case fp8.I32:
			a.DType = npy.Int32
		case fp8.INT8:
			a.DType = npy.Int8
		default:
			if t.DType.Format().Bits > 8 {
				x := make([]float32, t.Elems())
				t.DType.Decode(x, t.Data)
				a.DType, a.Data = npy.Float32, fp8.AppendFloats(nil, x...)
			} else {
				a.DType, a.Data = npy.Uint8, t.inBytes()
			}
		}
		var b bytes.Buffer
		if err := npy.Write(&b, a); err != nil {
			return fmt.Errorf("%s: %w", t.Name, err)
		}
		if err := disk.WriteAtomic(filepath.Join(dir, strings.ReplaceAll(t.Name, "*", "all")+".npy"), b.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// inBytes returns the codes one in each byte.
func (t Tensor) inBytes() []byte {
	if t.DType.InBytes() == t.DType {
		return t.Data
	}
	codes := make([]byte, t.Elems())
	fp8.Unpack4(codes, t.Data)
	return codes
}

// pack writes codes of less than eight bits one after the other, the first in the lowest
// bits.
func pack(codes []byte, bits int) []byte {
	packed := make([]byte, (len(codes)*bits+7)/8)
	for i, c := range codes {
		at := i * bits
		wide := uint16(c) << (at % 8)
		packed[at/8] |= byte(wide)
		if wide > 0xff {
			packed[at/8+1] |= byte(wide >> 8)
		}
	}
	return packed
}
