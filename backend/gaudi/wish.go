package gaudi

import (
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
		case device != "":
			return wish{}, fmt.Errorf("unknown device %q of backend gaudi (known: gaudi2, gaudi3, or the module number of a device, such as gaudi:0; unit=N, the blocks that are compiled as one; and for Gaudi 3 pairs=mixed, products of E4M3 and E5M2)", option)
		}
	}
	return w, nil
}

// modelOfOptions is the model that alone has the options, if any.
func (w wish) modelOfOptions() string {
	if w.mixed {
		return "gaudi3"
	}
	return ""
}

// spec is that of a model with the options.
func (w wish) spec(model string) (backend.Spec, error) {
	s := models[model]
	if of := w.modelOfOptions(); of != "" && of != model {
		return backend.Spec{}, fmt.Errorf("pairs=mixed is for Gaudi 3: the matrix engine of %s multiplies only operands of one format", s.Device)
	}
	s.Unit = w.unit
	if w.mixed {
		s.Pairs = [][2]fp8.DType{{s.E4M3, s.E4M3}, {s.E4M3, fp8.E5M2}, {fp8.E5M2, s.E4M3}, {fp8.E5M2, fp8.E5M2}}
	}
	return s, nil
}
