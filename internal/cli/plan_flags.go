package cli

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"octet/backend/cost"
	"octet/internal/config"
)

// runFlags are the values of clusterFlags that need no table of devices.
type runFlags struct {
	network             string
	tokens, price, grid float64  // 0: not given
	tokensText          string   // as given
	assume              []string // NAME=VALUE
	sweepFrom, sweepTo  int      // 0: not given
}

var (
	tokensForm = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?(?:e[0-9]{1,2})?)([kMGBT]?)$`)
	rateForm   = regexp.MustCompile(`^([0-9]+(?:\.[0-9]+)?)([kMGT]?)B/s$`)
	sweepForm  = regexp.MustCompile(`^([1-9][0-9]{0,6})\.\.([1-9][0-9]{0,6})$`)
)

// sizes are the values of the letters of numbers.
var sizes = map[string]float64{"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}

// suffixed reads a positive number with a letter for its size.
func suffixed(form *regexp.Regexp, text string) (float64, bool) {
	m := form.FindStringSubmatch(text)
	if m == nil {
		return 0, false
	}
	x, err := strconv.ParseFloat(m[1], 64)
	x *= sizes[m[2]]
	return x, err == nil && x > 0 && x <= 1e18
}

// parse reads the flags.
func (f clusterFlags) parse() (r runFlags, err error) {
	r.network, r.tokensText = f.Network.Value, f.Tokens.Value
	if f.Network.Given && r.network == "" {
		return r, errors.New("--network is empty: name one, or omit the flag for that of the device")
	}
	if f.Tokens.Given {
		var ok bool
		if r.tokens, ok = suffixed(tokensForm, f.Tokens.Value); !ok || r.tokens < 1 {
			return r, fmt.Errorf("--tokens %q: expected a number of tokens with k, M, G, B or T, such as 2T, 1.5T or 2e12", f.Tokens.Value)
		}
	}
	for _, x := range []struct {
		name string
		flag config.Once
		what string
		to   *float64
	}{
		{"price", f.Price, "the price of a device for an hour, such as 2.5", &r.price},
		{"grid", f.Grid, "grams of CO2 for a kWh, such as 400", &r.grid},
	} {
		if !x.flag.Given {
			continue
		}
		if *x.to, err = strconv.ParseFloat(x.flag.Value, 64); err != nil || !(*x.to > 0 && *x.to <= 1e9) {
			return r, fmt.Errorf("--%s %q: expected %s", x.name, x.flag.Value, x.what)
		}
		if !f.Tokens.Given {
			return r, fmt.Errorf("--%s needs the length of the run: give --tokens, such as --tokens 2T", x.name)
		}
	}
	if r.assume, err = f.assumptions(); err != nil {
		return r, err
	}
	if f.Sweep.Given {
		m := sweepForm.FindStringSubmatch(f.Sweep.Value)
		if m != nil {
			r.sweepFrom, _ = strconv.Atoi(m[1]) // seven digits
			r.sweepTo, _ = strconv.Atoi(m[2])
		}
		if m == nil || r.sweepFrom > r.sweepTo || r.sweepTo > cost.MaxDevices {
			return r, fmt.Errorf("--sweep %q: expected A..B, numbers of devices from 1 to %d, such as 1..1024", f.Sweep.Value, cost.MaxDevices)
		}
	}
	return r, nil
}

// assumptions returns all numbers that the flags give, as NAME=VALUE.
func (f clusterFlags) assumptions() (list []string, err error) {
	given := map[string]string{}
	add := func(text, flag string) error {
		name, _, _ := strings.Cut(text, "=")
		if first, twice := given[name]; twice {
			return fmt.Errorf("the number %s is given twice, by %s and by %s; keep one of them", name, first, flag)
		}
		given[name] = flag
		list = append(list, text)
		return nil
	}
	if f.MTBF.Given {
		d, err := time.ParseDuration(f.MTBF.Value)
		if err != nil || d <= 0 {
			return nil, fmt.Errorf("--mtbf %q: expected the mean time between failures of one device, such as 50000h", f.MTBF.Value)
		}
		if err := add(fmt.Sprintf("mtbf=%v", d.Hours()), "--mtbf "+f.MTBF.Value); err != nil {
			return nil, err
		}
	}
	if f.CheckpointRate.Given {
		rate, ok := suffixed(rateForm, f.CheckpointRate.Value)
		if !ok {
			return nil, fmt.Errorf("--checkpoint-rate %q: expected a rate, such as 2GB/s", f.CheckpointRate.Value)
		}
		if err := add(fmt.Sprintf("checkpoint_rate=%v", rate/1e9), "--checkpoint-rate "+f.CheckpointRate.Value); err != nil {
			return nil, err
		}
	}
	for _, text := range f.Assume {
		if err := add(text, "--assume "+text); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// sweepSizes returns the numbers of devices of a sweep: its end, its begin if that is a part of a
// node or full nodes, and between them parts and full nodes, each twice the one before.
func (r runFlags) sweepSizes(perNode int) []int {
	list := []int{r.sweepTo}
	if r.sweepFrom <= perNode || r.sweepFrom%perNode == 0 {
		list = append(list, r.sweepFrom)
	}
	for n := 1; n < perNode && n < r.sweepTo; n *= 2 {
		list = append(list, n)
	}
	for n := perNode; n < r.sweepTo; n *= 2 {
		list = append(list, n)
	}
	slices.Sort(list)
	return slices.DeleteFunc(slices.Compact(list), func(n int) bool { return n < r.sweepFrom })
}
