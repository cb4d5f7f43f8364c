package tokenizer

import (
	"cmp"
	"container/heap"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"
)

// Trainer learns the merges of a byte-level BPE tokenizer from text, with the pattern of Llama 3. The
// merges are those of Hugging Face's BpeTrainer: the most frequent pair of symbols first, of equally
// frequent ones the pair with the smaller ids.
type Trainer struct {
	Vocab    int      // tokens, special ones and the 256 bytes included
	Special  []string // special tokens, which have the first ids
	MinCount int64    // pairs that occur less often are not merged; 0 means 1

	counts map[string]int64 // of pieces
	held   []byte           // of the text whose parts AddPart gets
}

// Add counts the pieces of a text.
func (t *Trainer) Add(text []byte) {
	if t.counts == nil {
		t.counts = map[string]int64{}
	}
	scan := scanners[patternLlama]
	for len(text) > 0 {
		n := scan(text)
		t.counts[string(text[:n])]++
		text = text[n:]
	}
}

// AddPart is Add for a part of a text; last says that the text ends with it. It cuts the text between a
// line and one that begins without white space, where no piece of the pattern crosses, and holds what
// follows.
func (t *Trainer) AddPart(text []byte, last bool) {
	const longest = 16 << 20
	if last && len(t.held) == 0 {
		t.Add(text)
		return
	}
	t.held = append(t.held, text...)
	cut := len(t.held)
	if !last {
		if cut = lastCut(t.held); cut == 0 && len(t.held) >= longest {
			cut = len(t.held)
		}
	}
	t.Add(t.held[:cut])
	t.held = t.held[:copy(t.held, t.held[cut:])]
}

// lastCut returns the end of the last line in text that is followed by other than white space.
func lastCut(text []byte) int {
	for at := len(text) - 1; at > 0; at-- {
		if text[at-1] == '\n' && utf8.FullRune(text[at:]) {
			if c, _ := next(text[at:]); !c.white() {
				return at
			}
		}
	}
	return 0
}

// word is a piece as symbols.
type word struct {
	symbols []int32
	count   int64
}

// candidate is a pair of symbols on the heap, with its count when it was put there.
type candidate struct {
	pair  [2]int32
	count int64
}

type candidates []candidate

func (c candidates) Len() int { return len(c) }
func (c candidates) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(c[j].count, c[i].count), slices.Compare(c[i].pair[:], c[j].pair[:])) < 0
}
func (c candidates) Swap(i, j int) { c[i], c[j] = c[j], c[i] }
func (c *candidates) Push(x any)   { *c = append(*c, x.(candidate)) }
func (c *candidates) Pop() any {
	last := (*c)[len(*c)-1]
	*c = (*c)[:len(*c)-1]
	return last
}

// Check returns an error for a vocabulary or special tokens that Train refuses.
func (t *Trainer) Check() error {
	least := len(t.Special) + 256
	switch {
	case t.Vocab < least:
		return fmt.Errorf("a vocabulary of %d tokens is too small: %d bytes and special tokens come first", t.Vocab, least)
	case t.Vocab > maxID:
		return fmt.Errorf("a vocabulary of %d tokens is too large: at most %d", t.Vocab, maxID)
	}
	seen := map[string]bool{"": true}
	for _, token := range t.alphabet() {
		if seen[token] {
			return fmt.Errorf("special token %q is empty, given twice, or the token of a byte", token)
		}
		seen[token] = true
	}
	return nil
}

// alphabet returns the tokens before the merges, as tokenizer.json writes them.
func (t *Trainer) alphabet() []string {
	tokens, chars := slices.Clone(t.Special), slices.Clone(byteChars[:])
	slices.Sort(chars)
	for _, r := range chars {
		tokens = append(tokens, string(r))
	}
	return tokens
}

