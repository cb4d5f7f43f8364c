package infer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"octet/backend"
	"octet/fp8"
	"octet/nn"
	"octet/recipe"
)

// prefillSeq is the number of prompt tokens of one prefill.
const prefillSeq = 64

// Generator continues one sequence, token by token, with a KV cache.
type Generator struct {
	*session
	prefill, decode      backend.Executable
	chunk, token, logits *backend.Tensor
	context              int
	raw                  []byte
	values               []float32 // logits of the next token
	order                []int32   // token ids by decreasing probability
	weights              []float64 // their unnormalized probabilities
}

// NewGenerator loads a model on a device for sequences of at most context tokens,
// prompt included.
func NewGenerator(ctx context.Context, c nn.Config, r recipe.Recipe, w Weights, dev backend.Backend, context int) (*Generator, error) {
	g, programs, err := record(c, r, dev.Spec(), context)
	if err != nil {
		return nil, err
	}
	g.dev = dev
	loaded, err := g.start(ctx, w, programs...)
	if err != nil {
		return nil, err
	}
	g.prefill, g.decode = loaded[0], loaded[1]
	g.raw, g.values = make([]byte, g.logits.Bytes()), make([]float32, c.Vocab)
	g.order, g.weights = make([]int32, c.Vocab), make([]float64, c.Vocab)
	return g, nil
}

// Programs returns the programs of a Generator, for a prompt and for each generated token.
func Programs(c nn.Config, r recipe.Recipe, spec backend.Spec, context int) ([]*backend.Program, error) {
	_, programs, err := record(c, r, spec, context)
	return programs, err
}

// record returns a generator that is not loaded, and its programs.
func record(c nn.Config, r recipe.Recipe, spec backend.Spec, context int) (*Generator, []*backend.Program, error) {
	s, err := newSession(c, r, spec)
	if err != nil {
		return nil, nil, err
	}
	if context < 1 {
		return nil, nil, fmt.Errorf("context = %d tokens: expected at least 1", context)
	}
	// Prefill writes whole chunks, so the cache size is rounded up to one.
	g := &Generator{session: s, context: context}
	cache := s.model.NewCache(1, (context+prefillSeq-1)/prefillSeq*prefillSeq)
	g.chunk = s.vars.Tensor(backend.Input, "prompt", fp8.I32, prefillSeq)
	g.token = s.vars.Tensor(backend.Input, "token", fp8.I32, 1)
	g.logits = s.vars.Tensor(backend.Output, "logits", fp8.F32, 1, c.PaddedVocab())
	prefill, decode := s.pass("prefill", 1, prefillSeq), s.pass("decode", 1, 1)
	prefill.Cache, decode.Cache = cache, cache
	s.model.Prefill(prefill, g.chunk)
	s.model.Logits(decode, g.token, g.logits)
	return g, []*backend.Program{prefill.Program, decode.Program}, nil
}

// Sampling configures how the next token is drawn.
type Sampling struct {
	Temperature float64 // 0: the most likely token
	TopP        float64 // nucleus: draw from the smallest set of tokens with this probability; 1: all
	Seed        uint64
}

// Validate returns an error for settings outside their range.
func (s Sampling) Validate() error {
	switch {
	case !(s.Temperature >= 0) || math.IsInf(s.Temperature, 0):
		return fmt.Errorf("temperature %v: expected 0 or more", s.Temperature)
	case !(s.TopP > 0 && s.TopP <= 1):
		return fmt.Errorf("top-p %v: expected more than 0, at most 1", s.TopP)
	}
	return nil
}

// Generate continues prompt by at most n tokens and calls emit with each. It stops early
// if emit returns false, the context is full, or ctx is cancelled.
func (g *Generator) Generate(ctx context.Context, prompt []int32, n int, s Sampling, emit func(token int32) bool) error {
	if err := s.Validate(); err != nil {
		return err
	}
	if len(prompt) == 0 {
		return errors.New("the prompt is empty: generation needs at least one token")
	}
	vocab := int32(len(g.values))
	if i := slices.IndexFunc(prompt, func(id int32) bool { return id < 0 || id >= vocab }); i >= 0 {
		return fmt.Errorf("token %d of the prompt has the id %d, but the vocabulary has %d tokens", i, prompt[i], vocab)
	}
	if len(prompt) > g.context {
		return fmt.Errorf("the prompt has %d tokens, but the context only %d; use a larger context", len(prompt), g.context)
	}
	// Decoding the last prompt token gives the first logits.
	for from := 0; from < len(prompt)-1; from += prefillSeq {
		ids := make([]int32, prefillSeq)
		copy(ids, prompt[from:])
		if err := g.runAt(ctx, from, g.chunk, ids, g.prefill); err != nil {
			return err
		}
	}
	rng := rand.New(rand.NewPCG(s.Seed, 0))
	token := prompt[len(prompt)-1]
	for position := len(prompt) - 1; n > 0 && position < g.context; position++ {
		if err := g.runAt(ctx, position, g.token, []int32{token}, g.decode); err != nil {
			return err
		}
		if err := g.readLogits(); err != nil {
			return err
		}
		token = g.draw(s, rng)
		n--
		if !emit(token) {
			return nil
		}
	}
	return nil
}

// Logits returns the logits [vocabulary] after each token of a sequence.
func (g *Generator) Logits(ctx context.Context, ids []int32) ([][]float32, error) {
	var all [][]float32
	for i, id := range ids {
		if err := g.runAt(ctx, i, g.token, []int32{id}, g.decode); err != nil {
			return nil, err
		}
		if err := g.readLogits(); err != nil {
			return nil, err
		}
		all = append(all, slices.Clone(g.values))
	}
	return all, nil
}

func (g *Generator) runAt(ctx context.Context, position int, to *backend.Tensor, ids []int32, x backend.Executable) error {
	if err := g.at(position); err != nil {
		return err
	}
	if err := g.writeInts(to, ids); err != nil {
		return err
	}
	return x.Run(ctx)
}

func (g *Generator) readLogits() error {
	if err := g.dev.Read(g.logits, g.raw); err != nil {
		return err
	}
	fp8.F32.Decode(g.values, g.raw)
	if slices.ContainsFunc(g.values, func(x float32) bool { return x-x != 0 }) {
		return errors.New("the logits are not finite, so no token can be drawn; octet inspect shows which weights are not finite")
	}
	return nil
}

// draw returns a token, drawn from the distribution at the given temperature, restricted
// to the nucleus. Tokens of equal probability are ordered by id.
func (g *Generator) draw(s Sampling, rng *rand.Rand) int32 {
	if s.Temperature == 0 {
		best := 0
		for i, x := range g.values {
			if x > g.values[best] {
				best = i
			}
		}
		return int32(best)
	}
	for i := range g.order {
		g.order[i] = int32(i)
	}
	slices.SortFunc(g.order, func(a, b int32) int {
		return cmp.Or(cmp.Compare(g.values[b], g.values[a]), cmp.Compare(a, b))
	})
	top := float64(g.values[g.order[0]])
	total := 0.0
	for i, id := range g.order {
		g.weights[i] = math.Exp((float64(g.values[id]) - top) / s.Temperature)
		total += g.weights[i]
	}
	nucleus := 0.0
	kept := len(g.order)
	for i, w := range g.weights {
		nucleus += w
		if nucleus >= s.TopP*total {
			kept = i + 1
			break
		}
	}
	u := rng.Float64() * nucleus
	for i, w := range g.weights[:kept] {
		if u -= w; u < 0 {
			return g.order[i]
		}
	}
	return g.order[kept-1]
}
