package checkpoint

import (
	"bytes"
	"fmt"
	"io"
	"iter"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// EmbeddingWeight is the name of the embedding's table, with a row for each token.
const EmbeddingWeight = "model.embed_tokens.weight"

// Layout yields the name and shape of every tensor of a model with this config, in
// the order of the forward pass. Matrices are [out, in].
func (c Config) Layout() iter.Seq2[string, []int] {
	return func(yield func(string, []int) bool) {
		hidden, ffn := c.HiddenSize, c.IntermediateSize
		heads, kv := c.NumAttentionHeads*c.HeadSize(), c.NumKeyValueHeads*c.HeadSize()
		layer := c.Norms.layer([]tensor{
			{"input_layernorm", []int{hidden}},
			{"self_attn.q_proj", []int{heads, hidden}},
			{"self_attn.q_proj.bias", []int{heads}},
			{"self_attn.k_proj", []int{kv, hidden}},
			{"self_attn.k_proj.bias", []int{kv}},
			{"self_attn.v_proj", []int{kv, hidden}},
			{"self_attn.v_proj.bias", []int{kv}},
			{"self_attn.o_proj", []int{hidden, heads}},
			{"post_attention_layernorm", []int{hidden}},
			{"mlp.up_proj", []int{ffn, hidden}},
			{"mlp.gate_proj", []int{ffn, hidden}},
			{"mlp.down_proj", []int{hidden, ffn}},
		}, hidden, c.HeadSize())
		layer = c.Experts.layer(layer, hidden, ffn)
		if !c.Gated {
			layer = slices.DeleteFunc(layer, func(t tensor) bool { return t.name == "mlp.gate_proj" })
		}
		if !c.QKVBias {
			layer = slices.DeleteFunc(layer, func(t tensor) bool { return strings.HasSuffix(t.name, biasSuffix) })
		}
		if !yield(EmbeddingWeight, []int{c.VocabSize, hidden}) {
			return
		}
		for i := range c.NumHiddenLayers {
			for _, t := range layer {
				name := fmt.Sprintf("model.layers.%d.%s", i, t.name)
				if !strings.HasSuffix(name, biasSuffix) {
					name += ".weight"
				}
				if !yield(name, t.shape) {
					return
				}
			}
		}
		if !c.Norms.NoFinal && !yield("model.norm.weight", []int{hidden}) {
			return
		}
		if !c.TieWordEmbeddings {
			yield(headWeight, []int{c.VocabSize, hidden})
		}
	}
}

const (
	headWeight = "lm_head.weight"
	biasSuffix = ".bias"
)

// Match returns an error for the first difference between the tensors and the config's
// model: a tensor that is missing, has the wrong shape or format, or that the model does
// not read. It ignores two kinds of extra tensors: rotary frequencies, which older
// transformers saved, and the head of a tied model if its bytes equal the embedding's.
//
// In an FP8 model every linear layer of the decoder must be FP8, with positive finite
// scales. Match reads no data but these scales and the head of a tied model.
func (s *Tensors) Match(c Config) error {
	read := make(map[string]bool, len(s.list))
	for name, shape := range c.Layout() {
		t, ok := s.Lookup(name)
		switch {
		case !ok:
			return fmt.Errorf("%s: there is no tensor %q, which the model in %s needs: %s and the weights are of different models", s.path, name, ConfigFile, ConfigFile)
		case !slices.Equal(t.Shape, shape):
			return fmt.Errorf("%s: tensor %q has the shape %v, but the model in %s needs %v: %s and the weights are of different models", s.path, name, t.Shape, ConfigFile, shape, ConfigFile)
		}
		read[name] = true
		switch linear := strings.HasSuffix(name, "_proj.weight"); {
		case t.DType.IsWide() && linear && c.FP8:
			return fmt.Errorf("%s: tensor %q is stored as %v, but quantization_config in %s says FP8: %s and the weights are of different models", s.path, name, t.DType, ConfigFile, ConfigFile)
		case t.DType.IsWide():
		case !t.DType.IsQuantized() || t.DType.IsInteger() || !linear:
			return fmt.Errorf("%s: tensor %q is stored as %v: octet reads it as fp32, bf16 or fp16", s.path, name, t.DType)
		case !c.FP8:
			return fmt.Errorf("%s: tensor %q is stored as %v, but %s has no quantization_config: without one, octet reads fp32, bf16 and fp16", s.path, name, t.DType, ConfigFile)
		default:
			for _, kind := range []string{weightScale, inputScale} {
				scale := scaleName(name, kind)
				if _, ok := s.Lookup(scale); !ok && kind == inputScale {
					continue // weight-only quantization has no input scale
				}
				if _, err := s.scale(scale); err != nil {
					return err
				}
				read[scale] = true
			}
		}
	}
	var unread []string
	for _, t := range s.list {
		if read[t.Name] {
			continue
		}
		if isRotaryFrequencies(t.Name, c.NumHiddenLayers) {
			// Match does not compare the values, because transformers ignores them too.
			if want := []int{c.HeadSize() / 2}; !slices.Equal(t.Shape, want) {
				return fmt.Errorf("%s: tensor %q has the shape %v, but the model in %s needs %v: %s and the weights are of different models", s.path, t.Name, t.Shape, ConfigFile, want, ConfigFile)
			}
			continue
		}
		if t.Name == headWeight { // c is tied; Layout yields the head of an untied model
			if err := s.requireSameBytes(t.Name, EmbeddingWeight); err != nil {
				return err
			}
			continue
		}
		unread = append(unread, t.Name)
	}
	return s.rejectUnread(unread)
}

// foreignParam matches parameters of other architectures and of adapters.
var foreignParam = regexp.MustCompile(`\.bias$|lora_`)

// rejectUnread returns an error if there are tensors that the model does not read, and
// names one of them. It advises removal only for a tensor that is not a parameter by its
// name.
func (s *Tensors) rejectUnread(unread []string) error {
	if len(unread) == 0 {
		return nil
	}
	named := unread[max(0, slices.IndexFunc(unread, foreignParam.MatchString))]
	others := ""
	switch n := len(unread) - 1; {
	case n == 1:
		others = " nor 1 other"
	case n > 1:
		others = fmt.Sprintf(" nor %d others", n)
	}
	why := ConfigFile + " and the weights are of different models"
	switch {
	case foreignParam.MatchString(named):
		why = "octet has no such parameter"
	case !strings.HasSuffix(named, ".weight"):
		why += "; remove the tensor if it does not change what the model computes"
	}
	return fmt.Errorf("%s: the model in %s does not read tensor %.200q%s: %s", s.path, ConfigFile, named, others, why)
}

var frequencies = regexp.MustCompile(`^model\.(?:layers\.(0|[1-9][0-9]*)\.self_attn\.)?rotary_emb\.inv_freq$`)

// isRotaryFrequencies reports whether a tensor holds the frequencies of rotary
// embeddings, which rope_theta determines.
func isRotaryFrequencies(name string, layers int) bool {
	match := frequencies.FindStringSubmatch(name)
	if match == nil || match[1] == "" {
		return match != nil
	}
	layer, err := strconv.Atoi(match[1])
	return err == nil && layer < layers
}

// requireSameBytes returns an error unless both tensors have the same format, shape and
// bytes.
func (s *Tensors) requireSameBytes(name, other string) error {
	differ := fmt.Errorf("%s: tensor %q differs from %q, but %s has tie_word_embeddings = true: %s and the weights are of different models", s.path, name, other, ConfigFile, ConfigFile)
	a, _ := s.Lookup(name)
	b, _ := s.Lookup(other)
	if a.DType != b.DType || !slices.Equal(a.Shape, b.Shape) {
		return differ
	}
	from, err := s.Reader(name)
	if err != nil {
		return err
	}
	with, err := s.Reader(other)
	if err != nil {
		return err
	}
	x, y := make([]byte, 1<<16), make([]byte, 1<<16)
	for {
		n, err := io.ReadFull(from, x)
		if _, err := io.ReadFull(with, y[:n]); err != nil {
			return fmt.Errorf("%s: tensor %q: %w", s.path, other, err)
		}
		if !bytes.Equal(x[:n], y[:n]) {
			return differ
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: tensor %q: %w", s.path, name, err)
		}
	}
}
