// Command paper prints the tables of "Scaling FP8 training to trillion-token LLMs" (arXiv
// 2409.12517) beside Octet's: the memory of Llama2-7B as octet plan counts it, which needs no
// device. docs/planning.md has the throughput.
//
//	go run ./study/paper
//
// With the runs of study/sweeps/paper.toml and the task files of study/tasks it also prints
// their losses and their scores, which it keeps in the sweep's folder:
//
//	octet sweep study/sweeps/paper.toml -o sweeps/paper
//	go run ./study/tasks -o sweeps/tasks
//	go run ./study/paper -runs sweeps/paper -tasks sweeps/tasks
//
// With -pairs sweeps it compares the two recipes of study/sweeps/paper-seeds.toml and smooth-all.toml.
package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"log"
	"os"
	"runtime"

	"octet/backend"
	_ "octet/backend/gaudi" // its memory is planned
	"octet/internal/config"
	"octet/train"
)

func main() {
	log.SetFlags(0)
	sweep := flag.String("runs", "", "folder of the sweep study/sweeps/paper.toml")
	tasks := flag.String("tasks", "", "folder of the task files that study/tasks writes")
	more := flag.String("pairs", "", "folder with the sweeps paper-seeds and smooth-all")
	threads := flag.Int("threads", runtime.GOMAXPROCS(0), "threads that score")
	flag.Parse()
	if flag.NArg() > 0 {
		log.Fatal("paper takes no arguments")
	}
	var err error
	if *more != "" {
		err = pairs(os.Stdout, *more)
	} else {
		err = study(context.Background(), os.Stdout, *sweep, *tasks, *threads)
	}
	if err != nil {
		log.Fatal(err)
	}
}

func study(ctx context.Context, w io.Writer, sweep, tasks string, threads int) error {
	if (sweep == "") != (tasks == "") {
		return errors.New("-runs and -tasks belong together: give both, or none for memory")
	}
	if sweep != "" {
		return quality(ctx, w, sweep, tasks, threads)
	}
	plans := map[string]plan{}
	for _, v := range variants {
		p, err := planOf(v.settings...)
		if err != nil {
			return err
		}
		plans[v.name] = p
	}
	return memory(w, plans)
}

// variant is a column of the memory table.
type variant struct {
	name     string
	settings []string
}

const bf16Gradients = "fp8-smooth, gradients BF16"

var variants = []variant{
	{"bf16", []string{"recipe=bf16"}},
	{"bf16, gradients BF16", []string{"recipe=bf16", "precision.grad_accum=bf16"}},
	{"fp8-w3-bf16", []string{"recipe=fp8-w3-bf16"}},
	{"fp8-delayed", []string{"recipe=fp8-delayed"}},
	{"fp8-smooth", []string{"recipe=fp8-smooth"}},
	{"fp8-paper", []string{"recipe=fp8-paper"}},
	{bf16Gradients, []string{"recipe=fp8-smooth", "precision.grad_accum=bf16"}},
}

// plan is what octet plan counts.
type plan struct{ memory train.Memory }

// planOf plans the paper's setting: Llama2-7B on eight Gaudi 2 with ZeRO-1, one sequence of
// 4,096 tokens at a time, and 1,024 in a step.
func planOf(settings ...string) (p plan, err error) {
	loaded, err := config.New(config.Args{Assignments: append([]string{
		"model.preset=llama2-7b", "data.seq=4096", "train.micro_batch=1", "train.accumulate=128",
		"train.ranks=8", "train.zero_stage=1",
	}, settings...)})
	if err != nil {
		return p, err
	}
	spec, err := backend.SpecOf("gaudi:gaudi2")
	if err != nil {
		return p, err
	}
	_, _, p.memory, err = train.LargestJob(loaded.Config, spec)
	return p, err
}
