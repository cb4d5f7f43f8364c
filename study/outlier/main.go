// Command outlier plants an input channel that INT8 activations do not survive: in each
// layer it multiplies one element of both norms' gains by 100 and divides that column of the
// weights that read them by 100. The model computes the same. It writes a folder for octet
// eval --quant and octet export --quant.
//
//	go run ./study/outlier runs/mine planted
//	octet eval planted --quant w8a8-int8,w8a8-int8-smooth,w8a8-fp8
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"slices"
	"strings"

	"octet/backend"
	_ "octet/backend/emu" // computes the smoothing scales that an export folds
	"octet/internal/export"
	"octet/run"
)

var (
	channel = flag.Int("channel", 7, "the channel, from 0")
	factor  = flag.Float64("factor", 100, "factor of the channel's values")
)

func main() {
	log.SetFlags(0)
	flag.Parse()
	if flag.NArg() != 2 {
		log.Fatal("usage: go run ./study/outlier [-channel N] [-factor X] RUN FOLDER")
	}
	if err := write(context.Background(), flag.Arg(0), flag.Arg(1)); err != nil {
		log.Fatal(err)
	}
}

func write(ctx context.Context, from, to string) (err error) {
	w, err := run.OpenWeights(from, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	if *channel < 0 || *channel >= w.HF.HiddenSize {
		return errors.New("-channel: the model has no such channel")
	}
	dev, err := backend.Open("emu", backend.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	m, err := export.FromRun(ctx, w, dev)
	if err != nil {
		return err
	}
	param := m.Param
	m.Param = func(name string) ([]float32, error) {
		x, err := param(name)
		if err == nil {
			plant(name, x, w.HF.HiddenSize)
		}
		return x, err
	}
	return export.Write(ctx, to, "fp32", m, nil)
}

// readers are the weights that read a norm.
var readers = []string{"q_proj", "k_proj", "v_proj", "up_proj", "gate_proj"}

// plant edits a parameter of a model with tokens of dim channels.
func plant(name string, x []float32, dim int) {
	module := strings.Split(strings.TrimSuffix(name, ".weight"), ".")
	switch last := module[len(module)-1]; {
	case strings.HasSuffix(last, "_layernorm"):
		x[*channel] *= float32(*factor)
	case slices.Contains(readers, last):
		for i := *channel; i < len(x); i += dim {
			x[i] /= float32(*factor)
		}
	}
}
