package checkpoint

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"octet/internal/spelling"
)

// Config is config.json: the shape of a Llama-style decoder, in the field names
// of Hugging Face's LlamaConfig. json.Unmarshal returns an error that names the
// key for every unknown key and every value that Octet does not support: scaled
// rotary embeddings, biases, another architecture, or a quantization other than that of
// package export. An activation need not be known. It fills in LlamaConfig's
// defaults and drops keys that change nothing (see harmlessKeys).
type Config struct {
	HiddenSize            int
	IntermediateSize      int
	NumHiddenLayers       int
	NumAttentionHeads     int
	NumKeyValueHeads      int
	HeadDim               int // width of a head; 0: HiddenSize / NumAttentionHeads
	VocabSize             int
	MaxPositionEmbeddings int
	RMSNormEps            float64
	RopeTheta             float64
	RopeScaling           RopeScaling
	QKVBias               bool // q_proj, k_proj and v_proj have a bias, as in Qwen2
	TieWordEmbeddings     bool
	HiddenAct             string // silu, as in Llama; or another, for Octet only
	Gated                 bool   // the MLP has gate_proj; with silu always
	TorchDType            string // storage format of the weights, such as "float32"; empty if absent
	FP8                   bool   // the decoder's linear layers are stored as FP8 codes, each with one scale
	Norms                 Norms
	Experts               Experts
}

// maxSize bounds every size in a config, so that the product of two fits 64 bits.
const maxSize = 1 << 24

// Validate returns an error for the first invalid field.
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
	case !positive(c.RMSNormEps):
		return fmt.Errorf("rms_norm_eps = %v: expected a positive number", c.RMSNormEps)
	case !positive(c.RopeTheta):
		return fmt.Errorf("rope_theta = %v: expected a positive number", c.RopeTheta)
	case !spelling.IsName(c.HiddenAct):
		return fmt.Errorf("hidden_act = %.80q: expected %s", c.HiddenAct, spelling.NameRule)
	case c.HiddenAct == silu && !c.Gated:
		return errors.New("hidden_act = \"silu\" needs gate_proj")
	}
	if err := c.validateHeads(); err != nil {
		return err
	}
	if err := c.RopeScaling.Validate(); err != nil {
		return fmt.Errorf("rope_scaling: %w", err)
	}
	if err := c.Experts.validate(c.Gated); err != nil {
		return err
	}
	return c.Norms.validate()
}

const silu = "silu"

// ungatedActs are the activations of an Arcee model: transformers and Octet define them alike.
var ungatedActs = []string{"gelu", "relu"}

// family is a model type of config.json. Arcee is Llama without the gate. Transformers has no
// such model with a registered activation, nor one with other norms than Llama and Qwen3, nor
// biases of queries, keys and values alone with anything but Qwen2's layers, so these have
// Octet's own types.
// Transformers then reports an unknown type instead of computing another model.
type family struct {
	modelType, architecture string
	gated                   bool

	// The defaults of transformers for num_key_value_heads, 0 for num_attention_heads, and for
	// head_dim, 0 for hidden_size / num_attention_heads.
	kvHeads, headDim int
}

var families = []family{
	{"llama", "LlamaForCausalLM", true, 0, 0},     // with silu alone
	{"qwen2", "Qwen2ForCausalLM", true, 32, 0},    // with silu and biases of queries, keys and values
	{"qwen3", "Qwen3ForCausalLM", true, 32, 128},  // with silu and norms of queries and keys
	{"arcee", "ArceeForCausalLM", false, 0, 0},    // with ungatedActs
	{"mixtral", "MixtralForCausalLM", true, 8, 0}, // with silu and experts
	{"octet", "OctetForCausalLM", false, 0, 0},
	{"octet-gated", "OctetGatedForCausalLM", true, 0, 0},
}

func (c Config) family() family {
	dense := c.Experts == Experts{}
	switch {
	case c.HiddenAct == silu && dense && c.Norms == Norms{} && c.QKVBias:
		return families[qwen2]
	case c.QKVBias: // Octet's own
	case c.HiddenAct == silu && c.Norms == Norms{} && c.Experts.mixtral():
		return families[mixtral]
	case c.HiddenAct == silu && c.Norms == Norms{} && dense:
		return families[llama]
	case c.HiddenAct == silu && c.Norms == qwen3Norms && dense:
		return families[qwen3]
	case !c.Gated && c.Norms == Norms{} && dense && slices.Contains(ungatedActs, c.HiddenAct):
		return families[arcee]
	}
	switch {
	case !c.Gated:
		return families[octet]
	}
	return families[octetGated]
}

