package inspect

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"octet/checkpoint"
	"octet/fp8"
	"octet/internal/writers"
)

// Cast is the scale state of one cast of one tensor.
type Cast struct {
	Name     string        `json:"name"`
	Scale    writers.Float `json:"scale"`
	ScaleInv writers.Float `json:"scale_inv"`
	// Amaxes in the history: the newest, and the smallest and the largest of those that are
	// not 0. Entries of future updates are 0.
	Newest  writers.Float `json:"newest"`
	Lowest  writers.Float `json:"lowest"`
	Highest writers.Float `json:"highest"`
	Updates int           `json:"updates"` // number of amaxes that are not 0
	Window  int           `json:"window"`
	// Fill is the newest amax times the scale, as a share of the format's largest value:
	// above 1 the cast saturates.
	Fill writers.Float `json:"fill"`

	format  fp8.DType
	blocks  bool      // the scale is the one beside block scales
	history []float32 // newest first
}

const historySuffix = ".amax_history"

// casts reads the scale state of all casts, which it finds by the names of the tensors.
func casts(from *checkpoint.Tensors) ([]Cast, error) {
	list := []Cast{}
	for _, t := range from.List() {
		name, ok := strings.CutSuffix(t.Name, historySuffix)
		if !ok {
			continue
		}
		c := Cast{Name: name}
		var err error
		if err = c.parse(); err != nil {
			return nil, fmt.Errorf("%s: %w", t.Name, err)
		}
		if c.history, err = floats(from, t.Name); err != nil {
			return nil, err
		}
		scale, err := floats(from, name+".scale")
		if err != nil {
			return nil, err
		}
		scaleInv, err := floats(from, name+".scale_inv")
		if err != nil {
			return nil, err
		}
		if len(c.history) == 0 || len(scale) != 1 || len(scaleInv) != 1 {
			return nil, fmt.Errorf("%s has %d amaxes, %d scales and %d inverses: expected one scale and its inverse", name, len(c.history), len(scale), len(scaleInv))
		}
		c.Scale, c.ScaleInv = writers.Float(scale[0]), writers.Float(scaleInv[0])
		c.summarize()
		list = append(list, c)
	}
	return list, nil
}

var isBlock = regexp.MustCompile(`^([0-9]+|\*)x([0-9]+|\*)$`)

// parse reads the format from the name, in which a block, a rotation and more may follow it.
func (c *Cast) parse() (err error) {
	for _, part := range slices.Backward(strings.Split(c.Name, ".")) {
		c.blocks = c.blocks || isBlock.MatchString(part)
		if c.format, err = fp8.ParseDType(part); err == nil {
			return nil
		}
	}
	return errors.New("the name has no number format")
}

// summarize sets the fields that follow from the history and the scale.
func (c *Cast) summarize() {
	c.Window, c.Newest = len(c.history), writers.Float(c.history[0])
	for _, a := range c.history {
		if a == 0 {
			continue
		}
		if c.Updates++; c.Updates == 1 {
			c.Lowest, c.Highest = writers.Float(a), writers.Float(a)
		}
		c.Lowest, c.Highest = min(c.Lowest, writers.Float(a)), max(c.Highest, writers.Float(a))
	}
	if c.blocks { // block scales follow: the cast saturates only by their rounding
		c.Fill = c.Newest / max(c.Highest, c.Newest)
		return
	}
	// In float32, like the cast and fp8.ScaleFor.
	c.Fill = writers.Float(float32(c.Newest)*float32(c.Scale)) / writers.Float(c.format.Max())
}

// maxFloats bounds the length of histories and scales, which are read at once.
const maxFloats = 1 << 20

// floats reads a short tensor.
func floats(from *checkpoint.Tensors, name string) ([]float32, error) {
	t, ok := from.Lookup(name)
	if !ok {
		return nil, fmt.Errorf("there is no tensor %q", name)
	}
	if t.DType != fp8.F32 || t.Elems() > maxFloats {
		return nil, fmt.Errorf("%s is %s %v: expected a few values of fp32", name, t.DType, t.Shape)
	}
	var all []float32
	err := eachChunk(from, t, func(x []float32, _ []byte) { all = append(all, x...) })
	return all, err
}
