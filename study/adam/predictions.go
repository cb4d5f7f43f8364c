package main

import (
	"fmt"
	"math"

	"octet/study/internal/finding"
)

// predictions compares the runs with what was written here before the first of them, from earlier
// runs of one to four seeds.
func (r results) predictions() *finding.List {
	var l finding.List
	condition := conditions[0]
	base := finding.ValLosses(r.of(states[0], condition))
	worse := func(state string) []float64 { return finding.Above(finding.ValLosses(r.of(state, condition)), base) }
	within := func(text, state string, most float64) {
		l.Check(fmt.Sprintf("%s (%s): within %g %% of FP32 for every seed", text, state, most), finding.Span("%+.1f %%", worse(state)), finding.All(worse(state), -most, most))
	}
	breaks := func(text, state string, low, high int) {
		n := divergedOf(r.of(state, condition))
		l.Check(fmt.Sprintf("%s (%s): of 5 seeds, at least %d and at most %d diverge", text, state, low, high), fmt.Sprintf("%d of %d, loss %s", n, len(base), finding.Span("%.2f", finding.ValLosses(r.of(state, condition)))), n >= low && n <= high)
	}
	within("The paper's choice works for all matrices", "e4m3 e5m2, all", 3)
	breaks("E4M3 for v diverges where all matrices have it, every seed", "e4m3 e4m3, all", 5, 5)
	within("Not where the layers alone have it", "e4m3 e4m3, layers", 2.5)
	breaks("The head breaks it, by luck of the seed", "e4m3 e4m3, layers and head", 2, 5)
	within("The embedding does not", "e4m3 e4m3, layers and embedding", 6)
	breaks("Stochastic rounding does not save it", "e4m3 e4m3, all, stochastic", 3, 5)
	within("A floor under v does", "e4m3 e4m3, all, floor_v", 4)
	breaks("Blocks of 256 elements do, in most seeds", "e4m3 e4m3, all, blocks", 0, 1)
	within("Range expansion does (no earlier run)", "e4m3 e4m3, all, expanded", 3)
	breaks("Less precision of m hides it, in most seeds", "e5m2 e4m3, all", 0, 1)
	breaks("So does m in FP32", "fp32 e4m3, all", 0, 1)
	within("The state of fp8-smooth for all matrices (no earlier run)", "e4m3 e5m2, all, as fp8-smooth", 3)
	updates, held := largest(r.of("e4m3 e4m3, all", condition), "largest"), largest(r.of("e4m3 e5m2, all, as fp8-smooth", condition), "largest")
	l.Check("Where it diverges, some update exceeds 1,000 times the learning rate in every seed; with the state of fp8-smooth none exceeds twice",
		finding.Span("%.3g", updates)+"; "+finding.Span("%.2f", held), finding.All(updates, 1000, math.Inf(1)) && finding.All(held, 0, 2))
	return &l
}
