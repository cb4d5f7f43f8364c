package run_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"

	_ "octet/backend/emu"
	"octet/run"
	"octet/train"
)

// A run of two steps, which the second call makes longer: it resumes from the checkpoint of
// step 2.
func Example() {
	temp, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(temp)
	text := filepath.Join(temp, "text.txt")
	if err := os.WriteFile(text, []byte(strings.Repeat("the quick brown fox ", 1000)), 0o600); err != nil {
		log.Fatal(err)
	}
	c, err := run.NewConfig("", "recipe=fp8-smooth", "data.paths="+text, "data.seq=32", "train.micro_batch=2",
		"model.layers=1", "model.dim=32", "model.heads=2", "model.kv_heads=1", "model.ffn=48")
	if err != nil {
		log.Fatal(err)
	}
	for _, c.Train.Steps = range []int{2, 4} {
		if err := trainIn(filepath.Join(temp, "run"), c); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// after step 0
	// step 1 of 2
	// step 2 of 2
	// after step 2
	// step 3 of 4
	// step 4 of 4
}

// trainIn trains the run in dir to the end of its configuration, and starts it if dir holds
// none.
func trainIn(dir string, c train.Config) (err error) {
	r, err := run.Start(context.Background(), run.Options{Config: c, Dir: dir, Resume: run.Exists(dir), Backend: "emu"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	fmt.Println("after step", r.Resumed)
	return r.Train(context.Background(), func(p run.Progress) {
		fmt.Println("step", p.Step, "of", p.Steps)
	})
}
