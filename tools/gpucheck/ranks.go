package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
)

// ranks are the figures of several GPUs, one process each.
func (r *results) ranks() []Figure {
	return []Figure{r.lostRank("killed", 5), r.lostRank("stopped", 10), r.ranksCompared(allRanks, "several ranks"), r.ranksCompared(sharingRanks, "ranks that share layers and weights"), r.scaling(), r.overlap(), r.allReduce()}
}

// ended matches a line of TestLostProcess.
var ended = regexp.MustCompile(`all (\d+) processes have ended ([0-9.]+) s after rank 1 was (killed|stopped)`)

// lostRank is how long the processes of a job take to end after one was killed or stopped.
func (r *results) lostRank(how string, target float64) Figure {
	const part = "ranks-lost"
	name, asked := fmt.Sprintf("time until all processes have ended, after one was %s", how), fmt.Sprintf("%.0f s", target)
	raw, _ := os.ReadFile(filepath.Join(r.dir, part+".txt")) // also of a failed part
	for _, m := range ended.FindAllStringSubmatch(string(raw), -1) {
		if m[3] != how {
			continue
		}
		seconds, err := strconv.ParseFloat(m[2], 64)
		return Figure{name, fmt.Sprintf("%s s, %s processes", m[2], m[1]), asked, verdict(err == nil && seconds <= target)}
	}
	if v, ran := r.verdicts[part]; ran && v != "ok" {
		return Figure{name, v, asked, missed}
	}
	return absent(name, asked, r.why(part))
}

const oneRank, allRanks, overlapRanks, sharingRanks = "ranks-one", "ranks-all", "ranks-overlap", "ranks-shared"

// ranksCompared compares the losses of several ranks, a part of the script, with those of one that
// trains on all batches. The ranks add in another order.
func (r *results) ranksCompared(part, ranks string) Figure {
	name := "losses of " + ranks + " compared with one, bf16"
	a, b := r.losses(oneRank), r.losses(part)
	for part, losses := range map[string][]float64{oneRank: a, part: b} {
		if len(losses) == 0 {
			return absent(name, "", r.why(part))
		}
	}
	largest, steps := apart(a, b)
	return Figure{name, fmt.Sprintf("at most %.2g nats apart in %d steps", largest, steps), "", "to be judged"}
}

// apart returns the largest difference of losses, and the number of steps that both runs have.
func apart(a, b []float64) (largest float64, steps int) {
	steps = min(len(a), len(b))
	for i := range steps {
		largest = max(largest, math.Abs(a[i]-b[i]))
	}
	return largest, steps
}

// overlap is the rate with collectives beside the compute relative to that without. The losses are
// equal if both runs have chosen the same algorithms of GEMMs.
func (r *results) overlap() Figure {
	const name, asked = "collectives beside the compute, rate over that without, 124m, bf16", "equal losses"
	without, with := r.rate(allRanks), r.rate(overlapRanks)
	switch {
	case without == 0:
		return absent(name, asked, r.why(allRanks))
	case with == 0:
		return absent(name, asked, r.why(overlapRanks))
	}
	largest, steps := apart(r.losses(allRanks), r.losses(overlapRanks))
	losses, judged := fmt.Sprintf("losses equal in %d steps", steps), met
	if steps == 0 || largest != 0 { // NaN, too
		losses, judged = fmt.Sprintf("losses at most %.2g nats apart in %d steps", largest, steps), "to be judged"
	}
	return Figure{name, fmt.Sprintf("%.2f times, %.0f against %.0f tokens/s, %s", with/without, with, without, losses), asked, judged}
}

// scaling is the rate of several ranks relative to that of one.
func (r *results) scaling() Figure {
	const name = "rate of several ranks over one, 124m, bf16"
	one, all := r.rate(oneRank), r.rate(allRanks)
	switch {
	case one == 0:
		return absent(name, "", r.why(oneRank))
	case all == 0:
		return absent(name, "", r.why(allRanks))
	}
	return Figure{name, fmt.Sprintf("%.2f times, %.0f against %.0f tokens/s", all/one, all, one), "", "for information"}
}

var busBandwidth = regexp.MustCompile(`(?m)^# Avg bus bandwidth\s*: ([0-9.]+)`)

// allReduce is the bus bandwidth of the largest all-reduce relative to that of NVIDIA's nccl-tests.
func (r *results) allReduce() Figure {
	const part, peer, name, target = "ranks-collectives", "ranks-nccl-tests", "all-reduce between processes, bus bandwidth, share of nccl-tests", 0.9
	asked := fmt.Sprintf("%.0f %%", 100*target)
	var largest measurement
	for _, m := range r.benchmark(part, "BenchmarkCollectives") {
		if ok, _ := filepath.Match("all-reduce/*", m.name); ok {
			largest = m // sizes ascend
		}
	}
	if largest.name == "" {
		return absent(name, asked, r.why(part))
	}
	measured := fmt.Sprintf("%s: %.3g GB/s", largest.name, largest.value("GB/s"))
	m := busBandwidth.FindSubmatch(r.read(peer, ".txt"))
	if m == nil {
		return Figure{name, measured, asked, "not compared: " + r.why(peer)}
	}
	theirs, _ := strconv.ParseFloat(string(m[1]), 64) // 0: missed
	share := largest.value("GB/s") / theirs
	return Figure{name, fmt.Sprintf("%s, %s of %.3g GB/s", measured, percent(share), theirs), asked, verdict(theirs > 0 && share >= target)}
}
