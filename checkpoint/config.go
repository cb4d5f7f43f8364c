package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Config is config.json: the shape of a Llama-style decoder in the field
// names of Hugging Face's LlamaConfig. Reading (json.Unmarshal) fails on what
// Octet cannot compute (scaled rotary embeddings, biases, another
// architecture or activation, weights quantised otherwise than package export
// does) and names the field; it
// fills in LlamaConfig's defaults, and leaves out fields that change nothing.
type Config struct {
	HiddenSize            int
	IntermediateSize      int
	NumHiddenLayers       int
	NumAttentionHeads     int
	NumKeyValueHeads      int
	VocabSize             int
	MaxPositionEmbeddings int
	RMSNormEps            float64
	RopeTheta             float64
	TieWordEmbeddings     bool
	HiddenAct             string // silu: gated, Llama's; gelu, relu: ungated, Octet's own
	TorchDType            string // what the weights are stored in, "float32"; empty if the file does not say
}

// maxSize bounds every size in a config, so that products of two fit 64 bits.
const maxSize = 1 << 24

// Validate reports the first field that makes no sense.
func (c Config) Validate() error {
	for _, f := range []struct {
		name string
		n    int
	}{
		{"hidden_size", c.HiddenSize},
		{"intermediate_size", c.IntermediateSize},
		{"num_hidden_layers", c.NumHiddenLayers},
		{"num_attention_heads", c.NumAttentionHeads},
		{"num_key_value_heads", c.NumKeyValueHeads},
		{"vocab_size", c.VocabSize},
		{"max_position_embeddings", c.MaxPositionEmbeddings},
	} {
		if f.n < 1 || f.n > maxSize {
			return fmt.Errorf("%s = %d: expected a whole number from 1 to %d", f.name, f.n, maxSize)
		}
	}
	positive := func(x float64) bool { return x > 0 && !math.IsInf(x, 1) }
	switch {
	case c.HiddenSize%c.NumAttentionHeads != 0:
		return fmt.Errorf("hidden_size = %d is not a multiple of num_attention_heads = %d", c.HiddenSize, c.NumAttentionHeads)
	case c.NumAttentionHeads%c.NumKeyValueHeads != 0:
		return fmt.Errorf("num_attention_heads = %d is not a multiple of num_key_value_heads = %d", c.NumAttentionHeads, c.NumKeyValueHeads)
	case !positive(c.RMSNormEps):
		return fmt.Errorf("rms_norm_eps = %v: expected a positive number", c.RMSNormEps)
	case !positive(c.RopeTheta):
		return fmt.Errorf("rope_theta = %v: expected a positive number", c.RopeTheta)
	case !slices.ContainsFunc(families, func(f family) bool { return slices.Contains(f.activations, c.HiddenAct) }):
		return fmt.Errorf("hidden_act = %q: octet has silu, gelu and relu", c.HiddenAct)
	}
	return nil
}

// family is a model type of config.json. No model of transformers has Llama's
// blocks without the gate, so an ungated model bears Octet's own name:
// transformers then says that it does not know it, where under Llama's name it
// would compute something else.
type family struct {
	modelType, architecture string
	activations             []string
}

var families = []family{
	{"llama", "LlamaForCausalLM", []string{"silu"}},
	{"octet", "OctetForCausalLM", []string{"gelu", "relu"}},
}

