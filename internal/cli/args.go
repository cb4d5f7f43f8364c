package cli

import (
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// flagsFirst moves the flags of a command before its other arguments, which
// may stand in any order: kong takes a list of arguments for ended where a flag
// follows. args[0] names the command.
func flagsFirst(app *kong.Application, args []string) []string {
	i := slices.IndexFunc(app.Children, func(n *kong.Node) bool { return len(args) > 0 && n.Name == args[0] })
	if i < 0 {
		return args
	}
	takesValue := map[string]bool{}
	for _, group := range app.Children[i].AllFlags(false) {
		for _, f := range group {
			takesValue["--"+f.Name] = !f.IsBool()
		}
	}
	flags, rest := []string{args[0]}, []string(nil)
	for i := 1; i < len(args); i++ {
		switch a := args[i]; {
		case a == "--":
			return slices.Concat(flags, rest, args[i:])
		case !strings.HasPrefix(a, "-"):
			rest = append(rest, a)
		case takesValue[a] && i+1 < len(args):
			flags = append(flags, a, args[i+1])
			i++
		default:
			flags = append(flags, a)
		}
	}
	return slices.Concat(flags, rest)
}
