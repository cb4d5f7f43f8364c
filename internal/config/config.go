// Package config reads a configuration file and the command line into a train.Config, and
// writes a Config as TOML.
//
// A value comes from the default, the preset (model section and data.seq), the
// configuration file or the command line; each overrides the ones before it. Without a preset,
// the config.json of initial weights gives the model's shape, and without these the tokenizer of
// the data gives the vocabulary. The recipe
// supplies the values that are then still open. [Load] does all of this and checks the
// result. [Marshal] writes every key of the resolved config in a fixed order. Reading the
// output gives the same Config, bit for bit.
//
// Reading is strict. An unknown key is an error that names the line and the nearest known
// key. A key given twice, in the file or on the command line, is an error that names both
// places. The keys are the toml tags of train.Config: a new field there is a new key without
// a change here.
//
// A resolved file gives every key, so another preset or recipe on the command line would
// otherwise have no effect. Therefore a preset or recipe on the command line replaces the
// values of the file that equal those of its own preset or recipe. Values that differ are
// the user's choice and stay.
package config

import (
	"fmt"
	"reflect"

	"octet/recipe"
	"octet/train"
)

// Args are the parts of the command line that concern the config.
type Args struct {
	File        string   // path of the configuration file; empty: none
	Assignments []string // key=value
	Flags       Flags
	Dir         string // in which relative paths begin; empty: the current folder
}

// Loaded is a complete, valid config.
type Loaded struct {
	train.Config
	// FromFile and FromCommand list the keys that the file and the command line set, in
	// order.
	FromFile, FromCommand []string
}

// Load reads the file if there is one, applies the command line and resolves the recipe.
// Its errors are for the user: they say what is wrong, where, and what to do.
func Load(a Args) (*Loaded, error) {
	var file *source
	if a.File != "" {
		var err error
		if file, err = readFile(a.File); err != nil {
			return nil, err
		}
	}
	command, err := commandLine(a)
	if err != nil {
		return nil, err
	}
	if err := command.openRecipes(a.Dir); err != nil {
		return nil, err
	}
	return resolve(file, command, a.Dir)
}

// resolve merges two sources, either of which may be nil. Relative paths begin in dir.
func resolve(file, command *source, dir string) (*Loaded, error) {
	l := &Loaded{}
	ownPreset := file.text("model.preset", train.PresetNames()[0])
	preset := command.text("model.preset", ownPreset)
	own, err := train.Preset(ownPreset)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file.place("model.preset"), err)
	}
	if l.Config, err = train.Preset(preset); err != nil {
		return nil, fmt.Errorf("%s: %w", command.place("model.preset"), err)
	}

	if err := l.shapeOfInit(file, command, dir); err != nil {
		return nil, err
	}
	switched := preset != ownPreset
	err = file.each(func(k key, value reflect.Value) {
		l.FromFile = append(l.FromFile, k.name)
		if switched && reflect.DeepEqual(value.Interface(), k.field(&own).Interface()) {
			return
		}
		k.field(&l.Config).Set(value)
	})
	if err != nil {
		return nil, err
	}
	if name := command.text("recipe", l.Recipe); name != l.Recipe {
		if old, err := recipe.Lookup(l.Recipe); err == nil {
			l.ForgetRecipe(train.Choices(old))
		}
	}
	err = command.each(func(k key, value reflect.Value) {
		k.field(&l.Config).Set(value)
		l.FromCommand = append(l.FromCommand, k.name)
	})
	if err != nil {
		return nil, err
	}
	if err := l.vocabOfData(dir); err != nil {
		return nil, err
	}
	if err := l.Resolve(); err != nil {
		return nil, err
	}
	return l, nil
}
