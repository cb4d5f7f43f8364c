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

// Layout yields the name and the shape of every tensor that a model of this
// config reads, in the order of the forward pass. Matrices are [out, in].
func (c Config) Layout() iter.Seq2[string, []int] {
	return func(yield func(string, []int) bool) {
		hidden, ffn := c.HiddenSize, c.IntermediateSize
		kv := hidden / c.NumAttentionHeads * c.NumKeyValueHeads
		type tensor struct {
			name  string
			shape []int
		}
		layer := []tensor{
			{"input_layernorm", []int{hidden}},
			{"self_attn.q_proj", []int{hidden, hidden}},
			{"self_attn.k_proj", []int{kv, hidden}},
			{"self_attn.v_proj", []int{kv, hidden}},
			{"self_attn.o_proj", []int{hidden, hidden}},
			{"post_attention_layernorm", []int{hidden}},
			{"mlp.up_proj", []int{ffn, hidden}},
			{"mlp.gate_proj", []int{ffn, hidden}},
			{"mlp.down_proj", []int{hidden, ffn}},
		}
		if c.HiddenAct != "silu" { // ungated
			layer = slices.DeleteFunc(layer, func(t tensor) bool { return t.name == "mlp.gate_proj" })
		}
		if !yield("model.embed_tokens.weight", []int{c.VocabSize, hidden}) {
			return
		}
		for i := range c.NumHiddenLayers {
			for _, t := range layer {
				if !yield(fmt.Sprintf("model.layers.%d.%s.weight", i, t.name), t.shape) {
					return
				}
			}
		}
		if yield("model.norm.weight", []int{hidden}) && !c.TieWordEmbeddings {
			yield(headWeight, []int{c.VocabSize, hidden})
		}
	}
}

const headWeight = "lm_head.weight"

// Match reports the first difference between the tensors and what a model of this
// config reads: a tensor that is missing, has another shape or another number
// format, and a tensor that the model does not read. Tensors that change nothing are
// let pass: the frequencies of rotary embeddings that transformers once saved, and
// the head of a tied model whose bytes are those of the embedding. Of a model in FP8
// every linear layer of the decoder must be in FP8, with scales that are positive and
// finite. Match reads nothing but the scales and such a head.
func (s *Tensors) Match(c Config) error {
	read := make(map[string]bool, len(s.list))
	for name, shape := range c.Layout() {
		t, ok := s.Lookup(name)
		switch {
		case !ok:
			return fmt.Errorf("%s: there is no tensor %q, which the model in %s has: %s and the weights are of different models", s.path, name, ConfigFile, ConfigFile)
		case !slices.Equal(t.Shape, shape):
			return fmt.Errorf("%s: tensor %q has the shape %v, and the model in %s has %v: %s and the weights are of different models", s.path, name, t.Shape, ConfigFile, shape, ConfigFile)
		}
		read[name] = true
		switch linear := strings.HasSuffix(name, "_proj.weight"); {
		case isWide(t.DType) && linear && c.FP8:
			return fmt.Errorf("%s: tensor %q is stored as %v, and quantization_config in %s says FP8: %s and the weights are of different models", s.path, name, t.DType, ConfigFile, ConfigFile)
		case isWide(t.DType):
		case !t.DType.IsFP8() || !linear:
			return fmt.Errorf("%s: tensor %q is stored as %v: octet reads it as fp32, bf16 or fp16", s.path, name, t.DType)
		case !c.FP8:
			return fmt.Errorf("%s: tensor %q is stored as %v, and %s has no quantization_config that says how: octet reads fp32, bf16 and fp16", s.path, name, t.DType, ConfigFile)
		default:
			for _, kind := range []string{weightScale, inputScale} {
				scale := scaleName(name, kind)
				if _, ok := s.Lookup(scale); !ok && kind == inputScale {
					continue // the input may be rounded nowhere
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
		if isFrequencies(t.Name, c.NumHiddenLayers) {
			// Match does not compare the values: transformers ignores them as well.
			if want := []int{c.HiddenSize / c.NumAttentionHeads / 2}; !slices.Equal(t.Shape, want) {
				return fmt.Errorf("%s: tensor %q has the shape %v, and the model in %s has %v: %s and the weights are of different models", s.path, t.Name, t.Shape, ConfigFile, want, ConfigFile)
			}
			continue
		}
		if t.Name == headWeight { // of a tied model: Layout has it otherwise
			if err := s.sameBytes(t.Name, "model.embed_tokens.weight"); err != nil {
				return err
			}
			continue
		}
		unread = append(unread, t.Name)
	}
	return s.refuseUnread(unread)
}

// foreign matches parameters that other architectures and adapters have.
var foreign = regexp.MustCompile(`\.bias$|\.[qk]_norm\.|lora_`)

// refuseUnread names one of the tensors that the model does not read, if there are any.
// To remove a tensor is advised only where it looks like no parameter.
func (s *Tensors) refuseUnread(unread []string) error {
	if len(unread) == 0 {
		return nil
	}
	named := unread[max(0, slices.IndexFunc(unread, foreign.MatchString))]
	others := ""
	switch n := len(unread) - 1; {
	case n == 1:
		others = " nor 1 other"
	case n > 1:
		others = fmt.Sprintf(" nor %d others", n)
	}
	why := ConfigFile + " and the weights are of different models"
	switch {
	case foreign.MatchString(named):
		why = "octet has no such parameter"
	case !strings.HasSuffix(named, ".weight"):
		why += "; remove the tensor if it does not change what the model computes"
	}
	return fmt.Errorf("%s: the model in %s does not read tensor %.200q%s: %s", s.path, ConfigFile, named, others, why)
}

var frequencies = regexp.MustCompile(`^model\.(?:layers\.(0|[1-9][0-9]*)\.self_attn\.)?rotary_emb\.inv_freq$`)

// isFrequencies reports whether a tensor holds the frequencies of rotary
// embeddings, which follow from rope_theta.
func isFrequencies(name string, layers int) bool {
	match := frequencies.FindStringSubmatch(name)
	if match == nil || match[1] == "" {
		return match != nil
	}
	layer, err := strconv.Atoi(match[1])
	return err == nil && layer < layers
}

// sameBytes wants two tensors that are stored alike.
func (s *Tensors) sameBytes(name, other string) error {
	differ := fmt.Errorf("%s: tensor %q is not the same as %q, and %s has tie_word_embeddings = true: %s and the weights are of different models", s.path, name, other, ConfigFile, ConfigFile)
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
