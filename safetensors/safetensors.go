// Package safetensors reads and writes the safetensors format, in which the
// Hugging Face ecosystem keeps model weights: eight bytes with the length of a
// JSON header, the header (name → dtype, shape, range of bytes; and a string
// map named __metadata__), then the tensors' bytes, little-endian and in C
// order, without a gap (https://github.com/huggingface/safetensors, "Format").
//
//   - [Open] reads a file's header; [File.ReadInto] and [File.Section] read
//     tensors, from any number of goroutines.
//   - [OpenSharded] opens all files of a model that was split.
//   - [Write] streams: tensors arrive through callbacks, one after the other,
//     so that no second copy of a model is held in memory.
//
// A file is treated as hostile. Every size and offset is checked against the
// size of the file before anything is allocated or read, the memory that Open
// takes is a small multiple of the header's length, and what the format
// forbids (holes, overlaps, bytes that belong to no tensor, duplicate names,
// unknown keys) is refused with one sentence that names the tensor.
//
// The package moves bytes; it converts no numbers. Which code of an F8_E4M3
// byte means what is up to the caller: the format itself has only OCP's
// E4M3, with 448 as its largest value.
package safetensors

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// maxHeader is the longest header that readers of the format accept: the
// reference implementation's limit.
const maxHeader = 100_000_000

// metadataKey is the one header key that is not the name of a tensor.
const metadataKey = "__metadata__"

// Tensor describes one tensor of a file.
type Tensor struct {
	Name   string
	DType  string // as the format spells it: F32, BF16, F8_E4M3, …
	Shape  []int64
	Offset int64 // of the first byte, from the start of the file
	Size   int64 // bytes
}

// dtypes are the format's number formats in its own order, which is that of
// their alignment: a file holds the last of these first, so that every tensor
// starts at a multiple of its element's size.
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

// dtypeIndex is the place of a dtype in dtypes, or -1.
func dtypeIndex(name string) int {
	for i := range dtypes {
		if dtypes[i].name == name {
			return i
		}
	}
	return -1
}

// byteSize is the number of bytes of a tensor: the product of its shape times
// the size of an element, with every step checked.
func byteSize(dtype int, shape []int64) (int64, error) {
	n := int64(1)
	for _, d := range shape {
		if d < 0 {
			return 0, fmt.Errorf("shape %s has a negative dimension", shapeString(shape))
		}
		if d != 0 && n > math.MaxInt64/d {
			return 0, fmt.Errorf("shape %s has more elements than 64 bits count", shapeString(shape))
		}
		n *= d
	}
	bits := dtypes[dtype].bits
	if n > math.MaxInt64/bits {
		return 0, fmt.Errorf("shape %s of %s has more bits than 64 bits count", shapeString(shape), dtypes[dtype].name)
	}
	if n*bits%8 != 0 {
		return 0, fmt.Errorf("shape %s of %s does not end at a whole byte", shapeString(shape), dtypes[dtype].name)
	}
	return n * bits / 8, nil
}

// Names and shapes in a message may come from a hostile header, hence the
// limits on what is printed of them.

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
	var b strings.Builder
	for i, d := range shape {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(strconv.FormatInt(d, 10))
	}
	return "[" + b.String() + more + "]"
}