// MarshalJSON writes the file as transformers 4 and 5 both read it.
func (c Config) MarshalJSON() ([]byte, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	f := families[slices.IndexFunc(families, func(f family) bool { return slices.Contains(f.activations, c.HiddenAct) })]
	return json.Marshal(struct {
		Architectures         []string `json:"architectures"`
		ModelType             string   `json:"model_type"`
		VocabSize             int      `json:"vocab_size"`
		HiddenSize            int      `json:"hidden_size"`
		IntermediateSize      int      `json:"intermediate_size"`
		NumHiddenLayers       int      `json:"num_hidden_layers"`
		NumAttentionHeads     int      `json:"num_attention_heads"`
		NumKeyValueHeads      int      `json:"num_key_value_heads"`
		HeadDim               int      `json:"head_dim"`
		MaxPositionEmbeddings int      `json:"max_position_embeddings"`
		RMSNormEps            float64  `json:"rms_norm_eps"`
		RopeTheta             float64  `json:"rope_theta"`
		HiddenAct             string   `json:"hidden_act"`
		AttentionBias         bool     `json:"attention_bias"`
		MLPBias               bool     `json:"mlp_bias"`
		TieWordEmbeddings     bool     `json:"tie_word_embeddings"`
		BOSTokenID            *int     `json:"bos_token_id"` // null: LlamaConfig's defaults are 1 and 2
		EOSTokenID            *int     `json:"eos_token_id"`
		TorchDType            string   `json:"torch_dtype,omitempty"`
	}{
		Architectures: []string{f.architecture}, ModelType: f.modelType,
		VocabSize: c.VocabSize, HiddenSize: c.HiddenSize, IntermediateSize: c.IntermediateSize,
		NumHiddenLayers: c.NumHiddenLayers, NumAttentionHeads: c.NumAttentionHeads, NumKeyValueHeads: c.NumKeyValueHeads,
		HeadDim: c.HiddenSize / c.NumAttentionHeads, MaxPositionEmbeddings: c.MaxPositionEmbeddings,
		RMSNormEps: c.RMSNormEps, RopeTheta: c.RopeTheta, HiddenAct: c.HiddenAct,
		TieWordEmbeddings: c.TieWordEmbeddings, TorchDType: c.TorchDType,
	})
}

// UnmarshalJSON reads a config.json of transformers, of version 5 too, which
// keeps rope_theta inside rope_parameters.
func (c *Config) UnmarshalJSON(text []byte) error {
	f, err := parseFields(text)
	if err != nil {
		return err
	}
	read := Config{
		HiddenSize:            f.size("hidden_size", 0),
		IntermediateSize:      f.size("intermediate_size", 0),
		NumHiddenLayers:       f.size("num_hidden_layers", 0),
		NumAttentionHeads:     f.size("num_attention_heads", 0),
		VocabSize:             f.size("vocab_size", 0),
		MaxPositionEmbeddings: f.size("max_position_embeddings", 2048),
		RMSNormEps:            f.number("rms_norm_eps", 1e-6),
		TieWordEmbeddings:     f.flag("tie_word_embeddings"),
		HiddenAct:             f.text("hidden_act", "silu"),
		TorchDType:            f.text("dtype", f.text("torch_dtype", "")),
	}
	read.NumKeyValueHeads = f.size("num_key_value_heads", read.NumAttentionHeads)
	read.RopeTheta = f.rope()
	f.family(read.HiddenAct)
	f.unsupported(read)
	if f.err != nil {
		return f.err
	}
	if err := read.Validate(); err != nil {
		return err
	}
	*c = read
	return nil
}

// unsupported refuses fields whose value changes what the model computes in a
// way that Octet does not follow.
func (f *fields) unsupported(c Config) {
	for _, name := range []string{"attention_bias", "mlp_bias"} {
		if f.flag(name) {
			f.fail("%s = true: octet has no biases", name)
		}
	}
	if heads := c.NumAttentionHeads; heads > 0 {
		if dim := f.size("head_dim", c.HiddenSize/heads); dim != c.HiddenSize/heads {
			f.fail("head_dim = %d: octet needs hidden_size / num_attention_heads = %d", dim, c.HiddenSize/heads)
		}
	}
	f.quantization()
}

// quantization refuses weights in codes that Octet does not read: it has those of its own
// exports in FP8.
func (f *fields) quantization() {
	const name = "quantization_config"
	if !f.has(name) {
		return
	}
	in, err := parseFields(f.values[name])
	if err != nil {
		f.fail("%s: %w", name, err)
		return
	}
	method, format := in.text("quant_method", ""), in.text("format", "")
	if method != "compressed-tensors" || format != "float-quantized" {
		f.fail("%s: quant_method = %.80q, format = %.80q: octet reads weights that are not quantised, or \"float-quantized\" by \"compressed-tensors\"", name, method, format)
	}
}

