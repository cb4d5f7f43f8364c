package recipe

// Scaling selects where the scale of a cast comes from.
type Scaling uint8

const (
	NotGiven Scaling = iota
	Unit             // scale 1
	Current          // from the operand's own amax, computed before the cast
	Delayed          // from the amax history of earlier steps
)

var scalingNames = []string{"", "unit", "current", "delayed"}

func (s Scaling) String() string { return scalingNames[s] }

// Granularity selects which elements of an operand share a scale. It is relative
// to the GEMM that reads the operand: K is the dimension that the GEMM sums over.
// Scales finer than per-tensor are current. GEMMs that sum over different
// dimensions of a tensor need different scales.
type Granularity uint8

const (
	_         Granularity = iota // not given
	PerTensor                    // one scale for the tensor
	PerRow                       // one for each row along K: a token, an output channel
	By1x128                      // one for 128 elements of a row along K, as activations in DeepSeek-V3
	By128x128                    // as weights in DeepSeek-V3
	By1x32                       // one for 32 elements of a row along K, as in MXFP8
)

var granularityNames = []string{"", "tensor", "row", "1x128", "128x128", "1x32"}

func (g Granularity) String() string { return granularityNames[g] }

// Block returns the size of the block that shares a scale, across K and along K;
// 0 is the whole extent.
func (g Granularity) Block() (across, along int) {
	switch g {
	case PerRow:
		return 1, 0
	case By1x128:
		return 1, 128
	case By128x128:
		return 128, 128
	case By1x32:
		return 1, 32
	}
	return 0, 0
}

// ScaleFormat selects how the scale limit/amax is rounded and stored.
type ScaleFormat uint8

const (
	_     ScaleFormat = iota // not given
	Pow2                     // rounded down to a power of two, so that scaling is exact
	Exact                    // not rounded, FP32
	E8M0                     // a power of two in eight bits, chosen so that nothing saturates (fp8.MXScale)
)

var scaleFormatNames = []string{"", "pow2", "fp32", "e8m0"}

func (f ScaleFormat) String() string { return scaleFormatNames[f] }

// ParseScaling is the inverse of String; an empty string is the zero value.
func ParseScaling(s string) (Scaling, error) { return parse[Scaling]("scaling", scalingNames, s) }

// ParseGranularity is the inverse of String; an empty string is the zero value.
func ParseGranularity(s string) (Granularity, error) {
	return parse[Granularity]("granularity", granularityNames, s)
}

// ParseScaleFormat is the inverse of String; an empty string is the zero value.
func ParseScaleFormat(s string) (ScaleFormat, error) {
	return parse[ScaleFormat]("scale format", scaleFormatNames, s)
}
