// Package config reads what a user wrote into a train.Config, and writes a
// Config back as TOML.
//
// A value comes from the default, the preset (model section and data.seq), the
// configuration file or the command line, each before the next; what then is
// still open comes from the recipe. [Load] does all of it and checks the result.
// [Marshal] writes every key of the resolved config, in the order of the
// contract, such that reading it again gives the same Config, bit for bit.
//
// Reading is strict. An unknown key is an error that names the line and the
// nearest known key; the same key twice, in the file or on the command line, is
// an error that names both places. Keys are the toml tags of train.Config and
// are known from there only: a new field is a new key without a line of code
// here.
//
// A resolved file gives every key, so that naming another preset or recipe on
// the command line would change nothing but a name. Therefore what a file
// merely repeats of its own preset or recipe goes with it; what differs is the
// user's word and stays.
package config

import (
	"fmt"
	"reflect"

	"octet/recipe"
	"octet/train"
)

// Args is what the command line says about the config.
type Args struct {
	File        string   // path of a configuration file; empty: none
	Assignments []string // key=value
	Flags       Flags
}

// Loaded is a complete, valid config.
type Loaded struct {
	train.Config
	// FromFile and FromCommand list the keys that the file and the command line give, in
	// their order.
	FromFile, FromCommand []string
}

// Load reads the file if there is one, applies the command line and resolves
// the recipe. Errors are for the user: they say what is wrong where, and what
// to do.
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
	return resolve(file, command)
}

// resolve merges two sources, either of which may be nil.
func resolve(file, command *source) (*Loaded, error) {
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
	if err := l.Resolve(); err != nil {
		return nil, err
	}
	return l, nil
}
