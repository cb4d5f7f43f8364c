package fp8

import (
	"fmt"
	"regexp"
	"strings"

	"octet/internal/spelling"
)

// otherNames gives, for names of other libraries (ml_dtypes, torch) and of whole recipes,
// the format to name instead.
var otherNames = map[string]string{
	"fp8": "e4m3 or e5m2", "fp6": "e2m3 or e3m2", "fp4": "e2m1",
	"mxfp8": "e4m3, or recipe mxfp8", "mxfp6": "e2m3, or recipe mxfp6", "mxfp4": "e2m1, or recipe mxfp4", "nvfp4": "e2m1, or recipe nvfp4",
	"float8_e4m3fn": "e4m3", "float8_e4m3": "e4m3ieee", "float8_e5m2": "e5m2", "float8_e3m4": "e3m4",
	"float8_e4m3fnuz": "e4m3fnuz", "float8_e5m2fnuz": "e5m2fnuz", "float8_e4m3b11fnuz": "e4m3b11fnuz",
	"float8_e8m0fnu": "e8m0", "ue8m0": "e8m0", "float6_e2m3fn": "e2m3", "float6_e3m2fn": "e3m2", "float4_e2m1fn": "e2m1", "float4_e2m1fn_x2": "e2m1",
	"ue4m3": "e4m3, whose codes without a sign are the same", "half": "fp16", "float16": "fp16", "bfloat16": "bf16", "float": "fp32", "float32": "fp32",
}

var (
	noMantissa = regexp.MustCompile(`^e[0-9]+m0`)
	unsigned   = regexp.MustCompile(`^ue[0-9]+m[0-9]+`)
)

// unknown returns the error for a name that ParseDType, which has lowered its case, does not
// know; given is the name as the user wrote it.
func unknown(given, name string) error {
	var names []string
	for _, f := range named[Invalid+1:] {
		if f.Kind != Index {
			names = append(names, f.Name)
		}
	}
	reason := ""
	switch also := otherNames[name]; {
	case also != "":
		reason = "; use " + also
	case unsigned.MatchString(name):
		reason = "; formats without a sign are not supported, except e8m0: use e4m3 or another one with a sign"
	case noMantissa.MatchString(name):
		reason = "; a format needs a bit of mantissa, only the scale format e8m0 has none: use e2m1"
	default:
		reason = spelling.DidYouMean(name, names)
	}
	return fmt.Errorf("unknown number format %q%s (known: %s, and e<1 to 8 bits of exponent>m<1 to 7 of mantissa>, with an optional b<bias, at most 64> and fin, fn, ieee, fnuz, p3109 or mask)",
		given, reason, strings.Join(names, ", "))
}