// Train returns the tokenizer.json of the texts. It has fewer than Vocab tokens if they have too few
// different pairs.
func (t *Trainer) Train() ([]byte, error) {
	if err := t.Check(); err != nil {
		return nil, err
	}
	if len(t.counts) == 0 {
		return nil, errors.New("the files have no text")
	}
	tokens, idOf := t.alphabet(), map[string]int32{}
	for id, token := range tokens {
		idOf[token] = int32(id)
	}
	var words []word
	for _, piece := range slices.Sorted(maps.Keys(t.counts)) {
		w := word{count: t.counts[piece]}
		for i := range len(piece) {
			w.symbols = append(w.symbols, idOf[string(byteChars[piece[i]])])
		}
		words = append(words, w)
	}
	counts, places := map[[2]int32]int64{}, map[[2]int32]map[int]bool{}
	change := func(p [2]int32, by int64, at int) {
		counts[p] += by
		if by > 0 {
			if places[p] == nil {
				places[p] = map[int]bool{}
			}
			places[p][at] = true
		}
	}
	for at, w := range words {
		for i := 1; i < len(w.symbols); i++ {
			change([2]int32(w.symbols[i-1:]), w.count, at)
		}
	}
	var queue candidates
	for p, n := range counts {
		queue = append(queue, candidate{p, n})
	}
	heap.Init(&queue)
	var merges [][2]string
	for len(tokens) < t.Vocab && len(queue) > 0 {
		top := queue[0]
		if n := counts[top.pair]; n != top.count { // it has changed since
			queue[0].count = n
			heap.Fix(&queue, 0)
			continue
		}
		if top.count < max(t.MinCount, 1) {
			break
		}
		heap.Pop(&queue)
		left, right := tokens[top.pair[0]], tokens[top.pair[1]]
		id, known := idOf[left+right] // another merge may give the same token
		if !known {
			id = int32(len(tokens))
			idOf[left+right], tokens = id, append(tokens, left+right)
		}
		merges = append(merges, [2]string{left, right})
		fresh := map[[2]int32]bool{}
		for at := range places[top.pair] {
			w := &words[at]
			w.replace(top.pair, id, func(p [2]int32, by int64) {
				change(p, by*w.count, at)
				if by > 0 {
					fresh[p] = true
				}
			})
		}
		delete(places, top.pair)
		for p := range fresh {
			if counts[p] > 0 {
				heap.Push(&queue, candidate{p, counts[p]})
			}
		}
	}
	return t.json(tokens, merges)
}

// replace replaces a pair in a word by one symbol, and reports how the counts of its neighbours
// change.
func (w *word) replace(p [2]int32, id int32, change func([2]int32, int64)) {
	s := w.symbols
	n := 0
	for i := 0; i < len(s); i++ {
		if i+1 == len(s) || s[i] != p[0] || s[i+1] != p[1] {
			s[n] = s[i]
			n++
			continue
		}
		if n > 0 {
			change([2]int32{s[n-1], p[0]}, -1)
			change([2]int32{s[n-1], id}, 1)
		}
		if i+2 < len(s) {
			change([2]int32{p[1], s[i+2]}, -1)
			change([2]int32{id, s[i+2]}, 1)
		}
		s[n] = id
		n++
		i++
	}
	w.symbols = s[:n]
}

// json returns the tokenizer.json of a vocabulary.
func (t *Trainer) json(tokens []string, merges [][2]string) ([]byte, error) {
	type object = map[string]any
	vocab, added := map[string]int{}, []object{}
	for id, token := range tokens {
		vocab[token] = id
		if id < len(t.Special) {
			added = append(added, object{
				"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true,
			})
		}
	}
	byteLevel := object{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}
	split := object{"type": "Split", "pattern": object{"Regex": patternLlama}, "behavior": "Isolated", "invert": false}
	return json.MarshalIndent(object{
		"version": "1.0", "truncation": nil, "padding": nil, "added_tokens": added, "normalizer": nil,
		"pre_tokenizer":  object{"type": "Sequence", "pretokenizers": []object{split, byteLevel}},
		"post_processor": nil, "decoder": byteLevel,
		"model": object{
			"type": "BPE", "dropout": nil, "unk_token": nil, "continuing_subword_prefix": nil, "end_of_word_suffix": nil,
			"fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": merges,
		},
	}, "", " ")
}
