package gaudi

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"octet/backend"
	"octet/fp8"
)

// deviceOptions are the parsed options of a device name such as "gaudi:0,unit=4".
type deviceOptions struct {
	model  string // "": not given
	module int    // module number, or -1 for any device
	unit   int    // consecutive blocks that are compiled as one unit
	mixed  bool   // GEMMs of E4M3 and E5M2
	top240 bool   // GEMMs read E4M3 codes above 240 as infinity and NaN
}

// parse returns the options in a device name.
func parse(device string) (deviceOptions, error) {
	opts := deviceOptions{module: -1, unit: 1}
	for option := range strings.SplitSeq(device, ",") {
		number, isUnit := strings.CutPrefix(option, "unit=")
		n, err := strconv.ParseUint(number, 10, 16)
		_, isModel := models[option]
		switch {
		case isUnit && err == nil && n > 0:
			opts.unit = int(n)
		case isUnit:
			return deviceOptions{}, fmt.Errorf("backend gaudi: %q: want a number of blocks of 1 or more, such as unit=4", option)
		case err == nil:
			opts.module = int(n)
		case isModel:
			opts.model = option
		case option == "pairs=mixed":
			opts.mixed = true
		case option == "e4m3=240":
			opts.top240 = true
		case device != "":
			return deviceOptions{}, fmt.Errorf("unknown device %q of backend gaudi (known: gaudi2, gaudi3, or the module number of a device, such as gaudi:0; unit=N, the number of blocks that are compiled together; and for Gaudi 3 pairs=mixed, GEMMs of E4M3 and E5M2, and e4m3=240, an E4M3 whose largest value is 240)", option)
		}
	}
	return opts, nil
}

// modelOfOptions returns the only model that has the options, or "".
func (opts deviceOptions) modelOfOptions() string {
	if opts.mixed || opts.top240 {
		return "gaudi3"
	}
	return ""
}

// spec returns the spec of a model with the options applied.
func (opts deviceOptions) spec(model string) (backend.Spec, error) {
	switch {
	case model == "gaudi3":
	case opts.mixed:
		return backend.Spec{}, errors.New("pairs=mixed is for Gaudi 3: Gaudi 2's matrix engine multiplies only operands of the same format")
	case opts.top240:
		return backend.Spec{}, errors.New("e4m3=240 is for Gaudi 3: Gaudi 2's E4M3 always ends at 240")
	}
	s := models[model]
	s.Own = details{align: own(s).align, unit: opts.unit, clip: opts.top240}
	if opts.top240 {
		s.E4M3 = fp8.E4M3IEEE
	}
	s.Pairs = fp8.PerTensor([][2]fp8.DType{{s.E4M3, s.E4M3}, {fp8.E5M2, fp8.E5M2}}...)
	if opts.mixed {
		s.Pairs = append(s.Pairs, fp8.PerTensor([][2]fp8.DType{{s.E4M3, fp8.E5M2}, {fp8.E5M2, s.E4M3}}...)...)
	}
	return s, nil
}
