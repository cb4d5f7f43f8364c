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

// flagsFirst moves the flags of a command before its other arguments, which
// may stand in any order: kong takes a list of arguments for ended where a flag
// follows. The first arguments name the command, and one within it. What begins with a
// hyphen and is no flag of the command is the value of the flag before it, which kong
// would take for a flag. A flag that the command has not is an error that names a near
// one: kong names what is not near, too.
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
	if names == 0 {
		return args, nil
	}
	takesValue := map[string]bool{"-h": false, "--help": false}
	for _, group := range command.AllFlags(false) {
		for _, f := range group {
			takesValue["--"+f.Name] = !f.IsBool()
		}
	}
	for i, a := range args[names:] {
		// kong replaces such bytes in lists, and names another file by that.
		if !utf8.ValidString(a) && args[names+i-1] != "--prompt" && !strings.HasPrefix(a, "--prompt=") {
			return nil, fmt.Errorf("the argument %q is not UTF-8, as the names of files must be: rename the file", a)
		}
	}
	flags, rest := slices.Clone(args[:names]), []string(nil)
	for i := names; i < len(args); i++ {
		switch a := args[i]; {
		case a == "--":
			return slices.Concat(flags, rest, args[i:]), nil
		case !strings.HasPrefix(a, "-"):
			rest = append(rest, a)
		case takesValue[a]:
			i++
			if i == len(args) {
				return nil, fmt.Errorf("%s lacks its value", a)
			}
			if _, another := takesValue[args[i]]; another {
				return nil, fmt.Errorf("%s lacks its value: %s follows", a, args[i])
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

// unknownFlag names what was meant: a flag that is near, or a key of the configuration,
// where the command takes those.
func unknownFlag(name string, command *kong.Node, known map[string]bool) error {
	delete(known, "-h") // which is near to every single letter
	meant := spelling.DidYouMean(name, slices.Sorted(maps.Keys(known)))
	takesKeys := slices.ContainsFunc(command.Positional, func(p *kong.Positional) bool { return strings.Contains(p.Name, "key=value") })
	if key, ok := config.KeyOf(name); ok && takesKeys && meant == "" {
		meant = fmt.Sprintf("; did you mean %s=VALUE?", key)
	}
	return fmt.Errorf("unknown flag %s%s", name, meant)
}
