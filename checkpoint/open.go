package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// indexFile maps the tensors of a sharded model to its files.
const indexFile = "model.safetensors.index.json"

// adapterFile is the config of a peft adapter, which transformers applies to the model
// in the same folder.
const adapterFile = "adapter_config.json"

// Checkpoint is an open checkpoint, whole or in shards. Its tensors stay on disk until they
// are read.
type Checkpoint struct {
	Path      string
	Config    Config
	Model     *Tensors // of shards, it also closes the files of Optimizer
	Optimizer *Tensors
	State     json.RawMessage // state.json
}

// Open verifies all bytes of the checkpoint at path and opens it. The caller must
// close it.
func Open(path string) (*Checkpoint, error) {
	m, err := verify(path)
	if err != nil {
		return nil, err
	}
	return m.open(path)
}

// OpenVerified opens a checkpoint that another rank has verified. See Open.
func OpenVerified(path string) (*Checkpoint, error) {
	m, err := readManifest(path)
	if err != nil {
		return nil, err
	}
	return m.open(path)
}

func (m manifest) open(path string) (c *Checkpoint, err error) {
	c = &Checkpoint{Path: path}
	if c.State, err = readSmall(filepath.Join(path, StateFile)); err != nil {
		return nil, err
	}
	if c.Config, err = ReadConfig(path); err != nil {
		return nil, err
	}
	if ranks := m.ranks(); ranks > 0 {
		if c.Model, c.Optimizer, err = openShards(path, ranks); err != nil {
			return nil, err
		}
		return c, nil
	}
	if c.Model, err = openTensors(filepath.Join(path, ModelFile)); err != nil {
		return nil, err
	}
	if c.Optimizer, err = openTensors(filepath.Join(path, OptimizerFile)); err != nil {
		return nil, errors.Join(err, c.Model.Close())
	}
	return c, nil
}

// Close closes the checkpoint's files.
func (c *Checkpoint) Close() error { return errors.Join(c.Model.Close(), c.Optimizer.Close()) }

// OpenModel opens the model of a checkpoint, or of any folder in Hugging Face's
// layout: config.json with model.safetensors, or with shards and their index. It
// verifies a checkpoint's model first, with the optimizer state if ranks wrote both into
// shards; other folders have no checksums. A checkpoint without its manifest is an error.
// [Tensors.Match] compares the tensors with the config. The caller must close the tensors.
func OpenModel(path string) (Config, *Tensors, error) {
	var m manifest
	if exists(filepath.Join(path, ManifestFile)) {
		var err error
		if m, err = verifyModel(path); err != nil {
			return Config{}, nil, err
		}
	} else if name := filepath.Join(path, StateFile); exists(name) {
		return Config{}, nil, fmt.Errorf("%s: there is no %s in the same folder: the checkpoint was not finished, or its manifest was deleted", name, ManifestFile)
	}
	config, err := ReadConfig(path)
	if err != nil {
		return Config{}, nil, err
	}
	if name := filepath.Join(path, adapterFile); exists(name) {
		return Config{}, nil, fmt.Errorf("%s: octet does not support adapters: merge the adapter into the weights, or remove it", name)
	}
	single, index := filepath.Join(path, ModelFile), filepath.Join(path, indexFile)
	var model *Tensors
	switch ranks := m.ranks(); {
	case ranks > 0:
		model, _, err = openShards(path, ranks)
	case exists(single):
		model, err = openTensors(single)
	case exists(index):
		model, err = openSharded(index)
	default:
		err = fmt.Errorf("%s: neither %s nor %s exists: a model needs one of them", path, ModelFile, indexFile)
	}
	if err != nil {
		return Config{}, nil, err
	}
	return config, model, nil
}

// verifyModel is verify without the files that a model does not need.
func verifyModel(path string) (manifest, error) {
	m, err := readManifest(path)
	if err == nil {
		err = m.checkSizes(path)
	}
	if err == nil && m.ranks() > 0 {
		err = m.checkSums(path)
	} else if err == nil {
		err = m.checkSums(path, ConfigFile, ModelFile)
	}
	return m, err
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// ReadConfig reads the config.json of the folder of a model.
func ReadConfig(path string) (Config, error) {
	name := filepath.Join(path, ConfigFile)
	text, err := readSmall(name)
	if errors.Is(err, fs.ErrNotExist) {
		switch {
		case !exists(path):
			err = fmt.Errorf("%s does not exist: name the folder of a model", path)
		case exists(filepath.Join(path, Dir)):
			err = fmt.Errorf("%s is a run folder: name one of its checkpoints, in %s", path, filepath.Join(path, Dir))
		default:
			err = fmt.Errorf("%s: no %s: not the folder of a model", path, ConfigFile)
		}
		return Config{}, err
	}
	if err != nil {
		return Config{}, err
	}
	var c Config
	if err := json.Unmarshal(text, &c); err != nil {
		return Config{}, fmt.Errorf("%s: %w", name, err)
	}
	return c, nil
}
