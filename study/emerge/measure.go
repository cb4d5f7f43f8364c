package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"

	"octet/backend"
	"octet/checkpoint"
	"octet/data"
	"octet/run"
	"octet/study/internal/start"
	"octet/study/internal/weights"
	"octet/train"
)

// measuredSequences of the validation text are the tokens of a measurement.
const measuredSequences = 64

// channel describes a channel of an MLP: a = u·silu(g) with u = w1·x and g = w2·x.
type channel struct {
	amax   float64
	cosine float64 // of its rows of w1 and w2
	byte   float64 // largest share of its energy, the sum of a² over the tokens, that tokens of one byte have
}

// layer describes the MLP of a layer.
type layer struct {
	channels []channel
	kurtosis float64 // of a
}

// model describes a checkpoint.
type model struct {
	layers   []layer
	residual float64 // kurtosis of the residual stream before the last norm
}

// measure runs a checkpoint in FP32 on the same part of a text for all models.
func measure(ctx context.Context, dir string, entry checkpoint.Entry, text data.Tokens) (m model, err error) {
	c, err := run.ConfigOf(dir)
	if err != nil {
		return m, err
	}
	c.Recipe, c.Precision, c.Model.Init, c.Data.Paths = "fp32", train.Precision{}, entry.Path, nil
	c.Seed, c.Train.Steps, c.Train.MicroBatch, c.Train.HealthEvery, c.Checkpoint.Every, c.Checkpoint.KeepEvery = 1, 1, measuredSequences, 1, 0, 0
	c.Optimizer.LR, c.Optimizer.MinLR = 1e-30, 0
	t, closeDevice, err := start.Trainer(ctx, c, "emu", 1, &data.Corpus{Train: text})
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, closeDevice()) }()
	if _, err := t.Next(ctx); err != nil {
		return m, err
	}
	var ids []byte
	see := func(n *backend.Node, memory backend.Memory) error {
		switch op := n.Op.(type) {
		case *backend.Embed:
			ids, err = memory.Read(op.IDs)
		case *backend.RMSNorm:
			var x []float64
			x, err = read(memory, op.X)
			m.residual = kurtosis(x)
		case *backend.SwiGLUAmax:
			var up, gate []float64
			if up, err = read(memory, op.Up); err != nil {
				return err
			}
			gate, err = read(memory, op.Gate)
			m.layers = append(m.layers, layerOf(up, gate, ids, op.Up.Cols()))
		}
		return err
	}
	t.Execute = func(ctx context.Context, _ string, x backend.Executable) error { return x.RunObserved(ctx, see) }
	if _, err := t.Health(ctx); err != nil {
		return m, err
	}
	return m, m.cosines(entry.Path)
}

// read returns a tensor of F32.
func read(memory backend.Memory, t *backend.Tensor) ([]float64, error) {
	raw, err := memory.Read(t)
	if err != nil {
		return nil, err
	}
	list := make([]float64, len(raw)/4)
	for i := range list {
		list[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:])))
	}
	return list, nil
}

// layerOf measures a layer without its cosines. up and gate are [tokens, ffn], ids are the tokens.
func layerOf(up, gate []float64, ids []byte, ffn int) (l layer) {
	l.channels = make([]channel, ffn)
	energies := make([]map[uint32]float64, ffn) // by byte
	for i := range energies {
		energies[i] = map[uint32]float64{}
	}
	a := make([]float64, len(up))
	for i, u := range up {
		a[i] = u * gate[i] / (1 + math.Exp(-gate[i]))
		square := a[i] * a[i]
		c := &l.channels[i%ffn]
		c.amax = max(c.amax, math.Abs(a[i]))
		energies[i%ffn][binary.LittleEndian.Uint32(ids[4*(i/ffn):])] += square
	}
	for i := range l.channels {
		c, all, most := &l.channels[i], 0.0, 0.0
		for _, e := range energies[i] {
			all += e
			most = max(most, e)
		}
		if all > 0 {
			c.byte = most / all
		}
	}
	l.kurtosis = kurtosis(a)
	return l
}

func kurtosis(x []float64) float64 {
	var second, fourth float64
	for _, v := range x {
		second += v * v
		fourth += v * v * v * v
	}
	return fourth * float64(len(x)) / (second * second)
}

// cosines sets the cosines of all channels from the weights of a checkpoint.
func (m *model) cosines(path string) (err error) {
	list, err := cosinesOf(path)
	if err != nil {
		return err
	}
	for i, l := range m.layers {
		for j := range l.channels {
			l.channels[j].cosine = list[i][j]
		}
	}
	return nil
}

// cosinesOf returns the cosines of w1 and w2 of each channel of each layer.
func cosinesOf(path string) (list [][]float64, err error) {
	m, err := weights.Open(path)
	if err != nil {
		return nil, err
	}
	for i := range m.Config.NumHiddenLayers {
		list = append(list, m.Cosines(i))
	}
	return list, nil
}

// checkpoints returns the intact checkpoints of a run, in the order of their steps.
func checkpoints(dir string) ([]checkpoint.Entry, error) {
	entries, err := checkpoint.List(filepath.Join(dir, checkpoint.Dir))
	if err == nil && len(entries) == 0 {
		err = fmt.Errorf("%s has no checkpoint: train it first", dir)
	}
	slices.Reverse(entries)
	return entries, err
}
