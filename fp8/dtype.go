package fp8

// DType is the storage format of a tensor's elements. All of Octet names formats by it:
// tensors, recipes, kernels and files. Beside the constants there is a DType for each
// name that ParseDType accepts; it is valid within one process.
type DType uint8

const (
	Invalid  DType = iota
	F32            // IEEE binary32
	BF16           // bfloat16: float32 with 8 significant bits
	F16            // IEEE binary16, largest 65504
	E4M3           // OCP FP8 E4M3 (float8_e4m3fn): largest 448, no infinity, NaN 0x7f and 0xff
	E4M3IEEE       // E4M3 with an IEEE-style top exponent, as on Gaudi2: largest 240, infinity 0x78
	E5M2           // OCP FP8 E5M2: largest 57344, infinity 0x7c
	E8M0           // power-of-two scale of MX blocks: 2^(code-127), NaN 0xff, no zero and no sign
	E2M1           // OCP FP4: largest 6, no infinity, no NaN; two codes in a byte
	E2M3           // OCP FP6 with more precision: largest 7.5, no infinity, no NaN
	E3M2           // OCP FP6 with more range: largest 28, no infinity, no NaN
	INT8           // integers from -127 to 127
	INT4           // integers from -7 to 7; two codes in a byte
	I32            // int32: token ids and counters
)
