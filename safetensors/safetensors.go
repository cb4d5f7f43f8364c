// Package safetensors reads and writes safetensors files, the Hugging Face
// format of model weights (https://github.com/huggingface/safetensors,
// "Format"). A file has three parts:
//
//  1. the length of the header, in eight bytes;
//  2. a JSON header, which maps each name to dtype, shape and byte range, and
//     __metadata__ to a map of strings;
//  3. the tensors' bytes, little-endian, in C order and without gaps.
//
// These functions are the entry points:
//
//   - [Open] reads a file's header; [File.ReadInto] and [File.Section] read
//     tensors, from any number of goroutines.
//   - [OpenSharded] opens all files of a sharded model.
//   - [Write] streams: callbacks write one tensor after the other, so that no
//     second copy of the model is in memory.
//
// The package treats every file as hostile. It checks sizes and offsets against
// the size of the file before it allocates or reads. Open allocates at most a
// small multiple of the header's length. Everything the format forbids is an
// error that names the tensor: gaps, overlaps, bytes outside any tensor,
// duplicate names, unknown keys.
//
// The package moves bytes and converts no values. The caller decides what the
// codes of F8_E4M3 mean; the format defines only OCP's E4M3, with the maximum 448.
package safetensors

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// maxHeader is the maximum header length in bytes, as in the reference
// implementation.
const maxHeader = 100_000_000

// metadataKey is the only header key that is not a tensor name.
const metadataKey = "__metadata__"

// Tensor describes one tensor of a file.
type Tensor struct {
	Name   string
	DType  string // a dtype name of the format: F32, BF16, F8_E4M3, …
	Shape  []int64
	Offset int64 // position of the first byte in the file
	Size   int64 // in bytes
}

// dtypes lists the format's dtypes in the order of the reference implementation,
// by ascending alignment. Write puts the last of them first, so that every
// tensor starts at a multiple of its element size.
var dtypes = []struct {
	name string
	bits int64
}{
	{"BOOL", 8},
	{"F4", 4},
	{"F6_E2M3", 6},
	{"F6_E3M2", 6},
	{"U8", 8},
	{"I8", 8},
	{"F8_E5M2", 8},
	{"F8_E4M3", 8},
	{"F8_E8M0", 8},
	{"F8_E4M3FNUZ", 8},
	{"F8_E5M2FNUZ", 8},
	{"I16", 16},
	{"U16", 16},
	{"F16", 16},
	{"BF16", 16},
	{"I32", 32},
	{"U32", 32},
	{"F32", 32},
	{"C64", 64},
	{"F64", 64},
	{"I64", 64},
	{"U64", 64},
}

// dtypeIndex returns the index of name in dtypes, or -1.
func dtypeIndex(name string) int {
	for i := range dtypes {
		if dtypes[i].name == name {
			return i
		}
	}
	return -1
}

// byteSize returns the number of bytes of a tensor, or an error on overflow.
func byteSize(dtype int, shape []int64) (int64, error) {
	n := int64(1)
	for _, d := range shape {
		if d < 0 {
			return 0, fmt.Errorf("shape %s has a negative dimension", shapeString(shape))
		}
		if d != 0 && n > math.MaxInt64/d {
			return 0, fmt.Errorf("shape %s: the number of elements overflows 64 bits", shapeString(shape))
		}
		n *= d
	}
	bits := dtypes[dtype].bits
	if n > math.MaxInt64/bits {
		return 0, fmt.Errorf("shape %s of %s: the number of bits overflows 64 bits", shapeString(shape), dtypes[dtype].name)
	}
	if n*bits%8 != 0 {
		return 0, fmt.Errorf("shape %s of %s is not a whole number of bytes", shapeString(shape), dtypes[dtype].name)
	}
	return n * bits / 8, nil
}

// quote and shapeString limit the length of names and shapes in messages,
// because these may come from a hostile header.

func quote(name string) string {
	if len(name) > 100 {
		return strconv.Quote(name[:100]) + "…"
	}
	return strconv.Quote(name)
}

func shapeString(shape []int64) string {
	more := ""
	if len(shape) > 16 {
		shape, more = shape[:16], ", …"
	}
	digits := strings.Trim(fmt.Sprint(shape), "[]")
	return "[" + strings.ReplaceAll(digits, " ", ", ") + more + "]"
}
