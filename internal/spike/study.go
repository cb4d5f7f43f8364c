package spike

import (
	"context"
	"errors"
	"fmt"

	"octet/recipe"
)

// Variant is a named recipe of an experiment.
type Variant struct {
	Name   string
	Recipe recipe.Recipe
	Late   bool // some scale that should be current is delayed
}

// Variants returns plain SwiGLU with delayed and with current scaling, every form of
// Smooth-SwiGLU, and forms with a delayed scale, all through [Alone].
func Variants() []Variant {
	named := func(name string) recipe.Recipe {
		r, err := recipe.Lookup(name)
		if err != nil {
			panic(err) // the names below are known
		}
		return Alone(r)
	}
	formed := func(name string, form recipe.SmoothForm) Variant {
		r := named(name)
		r.Smooth.Form = form
		return Variant{Name: form.String(), Recipe: r}
	}
	return []Variant{
		{Name: "plain, delayed scale", Recipe: named("fp8-delayed"), Late: true},
		{Name: "plain, current scale", Recipe: named("fp8-current")},
		formed("fp8-smooth", recipe.Product),
		formed("fp8-smooth-token", recipe.TokenLinear),
		formed("fp8-smooth-token", recipe.Token),
		formed("fp8-smooth", recipe.Linear),
		formed("fp8-smooth", recipe.Balanced),
		{Name: "linear, as published", Recipe: named("fp8-paper"), Late: true},
		{Name: "balanced, smoothing delayed", Recipe: named("smooth-late-factors"), Late: true},
		{Name: "linear, scale of h delayed", Recipe: named("smooth-late-hidden"), Late: true},
		{Name: "product, scale of W3' delayed", Recipe: named("smooth-late-weight"), Late: true},
		{Name: "token-linear, scale of h delayed", Recipe: named("smooth-late-token"), Late: true},
	}
}

// Histories returns plain SwiGLU with delayed scales and histories of 1, 16 and 1024
// updates, and the balanced form.
func Histories() []Variant {
	all := Variants()
	plain, balanced := all[0].Recipe, all[6]
	var list []Variant
	for _, n := range []int{1, 16, 1024} {
		plain.History = n
		list = append(list, Variant{Name: fmt.Sprintf("plain, history %d", n), Recipe: plain, Late: true})
	}
	return append(list, balanced)
}

// Sweep measures one spike of each size, each in a new Bench without earlier spikes.
func Sweep(ctx context.Context, p *Problem, r recipe.Recipe, sizes ...float64) ([]Errors, error) {
	list := make([]Errors, len(sizes))
	for i, size := range sizes {
		b, err := New(ctx, p, r)
		if err != nil {
			return nil, err
		}
		list[i], err = b.Measure(ctx, size)
		if err := errors.Join(err, b.Close()); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// Recur measures steps steps; every period-th has a spike of the given size.
func Recur(ctx context.Context, p *Problem, r recipe.Recipe, size float64, period, steps int) ([]Errors, error) {
	b, err := New(ctx, p, r)
	if err != nil {
		return nil, err
	}
	list := make([]Errors, steps)
	for i := range list {
		now := 1.0
		if (i+1)%period == 0 {
			now = size
		}
		if list[i], err = b.Measure(ctx, now); err != nil {
			break
		}
	}
	if err := errors.Join(err, b.Close()); err != nil {
		return nil, err
	}
	return list, nil
}
