// Runfolder trains a model with a recipe file for 10 steps, resumes the run to 20, and
// prints the losses. Its arguments are the run folder and the text to train on:
//
//	go run . runs/mine book.txt
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"

	_ "octet/backend/emu"
	"octet/run"
	"octet/train"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: runfolder FOLDER TEXT")
	}
	if err := trainTwice(os.Stdout, os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

func trainTwice(out io.Writer, dir, text string) error {
	c, err := run.NewConfig("my.toml", "data.paths="+text)
	if err != nil {
		return err
	}
	if err := trainIn(out, dir, c); err != nil {
		return err
	}
	c.Train.Steps = 20
	return trainIn(out, dir, c)
}

// trainIn starts the run in dir, or resumes it, and prints the loss of every step.
func trainIn(out io.Writer, dir string, c train.Config) (err error) {
	ctx := context.Background()
	r, err := run.Start(ctx, run.Options{Config: c, Dir: dir, Resume: run.Exists(dir), Backend: "emu"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	return r.Train(ctx, func(p run.Progress) {
		fmt.Fprintf(out, "step %d of %d: loss %.4f\n", p.Step, p.Steps, p.Loss)
	})
}
