package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
)

// RopeScaling divides frequencies of the rotary embeddings by Factor: all of them if Original is
// 0, which is rope_type "linear", else as "llama3" does. The zero value divides none.
type RopeScaling struct {
	Factor   float64 // factor
	LowFreq  float64 // low_freq_factor
	HighFreq float64 // high_freq_factor
	Original int     // original_max_position_embeddings
}

// String returns the value of the key of the configuration: "[8, 1, 4, 8192]".
func (s RopeScaling) String() string {
	switch {
	case s == RopeScaling{}:
		return "[]"
	case s.Original == 0:
		return fmt.Sprintf("[%v]", s.Factor)
	}
	return fmt.Sprintf("[%v, %v, %v, %d]", s.Factor, s.LowFreq, s.HighFreq, s.Original)
}

// Validate returns an error for the first invalid field.
func (s RopeScaling) Validate() error {
	finite := func(x float64) bool { return !math.IsInf(x, 0) && !math.IsNaN(x) }
	switch {
	case s == RopeScaling{}:
		return nil
	case !(s.Factor >= 1) || !finite(s.Factor):
		return fmt.Errorf("factor = %v: expected a number of at least 1", s.Factor)
	case s.Original == 0 && s.LowFreq == 0 && s.HighFreq == 0:
		return nil
	case s.Original < 1 || s.Original > maxSize:
		return fmt.Errorf("original_max_position_embeddings = %d: expected a whole number from 1 to %d", s.Original, maxSize)
	case !(s.LowFreq > 0) || !finite(s.LowFreq):
		return fmt.Errorf("low_freq_factor = %v: expected a positive number", s.LowFreq)
	case !(s.HighFreq > s.LowFreq) || !finite(s.HighFreq):
		return fmt.Errorf("high_freq_factor = %v: expected more than low_freq_factor = %v", s.HighFreq, s.LowFreq)
	}
	return nil
}

// ropeFields is rope_scaling in config.json.
type ropeFields struct {
	Type     string  `json:"rope_type"`
	Factor   decimal `json:"factor"`
	LowFreq  decimal `json:"low_freq_factor,omitempty"`
	HighFreq decimal `json:"high_freq_factor,omitempty"`
	Original int     `json:"original_max_position_embeddings,omitempty"`
}

// decimal is a number with a point in JSON, since transformers 4 warns of an integer: 8.0.
type decimal float64

func (x decimal) MarshalJSON() ([]byte, error) {
	text, err := json.Marshal(float64(x))
	if err == nil && !bytes.ContainsAny(text, ".e") {
		text = append(text, ".0"...)
	}
	return text, err
}

// fields returns rope_scaling, nil for the zero value.
func (s RopeScaling) fields() *ropeFields {
	switch {
	case s == RopeScaling{}:
		return nil
	case s.Original == 0:
		return &ropeFields{Type: "linear", Factor: decimal(s.Factor)}
	}
	return &ropeFields{"llama3", decimal(s.Factor), decimal(s.LowFreq), decimal(s.HighFreq), s.Original}
}

// rope returns rope_theta and the scaling of frequencies from any of their places: version 5 of
// transformers has one object for both. It fails on rotary embeddings that Octet lacks.
func (f *fields) rope() (theta float64, scaling RopeScaling) {
	theta = f.number("rope_theta", 10000)
	given := f.raw("rope_theta") != nil
	f.rejectPartialRotary()
	for _, name := range []string{"rope_scaling", "rope_parameters"} {
		f.object(name, func(inner *fields) {
			if s := inner.scaling(); s != (RopeScaling{}) {
				if scaling != s && scaling != (RopeScaling{}) {
					inner.fail("it scales by %v, but another key says %v: programs differ in which one they read; keep one", s, scaling)
				}
				scaling = s
			}
			inner.rejectPartialRotary()
			if inner.raw("rope_theta") != nil {
				outer := theta
				if theta = inner.number("rope_theta", theta); given && theta != outer {
					inner.fail("rope_theta = %v, but another key says %v: programs differ in which one they read; keep one", theta, outer)
				}
				given = true
			}
			inner.rejectUnread(map[string]any{"factor": 1.0})
		})
	}
	return theta, scaling
}

// scaling reads the type of rotary embeddings and the keys that the type has. A linear factor
// of 1 scales nothing.
func (f *fields) scaling() (s RopeScaling) {
	kind := ""
	for _, key := range []string{"rope_type", "type"} {
		switch name := f.text(key, kind); {
		case kind != "" && name != kind:
			f.fail("%s = %.80q, but rope_type = %q: keep one", key, name, kind)
		case name != "" && name != "default" && name != "linear" && name != "llama3":
			f.fail("%s = %.80q: octet supports default, linear and llama3 only", key, name)
		default:
			kind = name
		}
	}
	switch kind {
	case "linear":
		s.Factor = f.required("factor")
	case "llama3":
		s = RopeScaling{f.required("factor"), f.required("low_freq_factor"), f.required("high_freq_factor"), f.size("original_max_position_embeddings", 0)}
	}
	if kind != "" && kind != "default" && s.Factor == 0 { // the zero value scales nothing
		f.fail("factor = 0: expected a number of at least 1")
	}
	if err := s.Validate(); err != nil {
		f.fail("%w", err)
	}
	if kind == "linear" && s.Factor == 1 {
		return RopeScaling{}
	}
	return s
}

// required reads a number that must be there.
func (f *fields) required(name string) float64 {
	if f.raw(name) == nil {
		f.fail("%s is missing", name)
	}
	return f.number(name, 0)
}

func (f *fields) rejectPartialRotary() {
	if part := f.number("partial_rotary_factor", 1); part != 1 {
		f.fail("partial_rotary_factor = %v: octet supports rotation of whole heads (1) only", part)
	}
}

// validateHeads checks the sizes of heads.
func (c Config) validateHeads() error {
	switch {
	case c.HeadDim < 0 || c.HeadDim > maxSize:
		return fmt.Errorf("head_dim = %d: expected a whole number from 1 to %d", c.HeadDim, maxSize)
	case c.HeadDim == 0 && c.HiddenSize%c.NumAttentionHeads != 0:
		return fmt.Errorf("hidden_size = %d is not a multiple of num_attention_heads = %d", c.HiddenSize, c.NumAttentionHeads)
	case c.NumAttentionHeads%c.NumKeyValueHeads != 0:
		return fmt.Errorf("num_attention_heads = %d is not a multiple of num_key_value_heads = %d", c.NumAttentionHeads, c.NumKeyValueHeads)
	case c.HeadSize() > maxSize/c.NumAttentionHeads:
		return errors.New("num_attention_heads · head_dim is too large")
	}
	return nil
}

// HeadSize returns the width of a head.
func (c Config) HeadSize() int {
	if c.HeadDim > 0 {
		return c.HeadDim
	}
	return c.HiddenSize / c.NumAttentionHeads
}
