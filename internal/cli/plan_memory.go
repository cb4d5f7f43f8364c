package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"octet/backend/cost"
	"octet/internal/writers"
	"octet/train"
)

// saving is a change of settings that saves memory and keeps the tokens of a step.
type saving struct {
	zero      string // train.zero_stage; empty: unchanged
	recompute string // train.recompute; empty: unchanged
	split     int    // parts of a micro-batch, by which train.accumulate grows
	tensor    int    // train.tensor_parallel, by which train.accumulate grows; 0: unchanged
}

// of returns the changed configuration and the settings that change it.
func (s saving) of(c train.Config) (changed train.Config, settings string) {
	var list []string
	if s.zero != "" {
		c.Train.ZeroStage, _ = strconv.Atoi(s.zero) // a number of stagesBeyond
		list = append(list, "train.zero_stage="+s.zero)
	}
	if s.tensor > 0 {
		c.Train.Accumulate *= s.tensor / c.Train.Tensor
		c.Train.Tensor = s.tensor
		list = append(list, fmt.Sprintf("train.tensor_parallel=%d", s.tensor))
	}
	if s.recompute != "" {
		c.Train.Recompute = s.recompute
		list = append(list, "train.recompute="+s.recompute)
	}
	if s.split > 1 {
		c.Train.MicroBatch /= s.split
		c.Train.Accumulate *= s.split
		list = append(list, fmt.Sprintf("train.micro_batch=%d", c.Train.MicroBatch))
	}
	if s.split > 1 || s.tensor > 0 {
		list = append(list, fmt.Sprintf("train.accumulate=%d", c.Train.Accumulate))
	}
	return c, strings.Join(list, " ")
}

// splits returns the numbers of parts into which a micro-batch can be split: powers of two, and its
// sequences one by one.
func splits(microBatch int) (list []int) {
	for n := 1; microBatch%n == 0; n *= 2 {
		list = append(list, n)
	}
	if !slices.Contains(list, microBatch) {
		list = append(list, microBatch)
	}
	return list
}

// savings lists the changes with a split and ranks that share layers, single ones first and that which saves
// most last.
func savings(c train.Config, split, tensor int) (list []saving) {
	recompute := []string{"attention", "block"}
	switch c.Train.Recompute {
	case "attention":
		recompute = recompute[1:]
	case "block":
		recompute = nil
	}
	list = append(list, saving{split: split})
	stages := stagesBeyond(c)
	for _, zero := range stages {
		list = append(list, saving{zero: zero, split: split})
	}
	for _, r := range recompute {
		list = append(list, saving{recompute: r, split: split})
	}
	for _, zero := range stages {
		for _, r := range recompute {
			list = append(list, saving{zero: zero, recompute: r, split: split})
		}
	}
	for i := range list {
		list[i].tensor = tensor
	}
	return list
}

func last(list []saving) saving { return list[len(list)-1] }

// stagesBeyond lists the stages of ZeRO after that of c: none for one rank, and for optimizers whose
// state ranks cannot share.
func stagesBeyond(c train.Config) (list []string) {
	if c.Train.Ranks < 2 {
		return nil
	}
	for stage := c.Train.ZeroStage + 1; stage <= train.MaxZeroStage; stage++ {
		zero := strconv.Itoa(stage)
		if changed, _ := (saving{zero: zero}).of(c); changed.Resolve() == nil {
			list = append(list, zero)
		}
	}
	return list
}

// tensorsBeyond lists the numbers of ranks in a node that can share each layer, beyond those of c.
func tensorsBeyond(c train.Config, perNode int) (list []int) {
	for n := 2 * max(1, c.Train.Tensor); n <= perNode && c.Train.Ranks%n == 0; n *= 2 {
		if changed, _ := (saving{tensor: n}).of(c); changed.Resolve() == nil {
			list = append(list, n)
		}
	}
	return list
}

// tooLarge returns the error for ranks that need more memory than a device has. It names the
// smallest change of settings with which they fit: the fewest parts of the micro-batch, then the
// first of savings.
func (p *predictor) tooLarge(c train.Config, m cost.Machine, need, capacity int64) error {
	text := fmt.Sprintf("one rank of recipe %s needs %s, and %s has %s", c.Recipe, writers.Bytes(need), m.Title, writers.Bytes(capacity))
	least, best := need, "no setting saves more"
	fits := func(s saving) (set string, ok bool) {
		changed, settings := s.of(c)
		x, err := p.planOn(changed, m.Cluster)
		if err != nil {
			return "", false
		}
		if x.need < least {
			least, best = x.need, fmt.Sprintf("even %s needs %s", settings, writers.Bytes(x.need))
		}
		return fmt.Sprintf("set %s, which needs %s", settings, writers.Bytes(x.need)), x.need <= capacity
	}
	all := splits(c.Train.MicroBatch)
	for _, tensor := range append([]int{0}, tensorsBeyond(c, m.PerNode)...) {
		// A plan of a large model takes seconds: the last saving of a split, which saves most, decides
		// whether to look at the others, and that of the last split whether to look at smaller ones.
		if _, ok := fits(last(savings(c, all[len(all)-1], tensor))); !ok {
			continue
		}
		for _, split := range all {
			list := savings(c, split, tensor)
			if _, ok := fits(last(list)); !ok {
				continue
			}
			for _, s := range list {
				if set, ok := fits(s); ok {
					return fmt.Errorf("%s: %s", text, set)
				}
			}
		}
	}
	return fmt.Errorf("%s; %s, and Octet has no pipeline parallelism: use a smaller model or a larger device (--assume memory=GiB predicts it anyway)", text, best)
}
