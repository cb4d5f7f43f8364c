package cli

import (
	"fmt"
	"strings"

	"octet/backend/cost"
	"octet/internal/writers"
	"octet/train"
)

// saving is a change of settings that saves memory and keeps the tokens of a step.
type saving struct {
	zero      bool   // train.zero_stage=1
	recompute string // train.recompute; empty: unchanged
	halvings  int    // of train.micro_batch, each of which doubles train.accumulate
}

// of returns the changed configuration and the settings that change it.
func (s saving) of(c train.Config) (changed train.Config, settings string) {
	var list []string
	if s.zero {
		c.Train.ZeroStage = 1
		list = append(list, "train.zero_stage=1")
	}
	if s.recompute != "" {
		c.Train.Recompute = s.recompute
		list = append(list, "train.recompute="+s.recompute)
	}
	if s.halvings > 0 {
		c.Train.MicroBatch >>= s.halvings
		c.Train.Accumulate <<= s.halvings
		list = append(list, fmt.Sprintf("train.micro_batch=%d train.accumulate=%d", c.Train.MicroBatch, c.Train.Accumulate))
	}
	return c, strings.Join(list, " ")
}

// savings lists the changes with a number of halvings, single ones first. The last one saves the
// most.
func savings(c train.Config, halvings int) (list []saving) {
	shards := c.Train.Ranks > 1 && c.Train.ZeroStage == 0
	if shards { // Muon and some states of the optimizer cannot be shared
		sharded, _ := saving{zero: true}.of(c)
		shards = sharded.Resolve() == nil
	}
	recompute := []string{"attention", "block"}
	switch c.Train.Recompute {
	case "attention":
		recompute = recompute[1:]
	case "block":
		recompute = nil
	}
	if halvings > 0 {
		list = append(list, saving{halvings: halvings})
	}
	if shards {
		list = append(list, saving{zero: true, halvings: halvings})
	}
	for _, r := range recompute {
		list = append(list, saving{recompute: r, halvings: halvings})
	}
	for _, r := range recompute {
		if shards {
			list = append(list, saving{zero: true, recompute: r, halvings: halvings})
		}
	}
	return list
}

// tooLarge returns the error for ranks that need more memory than a device has. It names the
// smallest change of settings with which they fit: the fewest halvings of the micro-batch, then
// the first of savings.
func (p *predictor) tooLarge(c train.Config, m cost.Machine, need, capacity int64) error {
	text := fmt.Sprintf("one rank of recipe %s needs %s, and %s has %s", c.Recipe, writers.Bytes(need), m.Title, writers.Bytes(capacity))
	needOf := func(s saving) (need int64, settings string, ok bool) {
		changed, settings := s.of(c)
		x, err := p.planOn(changed, m.Cluster)
		return x.need, settings, err == nil
	}
	best := "" // what the largest saving needs
	for h := 0; c.Train.MicroBatch%(1<<h) == 0; h++ {
		list := savings(c, h)
		if len(list) == 0 {
			continue
		}
		least, settings, ok := needOf(list[len(list)-1])
		if !ok {
			break
		}
		best = fmt.Sprintf("even %s needs %s", settings, writers.Bytes(least))
		if least > capacity {
			continue
		}
		for _, s := range list {
			if need, settings, ok := needOf(s); ok && need <= capacity {
				return fmt.Errorf("%s: set %s, which needs %s", text, settings, writers.Bytes(need))
			}
		}
	}
	if best == "" {
		best = "no setting saves more"
	}
	return fmt.Errorf("%s; %s, and Octet has no tensor or pipeline parallelism, which would split the model: use a smaller model or a larger device (--assume memory=GiB predicts it anyway)", text, best)
}