// family checks the model's type and architecture against its activation.
func (f *fields) family(act string) {
	modelType := f.text("model_type", "")
	i := slices.IndexFunc(families, func(f family) bool { return f.modelType == modelType })
	if i < 0 {
		f.fail("model_type = %q: octet has Llama models (%q) only", modelType, "llama")
		return
	}
	if !slices.Contains(families[i].activations, act) {
		f.fail("hidden_act = %q: a model of type %q has one of %q", act, modelType, families[i].activations)
	}
	var architectures []string
	if f.decode("architectures", &architectures) && (len(architectures) != 1 || architectures[0] != families[i].architecture) {
		f.fail("architectures = %q: octet has %s only", architectures, families[i].architecture)
	}
}

// rope reads rope_theta, wherever it is, and refuses any form of rotary
// embedding but the plain one.
func (f *fields) rope() float64 {
	theta := f.number("rope_theta", 10000)
	f.plainRope("", f)
	for _, name := range []string{"rope_scaling", "rope_parameters"} {
		if !f.has(name) {
			continue
		}
		inner, err := parseFields(f.values[name])
		if err != nil {
			f.fail("%s: %w", name, err)
			continue
		}
		kind := inner.text("rope_type", inner.text("type", "default"))
		if kind != "default" {
			f.fail("%s: rope_type = %q: octet has plain rotary embeddings only", name, kind)
		}
		f.plainRope(name+": ", inner)
		theta = inner.number("rope_theta", theta)
		if inner.err != nil {
			f.fail("%s: %w", name, inner.err)
		}
	}
	return theta
}

func (f *fields) plainRope(where string, in *fields) {
	if part := in.number("partial_rotary_factor", 1); part != 1 {
		f.fail("%spartial_rotary_factor = %v: octet rotates whole heads only", where, part)
	}
}

// fields are the keys of a JSON object, matched by case, with the first error
// kept. A key with the value null counts as absent, as it does in
// transformers.
type fields struct {
	values map[string]json.RawMessage
	err    error
}

func parseFields(text []byte) (*fields, error) {
	f := &fields{}
	if err := json.Unmarshal(text, &f.values); err != nil {
		return nil, errors.New("expected a JSON object")
	}
	return f, nil
}

func (f *fields) fail(format string, args ...any) {
	if f.err == nil {
		f.err = fmt.Errorf(format, args...)
	}
}

func (f *fields) has(name string) bool {
	value, ok := f.values[name]
	return ok && string(value) != "null"
}

// decode reads a field if it is there.
func (f *fields) decode(name string, to any) bool {
	if !f.has(name) {
		return false
	}
	if err := json.Unmarshal(f.values[name], to); err != nil {
		f.fail("%s = %s: expected %s", name, clip(f.values[name]), kindName(to))
		return false
	}
	return true
}

func (f *fields) text(name, absent string) string {
	s := absent
	f.decode(name, &s)
	return s
}

func (f *fields) flag(name string) (b bool) {
	f.decode(name, &b)
	return b
}

// size reads a whole number; absent 0 means that the field must be there.
func (f *fields) size(name string, absent int) int {
	if !f.has(name) {
		if absent == 0 {
			f.fail("%s is missing", name)
		}
		return absent
	}
	n, err := strconv.Atoi(string(f.values[name]))
	if err != nil || n < 1 || n > maxSize {
		f.fail("%s = %s: expected a whole number from 1 to %d", name, clip(f.values[name]), maxSize)
		return 0
	}
	return n
}

func (f *fields) number(name string, absent float64) float64 {
	x := absent
	f.decode(name, &x)
	return x
}

func kindName(to any) string {
	switch to.(type) {
	case *string:
		return "a string"
	case *bool:
		return "true or false"
	case *float64:
		return "a number"
	default:
		return "a list of strings"
	}
}

// clip is a value of the file as an error repeats it: short, on one line.
func clip(value []byte) string {
	if len(value) > 80 {
		value = append(value[:80:80], "…"...)
	}
	return strings.Join(strings.Fields(string(value)), " ")
}
