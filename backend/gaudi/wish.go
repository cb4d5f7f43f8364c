package gaudi

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"octet/backend"
	"octet/fp8"
)

// A wish is what the device of "gaudi:0,unit=4" asks for.
type wish struct {
	model  string // if it names one
	module int    // its number, or -1 for any device
	unit   int    // blocks that are compiled as one
	mixed  bool   // products of E4M3 and E5M2
	top240 bool   // products take codes of E4M3 above 240 for infinity and NaN
}

// parse takes a device's name apart.
func parse(device string) (wish, error) {
	w := wish{module: -1, unit: 1}
	for option := range strings.SplitSeq(device, ",") {
		number, isUnit := strings.CutPrefix(option, "unit=")
		n, err := strconv.ParseUint(number, 10, 16)
		_, isModel := models[option]
		switch {
		case isUnit && err == nil && n > 0:
			w.unit = int(n)
		case isUnit:
			return wish{}, fmt.Errorf("backend gaudi: %q: a unit has a number of blocks, 1 or more, such as unit=4", option)
		case err == nil:
			w.module = int(n)
		case isModel:
			w.model = option
		case option == "pairs=mixed":
			w.mixed = true
		case option == "e4m3=240":
			w.top240 = true
		case device != "":
			return wish{}, fmt.Errorf("unknown device %q of backend gaudi (known: gaudi2, gaudi3, or the module number of a device, such as gaudi:0; unit=N, the blocks that are compiled as one; and for Gaudi 3 pairs=mixed, products of E4M3 and E5M2, and e4m3=240, an E4M3 that ends there)", option)
		}
	}
	return w, nil
}

// modelOfOptions is the model that alone has the options, if any.
func (w wish) modelOfOptions() string {
	if w.mixed || w.top240 {
		return "gaudi3"
	}
	return ""
}

// spec is that of a model with the options.
func (w wish) spec(model string) (backend.Spec, error) {
	switch {
	case model == "gaudi3":
	case w.mixed:
		return backend.Spec{}, errors.New("pairs=mixed is for Gaudi 3: the matrix engine of Gaudi 2 multiplies only operands of one format")
	case w.top240:
		return backend.Spec{}, errors.New("e4m3=240 is for Gaudi 3: the E4M3 of Gaudi 2 ends there anyway")
	}
	s := models[model]
	s.Unit = w.unit
	if w.top240 {
		s.E4M3, s.ClipE4M3 = fp8.E4M3IEEE, true
	}
	s.Pairs = [][2]fp8.DType{{s.E4M3, s.E4M3}, {fp8.E5M2, fp8.E5M2}}
	if w.mixed {
		s.Pairs = append(s.Pairs, [2]fp8.DType{s.E4M3, fp8.E5M2}, [2]fp8.DType{fp8.E5M2, s.E4M3})
	}
	return s, nil
}
