package recipe

// Scaling is where a cast's scale comes from.
type Scaling uint8

const (
	NotGiven Scaling = iota
	Unit             // scale 1
	Current          // from the operand's own amax, just before the cast
	Delayed          // from the amaxes of earlier steps
)

var scalingNames = []string{"", "unit", "current", "delayed"}

func (s Scaling) String() string { return scalingNames[s] }

// Granularity is which elements of an operand share a scale, seen from the
// product that reads it: K is the dimension that it sums over. Scales that are
// finer than a tensor are current, and differ from one product to the next,
// since each sums over another dimension.
type Granularity uint8

const (
	_         Granularity = iota // not given
	ByTensor                     // one for the tensor
	ByRow                        // one for each row along K: a token, an output channel
	By1x128                      // rows cut along K, as activations in DeepSeek-V3
	By128x128                    // as weights in DeepSeek-V3
	By1x32                       // as in MXFP8
)

var granularityNames = []string{"", "tensor", "row", "1x128", "128x128", "1x32"}

func (g Granularity) String() string { return granularityNames[g] }

// Block is the extent of what shares a scale, across K and along K; 0 is all
// of it.
func (g Granularity) Block() (across, along int) {
	switch g {
	case ByRow:
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

// ScaleFormat is what becomes of limit/amax.
type ScaleFormat uint8

const (
	_     ScaleFormat = iota // not given
	Pow2                     // rounded down to a power of two: scaling is exact
	Exact                    // as it is, in FP32
	E8M0                     // a power of two in eight bits, such that nothing is clipped (fp8.MXScale)
)

var scaleFormatNames = []string{"", "pow2", "fp32", "e8m0"}

func (f ScaleFormat) String() string { return scaleFormatNames[f] }

// ParseScaling, ParseGranularity and ParseScaleFormat are the inverses of
// String; an empty string is the zero value.
func ParseScaling(s string) (Scaling, error) { return parse[Scaling]("scaling", scalingNames, s) }

func ParseGranularity(s string) (Granularity, error) {
	return parse[Granularity]("granularity", granularityNames, s)
}

func ParseScaleFormat(s string) (ScaleFormat, error) {
	return parse[ScaleFormat]("format of a scale", scaleFormatNames, s)
}
