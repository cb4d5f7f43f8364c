package exporter

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Octet uses the network only to listen on --metrics-addr, for octet board, and between the
// processes of a run (backend/world): no other package imports network code.
func TestNothingElseUsesTheNetwork(t *testing.T) {
	allowed := map[string][]string{
		"internal/exporter/exporter.go": {"net", "net/http"},
		"internal/board/server.go":      {"net", "net/http"},
		"backend/world/loopback.go":     {"net"},
		"backend/world/place.go":        {"net"},
		"backend/world/wire.go":         {"net"},
		"backend/world/join.go":         {"net", "crypto/tls"},
		"backend/world/secret.go":       {"crypto/tls"},
	}
	root := os.DirFS("../..")
	found := 0
	err := fs.WalkDir(root, ".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := fs.ReadFile(root, path)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, i := range file.Imports {
			name, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			if name != "net" && !strings.HasPrefix(name, "net/http") && name != "net/rpc" && name != "net/smtp" && name != "crypto/tls" && !strings.HasPrefix(name, "golang.org/x/net") {
				continue
			}
			found++
			require.True(t, slices.Contains(allowed[path], name), "%s imports %s", path, name)
		}
		for _, call := range []string{"net.Listen", "net.Dial", "http.Get", "http.Post", "http.NewRequest", "http.Client", "http.DefaultClient", "syscall.Connect", "syscall.Listen", "unix.Connect", "unix.Listen", "syscall.AF_INET", "unix.AF_INET"} {
			if strings.Contains(string(text), call) {
				require.Contains(t, []string{"internal/exporter/exporter.go: net.Listen", "internal/board/server.go: net.Listen", "backend/world/join.go: net.Listen", "backend/world/loopback.go: net.Listen"}, path+": "+call)
			}
		}
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, 10, found)
}
