package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/alecthomas/kong"

	"octet/internal/config"
	"octet/internal/spelling"
)

// flagsFirst moves the flags of a command before its other arguments, because kong ends a
// list of arguments at the first flag. The first arguments name the command and its
// subcommand. flagsFirst joins a flag to its value with "=", because kong takes a value
// that begins with a hyphen for a flag. An unknown command or flag is an error that
// suggests a similar one; kong also suggests dissimilar ones.
func flagsFirst(app *kong.Application, args []string) ([]string, error) {
	command, names := app.Node, 0
	for names < len(args) {
		i := slices.IndexFunc(command.Children, func(n *kong.Node) bool { return n.Name == args[names] })
		if i < 0 {
			break
		}
		command = command.Children[i]
		names++
	}
	if len(command.Children) > 0 && names < len(args) && !strings.HasPrefix(args[names], "-") {
		var known []string
		for _, c := range command.Children {
			known = append(known, c.Name)
		}
		return nil, fmt.Errorf("unknown command %s%s (%s --help lists the commands)",
			strings.Join(args[:names+1], " "), spelling.DidYouMean(args[names], known), command.FullPath())
	}
	if names == 0 {
		return args, nil
	}
	takesValue := map[string]bool{"-h": false, "--help": false}
	long := map[string]string{} // of flags of one letter
	for _, group := range command.AllFlags(false) {
		for _, f := range group {
			for _, name := range append([]string{f.Name}, f.Aliases...) {
				takesValue["--"+name] = !f.IsBool()
			}
			if f.Short != 0 {
				long["-"+string(f.Short)] = "--" + f.Name
			}
		}
	}
	for i, a := range args[names:] {
		// kong replaces invalid bytes in lists, which would name another file.
		if !utf8.ValidString(a) && args[names+i-1] != "--prompt" && !strings.HasPrefix(a, "--prompt=") {
			return nil, fmt.Errorf("the argument %q is not UTF-8, which the names of files must be: rename the file", a)
		}
	}
	flags, rest := slices.Clone(args[:names]), []string(nil)
	for i := names; i < len(args); i++ {
		a := args[i]
		if name, ok := long[a]; ok {
			a = name
		}
		switch {
		case a == "--":
			return slices.Concat(flags, rest, args[i:]), nil
		case !strings.HasPrefix(a, "-"):
			rest = append(rest, a)
		case takesValue[a]:
			i++
			if i == len(args) {
				return nil, fmt.Errorf("%s needs a value", a)
			}
			if _, another := takesValue[args[i]]; another {
				return nil, fmt.Errorf("%s needs a value, but %s follows", a, args[i])
			}
			flags = append(flags, a+"="+args[i])
		default:
			name, _, _ := strings.Cut(a, "=")
			if _, known := takesValue[name]; !known && a != "-" {
				return nil, unknownFlag(name, command, takesValue)
			}
			flags = append(flags, a)
		}
	}
	return slices.Concat(flags, rest), nil
}

// unknownFlag returns the error for an unknown flag. It suggests a similar flag, or a
// configuration key where the command takes those.
func unknownFlag(name string, command *kong.Node, known map[string]bool) error {
	delete(known, "-h") // it is similar to every single letter
	meant := spelling.DidYouMean(name, slices.Sorted(maps.Keys(known)))
	takesKeys := slices.ContainsFunc(command.Positional, func(p *kong.Positional) bool { return strings.Contains(p.Name, "key=value") })
	if key, ok := config.KeyOf(name); ok && takesKeys && meant == "" {
		meant = fmt.Sprintf("; did you mean %s=VALUE?", key)
	}
	return fmt.Errorf("unknown flag %s%s", name, meant)
}
