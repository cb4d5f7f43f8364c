package data

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"syscall"
)

// ErrNoGo is the error of FindGoRoot if this machine has no Go installation.
var ErrNoGo = errors.New("data: no Go installation: the go command is not in PATH and GOROOT is not set")

// FindGoRoot returns the folder and version of the Go installation, from the go command
// or, without one, from $GOROOT. It sets GOTOOLCHAIN=local, so that the go command does
// not switch to (or download) the toolchain that a go.mod in the current folder requires.
// The error is ErrNoGo, ctx's error, or that of a system that cannot start a process.
func FindGoRoot(ctx context.Context) (root, version string, err error) {
	cmd := exec.CommandContext(ctx, "go", "env", "GOROOT", "GOVERSION")
	cmd.Env = append(os.Environ(), "GOTOOLCHAIN=local")
	out, err := cmd.Output()
	if ctx.Err() != nil {
		return "", "", fmt.Errorf("data: go env GOROOT: %w", ctx.Err())
	}
	if isShortage(err) { // not ErrNoGo: falling back to another corpus would make another run
		return "", "", fmt.Errorf("data: cannot start the go command to find Go's source: %w", err)
	}
	if err == nil {
		lines := strings.Split(strings.ReplaceAll(string(out), "\r", ""), "\n")
		if len(lines) >= 2 && hasSource(lines[0]) {
			return lines[0], lines[1], nil
		}
	}
	if root := os.Getenv("GOROOT"); root != "" && hasSource(root) {
		// The first line of VERSION is the output of go env GOVERSION. A toolchain
		// built from a checkout has no such file.
		text, _ := os.ReadFile(filepath.Join(root, "VERSION"))
		version, _, _ := strings.Cut(string(text), "\n")
		return root, strings.TrimSpace(version), nil
	}
	return "", "", ErrNoGo
}

// isShortage reports whether the system lacked the resources for a process or a file.
func isShortage(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.ENOMEM)
}

func hasSource(root string) bool {
	stat, err := os.Stat(filepath.Join(root, "src"))
	return err == nil && stat.IsDir()
}

// OpenGoSource opens the source of the Go installation in root as a corpus. It reads
// the .go files below src except tests and the folders named cmd, vendor and testdata,
// sorted by path. It holds out a tenth of the files: those whose path has a SHA-256 in
// the lowest tenth of the range. The validation stream is the first ValBytes of them
// in the order of that hash, so it samples all packages. ValBytes does not affect the
// training stream. version is the installation's, for Info.
func OpenGoSource(root, version string, o Options) (*Corpus, error) {
	if !hasSource(root) {
		return nil, fmt.Errorf("data: %q has no src folder: set GOROOT to a Go installation with its source, or name a text to train on", root)
	}
	src := filepath.Join(root, "src")
	return openSource(os.DirFS(src), src, Info{Kind: KindGoSource, GoVersion: version}, o, MaxInMemory)
}

// OpenEmbedded opens the .go files of fsys by the rules of OpenGoSource and keeps all of
// them in memory.
func OpenEmbedded(fsys fs.FS, o Options) (*Corpus, error) {
	return openSource(fsys, "embedded", Info{Kind: KindEmbedded}, o, math.MaxInt64)
}

func openSource(fsys fs.FS, from string, info Info, o Options, maxInMemory int64) (*Corpus, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	files, err := find(fsys, from, goSourceName)
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("data: no .go files in %q: name a text to train on", from)
	}
	holdOutFiles(files)
	return readText(files, info, o, maxInMemory)
}

func goSourceName(p string, dir bool) bool {
	if !notHidden(p, dir) {
		return false
	}
	base := path.Base(p)
	if dir {
		return base != "cmd" && base != "vendor" && base != "testdata"
	}
	return path.Ext(base) == ".go" && !strings.HasSuffix(base, "_test.go")
}