// The indices of families.
const (
	llama = iota
	qwen2
	qwen3
	arcee
	mixtral
	octet
	octetGated
)

// Foreign reports whether transformers has the architecture, given one of its activations.
func (c Config) Foreign() bool {
	if c.QKVBias {
		return c.family() == families[qwen2]
	}
	return c.Norms.Foreign() && (c.Experts == Experts{} || c.family() == families[mixtral])
}

// MarshalJSON returns a config.json that transformers 4 and 5 read.
func (c Config) MarshalJSON() ([]byte, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	f := c.family()
	var quantization json.RawMessage
	if c.FP8 {
		quantization = json.RawMessage(quantizationConfig)
	}
	biases := new(bool)
	if f == families[qwen2] {
		biases = nil
	}
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
		AttentionBias         *bool    `json:"attention_bias,omitempty"` // Qwen2 has neither key
		MLPBias               *bool    `json:"mlp_bias,omitempty"`
		QKVBias               bool     `json:"qkv_bias,omitempty"` // of Octet's own types
		TieWordEmbeddings     bool     `json:"tie_word_embeddings"`
		BOSTokenID            *int     `json:"bos_token_id"` // null, because LlamaConfig's defaults are 1 and 2
		EOSTokenID            *int     `json:"eos_token_id"`
		TorchDType            string   `json:"torch_dtype,omitempty"`

		RopeScaling  *ropeFields     `json:"rope_scaling,omitempty"`
		Quantization json.RawMessage `json:"quantization_config,omitempty"`
		*normFields
		*expertFields
	}{
		Architectures: []string{f.architecture}, ModelType: f.modelType,
		VocabSize: c.VocabSize, HiddenSize: c.HiddenSize, IntermediateSize: c.IntermediateSize,
		NumHiddenLayers: c.NumHiddenLayers, NumAttentionHeads: c.NumAttentionHeads, NumKeyValueHeads: c.NumKeyValueHeads,
		HeadDim: c.HeadSize(), MaxPositionEmbeddings: c.MaxPositionEmbeddings,
		RMSNormEps: c.RMSNormEps, RopeTheta: c.RopeTheta, RopeScaling: c.RopeScaling.fields(), HiddenAct: c.HiddenAct,
		AttentionBias: biases, MLPBias: biases, QKVBias: c.QKVBias && f != families[qwen2],
		TieWordEmbeddings: c.TieWordEmbeddings, TorchDType: c.TorchDType, Quantization: quantization,
		normFields: c.Norms.fields(f), expertFields: c.Experts.fields(),
	})
}

// UnmarshalJSON reads a config.json of transformers 4 or 5.
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
		HiddenAct:             f.text("hidden_act", silu),
		TorchDType:            f.text("dtype", f.text("torch_dtype", "")),
	}
	family := f.family(&read)
	read.NumKeyValueHeads = f.size("num_key_value_heads", cmp.Or(family.kvHeads, read.NumAttentionHeads))
	read.HeadDim = f.headDim(read, family)
	read.RopeTheta, read.RopeScaling = f.rope()
	read.FP8 = f.quantization(read.TieWordEmbeddings)
	f.rejectUnsupported()
	f.rejectUnread(harmlessKeys)
	if f.err != nil {
		return f.err
	}
	if err := read.Validate(); err != nil {
		return err
	}
	*c = read
	return nil
}

// rejectUnsupported fails on fields whose values change what the model computes in
// a way that Octet does not support.
func (f *fields) rejectUnsupported() {
	for _, name := range []string{"attention_bias", "mlp_bias"} {
		if f.flag(name) {
			f.fail("%s = true: octet supports biases of q_proj, k_proj and v_proj only, as in Qwen2", name)
		}
	}
	f.rejectSlidingWindow()
}

// headDim returns head_dim, or 0 if it is hidden_size / num_attention_heads.
func (f *fields) headDim(c Config, family family) int {
	if f.raw("head_dim") == nil && family.headDim == 0 || c.NumAttentionHeads == 0 {
		return 0
	}
	dim := f.size("head_dim", family.headDim)
	if dim*c.NumAttentionHeads == c.HiddenSize {
		return 0
	}
	return dim
}

// rejectSlidingWindow fails on attention that ignores earlier tokens. As in
// transformers, use_sliding_window = false disables sliding_window.
func (f *fields) rejectSlidingWindow() {
	use := true
	if f.decode("use_sliding_window", &use) && use && f.raw("sliding_window") == nil {
		f.fail("use_sliding_window = true: octet supports full attention only")
	}
	if window := f.raw("sliding_window"); window != nil && use {
		f.fail("sliding_window = %s: octet supports full attention only", excerpt(window))
	}
	var layers []string
	f.decode("layer_types", &layers)
	for _, kind := range layers {
		if kind != "full_attention" {
			f.fail("layer_types contains %.80q: octet supports %q only", kind, "full_attention")
		}
	}
}

