package tokenizer

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strconv"
)

// A rank file of tiktoken has a line for each token, its bytes in base64 and its rank, which is its id.
// The pattern and the special tokens are not in the file, so that octet knows files by their number
// of ranks.
var rankFiles = map[int]struct {
	pattern string
	special func(id int) string // of the ids from the number of ranks on; "" ends them
}{
	50256:  {patternGPT2, only("<|endoftext|>")},
	128000: {patternLlama, llamaSpecial},
	151643: {patternQwen, only("<|endoftext|>", "<|im_start|>", "<|im_end|>")},
}

func only(list ...string) func(int) string {
	return func(i int) string {
		if i < len(list) {
			return list[i]
		}
		return ""
	}
}

// llamaSpecial names Llama 3's special tokens (llama-models, models/llama3/tokenizer.py).
func llamaSpecial(i int) string {
	named := []string{
		"<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>", "<|finetune_right_pad_id|>", "<|step_id|>",
		"<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>",
	}
	switch {
	case i < len(named):
		return named[i]
	case i < 256:
		return fmt.Sprintf("<|reserved_special_token_%d|>", i-len(named)+2)
	}
	return ""
}

// ParseRanks reads a rank file of tiktoken.
func ParseRanks(raw []byte) (*Tokenizer, error) {
	t := &Tokenizer{unknown: -1, ignoreMerges: true, ids: map[string]int32{}}
	line := 0
	for len(raw) > 0 {
		text, rest, _ := bytes.Cut(raw, []byte{'\n'})
		raw = rest
		if line++; len(text) == 0 {
			continue
		}
		code, number, _ := bytes.Cut(text, []byte{' '})
		token, err := base64.StdEncoding.AppendDecode(nil, code)
		if err != nil || len(token) == 0 {
			return nil, fmt.Errorf("line %d: %q: expected the bytes of a token in base64, and its rank", line, text)
		}
		rank, err := strconv.Atoi(string(bytes.TrimSuffix(number, []byte{'\r'})))
		if err != nil || rank != len(t.tokens) {
			return nil, fmt.Errorf("line %d: rank %q: expected %d, the ranks in order", line, number, len(t.tokens))
		}
		if _, twice := t.ids[string(token)]; twice {
			return nil, fmt.Errorf("line %d: token %q is there twice", line, token)
		}
		t.ids[string(token)], t.tokens = int32(rank), append(t.tokens, token)
	}
	known, ok := rankFiles[len(t.tokens)]
	if !ok {
		return nil, fmt.Errorf("%d ranks: octet knows the pattern of files with 50256 (GPT-2), 128000 (Llama 3) and 151643 (Qwen); use a tokenizer.json", len(t.tokens))
	}
	if err := t.readBytes(); err != nil {
		return nil, err
	}
	t.scan = scanners[known.pattern]
	t.anySplit(func(id int32) (string, int32, bool) { return string(t.tokens[id]), id, true })
	for i := 0; known.special(i) != ""; i++ {
		id, content := int32(len(t.tokens)), known.special(i)
		t.tokens = append(t.tokens, []byte(content))
		t.added = append(t.added, addedToken{id: id, content: content, special: true})
	}
	t.finish()
	return t, nil
}

// readBytes fills byteIDs of a byte-level vocabulary.
func (t *Tokenizer) readBytes() error {
	for b := range t.byteIDs {
		id, ok := t.ids[string([]byte{byte(b)})]
		if !ok {
			return fmt.Errorf("there is no token for the byte 0x%02X", b)
		}
		t.byteIDs[b] = id
	}
	return nil
}

// anySplit fills merges of a vocabulary without a list of them: any two tokens that make up a token
// merge. token returns the text of an id, its rank, and whether merges give it.
func (t *Tokenizer) anySplit(token func(id int32) (text string, rank int32, merged bool)) {
	each := func(visit func(left, right, rank, id int32)) {
		for id := range t.tokens {
			text, rank, merged := token(int32(id))
			for i := 1; merged && i < len(text); i++ {
				left, ok := t.ids[text[:i]]
				right, also := t.ids[text[i:]]
				if ok && also {
					visit(left, right, rank, int32(id))
				}
			}
		}
	}
	n := 0
	each(func(_, _, _, _ int32) { n++ })
	t.merges = newMerges(n)
	each(t.merges.add)
}
