package infer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"octet/backend"
	"octet/fp8"
	"octet/nn"
	"octet/recipe"
)

// prefillSeq is the number of prompt tokens of one prefill.
const prefillSeq = 64

// Cache is the size of a Generator's KV cache.
type Cache struct {
	Batch   int // sequences
	Context int // tokens of a sequence, its prompt included
	// Format is that of keys and values, of eight bits, with a scale for each head of each position;
	// 0: the compute format of the recipe.
	Format fp8.DType
}

// Generator continues sequences, token by token, with a KV cache.
type Generator struct {
	*session
	prefill, decode      backend.Executable
	chunk, token, logits *backend.Tensor
	Cache
	raw    []byte
	values [][]float32 // logits of the next token of each sequence
}

// NewGenerator loads a model on a device.
func NewGenerator(ctx context.Context, c nn.Config, r recipe.Recipe, w Weights, dev backend.Backend, size Cache) (*Generator, error) {
	g, programs, err := record(c, r, dev.Spec(), size)
	if err != nil {
		return nil, err
	}
	g.dev = dev
	loaded, err := g.start(ctx, w, programs...)
	if err != nil {
		return nil, err
	}
	g.prefill, g.decode = loaded[0], loaded[1]
	g.raw = make([]byte, g.logits.Bytes())
	for range g.Batch {
		g.values = append(g.values, make([]float32, c.Vocab))
	}
	return g, nil
}

// Programs returns the programs of a Generator of one sequence, for a prompt and for each generated
// token.
func Programs(c nn.Config, r recipe.Recipe, spec backend.Spec, context int) ([]*backend.Program, error) {
	_, programs, err := record(c, r, spec, Cache{Batch: 1, Context: context})
	return programs, err
}

// record returns a generator that is not loaded, and its programs.
func record(c nn.Config, r recipe.Recipe, spec backend.Spec, size Cache) (*Generator, []*backend.Program, error) {
	s, err := newSession(c, r, spec)
	if err != nil {
		return nil, nil, err
	}
	batch := size.Batch
	switch f := size.Format; {
	case batch < 1 || size.Context < 1:
		return nil, nil, fmt.Errorf("%d sequences of %d tokens: expected at least 1", batch, size.Context)
	case f != 0 && (!f.IsQuantized() || f.Size() != 1):
		return nil, nil, fmt.Errorf("a KV cache in %s: expected a format of eight bits", f)
	}
	// Prefill writes whole chunks, so the cache size is rounded up to one.
	g := &Generator{session: s, Cache: size}
	cache := s.model.NewCache(batch, (size.Context+prefillSeq-1)/prefillSeq*prefillSeq, size.Format)
	g.chunk = s.vars.Tensor(backend.Input, "prompt", fp8.I32, batch*prefillSeq)
	g.token = s.vars.Tensor(backend.Input, "token", fp8.I32, batch)
	g.logits = s.vars.Tensor(backend.Output, "logits", fp8.F32, batch, c.PaddedVocab())
	prefill, decode := s.pass("prefill", batch, prefillSeq), s.pass("decode", batch, 1)
	prefill.Cache, decode.Cache = cache, cache
	s.model.Prefill(prefill, g.chunk)
	s.model.Logits(decode, g.token, g.logits)
	return g, []*backend.Program{prefill.Program, decode.Program}, nil
}

// Generate continues prompt by at most n tokens and calls emit with each. It stops early
// if emit returns false, the context is full, or ctx is cancelled.
func (g *Generator) Generate(ctx context.Context, prompt []int32, n int, s Sampling, emit func(token int32) bool) error {
	return g.GenerateBatch(ctx, [][]int32{prompt}, n, s, func(_ int, token int32) bool { return emit(token) })
}