// family sets what the model type implies of c: whether the MLP has a gate, the norms, the
// biases and the experts. It fails unless model type, architecture, activation and norms agree.
func (f *fields) family(c *Config) family {
	modelType := f.text("model_type", "")
	i := slices.IndexFunc(families, func(f family) bool { return f.modelType == modelType })
	if i < 0 {
		f.fail("model_type = %q: octet supports Llama (%q), Qwen2 (%q), Qwen3 (%q), Arcee (%q) and Mixtral models (%q) only", modelType, "llama", "qwen2", "qwen3", "arcee", "mixtral")
		return family{}
	}
	if i >= mixtral {
		c.Experts = f.experts(i == mixtral)
	}
	switch {
	case i >= octet:
		c.Norms, c.QKVBias = f.norms(), f.flag("qkv_bias")
	case i == qwen2:
		c.QKVBias = true
	case i == qwen3:
		c.Norms = qwen3Norms
	}
	c.Gated = families[i].gated
	act, dense := c.HiddenAct, c.Experts == Experts{}
	switch {
	case i == arcee && !slices.Contains(ungatedActs, act):
		f.fail("hidden_act = %.80q: octet supports %q with one of %q only", act, modelType, ungatedActs)
	case i < octet && i != arcee && act != silu:
		f.fail("hidden_act = %.80q: model_type %q needs %q", act, modelType, silu)
	case i >= octet && act == silu && c.QKVBias:
		if dense && (c.Norms == Norms{}) {
			f.fail("hidden_act = %q: only model_type %q has it with these biases", act, families[qwen2].modelType)
		}
	case i >= octet && act == silu && c.Experts.mixtral() && c.Norms == Norms{}:
		f.fail("hidden_act = %q: only model_type %q has it with these experts", act, families[mixtral].modelType)
	case i >= octet && act == silu && dense && (c.Norms == Norms{} || c.Norms == qwen3Norms):
		f.fail("hidden_act = %q: only model_type %q and, with norms of queries and keys, %q have it", act, families[llama].modelType, families[qwen3].modelType)
	}
	var architectures []string
	if f.decode("architectures", &architectures) && (len(architectures) != 1 || architectures[0] != families[i].architecture) {
		f.fail("architectures = %q: octet supports %s only", architectures, families[i].architecture)
	}
	return families[i]
}

// fields reads the keys of a JSON object, which are case sensitive, and keeps the
// first error. A key with the value null counts as absent, as in transformers.
type fields struct {
	values map[string]json.RawMessage
	read   map[string]bool // the keys read so far
	err    error           // the first error
}

func parseFields(text []byte) (*fields, error) {
	f := &fields{read: map[string]bool{}}
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

// raw returns a field's JSON text; nil if the field is absent.
func (f *fields) raw(name string) json.RawMessage {
	f.read[name] = true
	if value := f.values[name]; string(value) != "null" {
		return value
	}
	return nil
}

// object reads a field that holds an object and reports whether it is present.
// An error inside the object names both keys.
func (f *fields) object(name string, read func(*fields)) (ok bool) {
	value := f.raw(name)
	if value == nil {
		return false
	}
	inner, err := parseFields(value)
	if err == nil {
		read(inner)
		err = inner.err
	}
	if err != nil {
		f.fail("%s: %w", name, err)
	}
	return true
}

// decode unmarshals a field into to and reports whether it is present and valid.
func (f *fields) decode(name string, to any) bool {
	value := f.raw(name)
	if value == nil {
		return false
	}
	if err := json.Unmarshal(value, to); err != nil {
		f.fail("%s = %s: expected %s", name, excerpt(value), kindName(to))
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

// size reads a whole number. absent is its default; 0 makes the field mandatory.
func (f *fields) size(name string, absent int) int {
	value := f.raw(name)
	if value == nil {
		if absent == 0 {
			f.fail("%s is missing", name)
		}
		return absent
	}
	n, err := strconv.Atoi(string(value))
	if err != nil || n < 1 || n > maxSize {
		f.fail("%s = %s: expected a whole number from 1 to %d", name, excerpt(value), maxSize)
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

// excerpt returns a value of the file for an error message: short and on one line.
func excerpt(value []byte) string {
	if len(value) > 80 {
		value = append(value[:80:80], "…"...)
	}
	return strings.Join(strings.Fields(string(value)), " ")
}