// GenerateBatch continues each of up to a batch of prompts as Generate does. emit gets the index of
// the prompt; a prompt for which it returns false is not continued. Prompts may differ in length. The
// tokens of prompt i are drawn with seed and i: those of the first are the tokens of Generate.
func (g *Generator) GenerateBatch(ctx context.Context, prompts [][]int32, n int, s Sampling, emit func(i int, token int32) bool) error {
	if err := g.check(prompts, s); err != nil {
		return err
	}
	shortest, running := len(prompts[0]), len(prompts)
	for _, p := range prompts {
		shortest = min(shortest, len(p))
	}
	if err := g.prefillTo(ctx, prompts, shortest-1); err != nil {
		return err
	}
	draws := newSampler(s, len(g.values[0]))
	rngs, left := make([]*rand.Rand, len(prompts)), make([]int, len(prompts))
	for i := range prompts {
		rngs[i], left[i] = rand.New(rand.NewPCG(s.Seed, uint64(i))), n
	}
	// All sequences are at one position. Decoding a token of a prompt fills the cache, and the last one
	// gives the first logits.
	tokens := make([]int32, g.Batch)
	for i, p := range prompts {
		tokens[i] = p[shortest-1]
	}
	for at := shortest - 1; at < g.Context && n > 0 && running > 0; at++ {
		if err := g.runAt(ctx, at, g.token, tokens, g.decode); err != nil {
			return err
		}
		if err := g.readLogits(len(prompts)); err != nil {
			return err
		}
		for i, p := range prompts {
			switch {
			case at+1 < len(p):
				tokens[i] = p[at+1]
				continue
			case left[i] == 0:
				continue
			}
			tokens[i] = draws.draw(g.values[i], rngs[i])
			if left[i]--; !emit(i, tokens[i]) {
				left[i] = 0
			}
			if left[i] == 0 {
				running--
			}
		}
	}
	return nil
}

// check returns an error for prompts that the model cannot take.
func (g *Generator) check(prompts [][]int32, s Sampling) error {
	if err := s.Validate(); err != nil {
		return err
	}
	if len(prompts) == 0 || len(prompts) > g.Batch {
		return fmt.Errorf("%d prompts: expected 1 to %d, the batch", len(prompts), g.Batch)
	}
	vocab := int32(len(g.values[0]))
	for _, prompt := range prompts {
		if len(prompt) == 0 {
			return errors.New("the prompt is empty: generation needs at least one token")
		}
		if i := slices.IndexFunc(prompt, func(id int32) bool { return id < 0 || id >= vocab }); i >= 0 {
			return fmt.Errorf("token %d of the prompt has the id %d, but the vocabulary has %d tokens", i, prompt[i], vocab)
		}
		if len(prompt) > g.Context {
			return fmt.Errorf("the prompt has %d tokens, but the context only %d; use a larger context", len(prompt), g.Context)
		}
	}
	return nil
}

// prefillTo fills the cache with the first n tokens of each prompt.
func (g *Generator) prefillTo(ctx context.Context, prompts [][]int32, n int) error {
	ids := make([]int32, g.Batch*prefillSeq)
	for from := 0; from < n; from += prefillSeq {
		clear(ids)
		for i, p := range prompts {
			copy(ids[i*prefillSeq:][:prefillSeq], p[from:])
		}
		if err := g.runAt(ctx, from, g.chunk, ids, g.prefill); err != nil {
			return err
		}
	}
	return nil
}

// Logits returns the logits [vocabulary] after each token of a sequence.
func (g *Generator) Logits(ctx context.Context, ids []int32) ([][]float32, error) {
	var all [][]float32
	tokens := make([]int32, g.Batch)
	for i, id := range ids {
		tokens[0] = id
		if err := g.runAt(ctx, i, g.token, tokens, g.decode); err != nil {
			return nil, err
		}
		if err := g.readLogits(1); err != nil {
			return nil, err
		}
		all = append(all, slices.Clone(g.values[0]))
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

// readLogits reads the logits of the first n sequences.
func (g *Generator) readLogits(n int) error {
	if err := g.dev.Read(g.logits, g.raw); err != nil {
		return err
	}
	row := len(g.raw) / g.Batch
	for i, values := range g.values[:n] {
		fp8.F32.Decode(values, g.raw[i*row:])
		if !slices.ContainsFunc(values, func(x float32) bool { return x-x != 0 }) {
			continue
		}
		return errors.New("the logits are not finite, so no token can be drawn; octet inspect shows which weights are not finite")
	}
	return nil
}
