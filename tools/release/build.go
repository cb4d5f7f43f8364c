package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// target is a platform to build for.
type target struct {
	os, arch     string
	accelerators bool // with the tags cuda, gaudi and mpi, which need cgo
}

func (t target) String() string {
	name := t.os + "-" + t.arch
	if t.accelerators {
		name += "-accelerators"
	}
	return name
}

// allTargets are those of a release.
var allTargets = []target{
	{"linux", "amd64", false},
	{"linux", "arm64", false},
	{"darwin", "amd64", false},
	{"darwin", "arm64", false},
	{"windows", "amd64", false},
	{"windows", "arm64", false},
	{"linux", "amd64", true},
}

// targetsOf returns the targets that a list names, all of them if it is empty.
func targetsOf(list string) (targets []target, err error) {
	if list == "" {
		return allTargets, nil
	}
next:
	for name := range strings.SplitSeq(list, ",") {
		for _, t := range allTargets {
			if t.String() == name {
				targets = append(targets, t)
				continue next
			}
		}
		return nil, fmt.Errorf("platform %q: expected some of %v", name, allTargets)
	}
	return targets, nil
}

// kept are the settings of the user that a build needs: where modules, toolchains and caches are, and
// the C compiler.
var kept = []string{
	"GOPROXY", "GOSUMDB", "GOPRIVATE", "GONOPROXY", "GONOSUMDB", "GOINSECURE", "GOAUTH", "GOVCS",
	"GOMODCACHE", "GOCACHE", "GOCACHEPROG", "GOTMPDIR", "GOTOOLCHAIN", "CC", "CXX",
}

// fixed are the settings that change a binary. GOENV=off hides those of go env -w: an empty variable
// does not.
var fixed = []string{
	"GOENV=off", "GOFLAGS=", "GOWORK=off", "GOEXPERIMENT=", "GOFIPS140=off", "GOAMD64=v1", "GOARM64=v8.0", "GO_EXTLINK_ENABLED=",
	"CGO_CPPFLAGS=", "CGO_CFLAGS=-O2 -g0 -Wno-deprecated-declarations", "CGO_CXXFLAGS=-O2 -g0", "CGO_LDFLAGS=",
}

// environment returns the environment of the Go command in a folder: the user's, but for the
// settings that change a binary.
func environment(dir string) ([]string, error) {
	command := exec.Command("go", append([]string{"env", "-json"}, kept...)...)
	command.Dir = dir
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", withStderr(err))
	}
	values := map[string]string{}
	if err := json.Unmarshal(out, &values); err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	env := os.Environ()
	for _, name := range kept {
		env = append(env, name+"="+values[name])
	}
	return append(env, fixed...), nil
}

// goCommand returns a command of Go for a target.
func (s *source) goCommand(t target, args ...string) *exec.Cmd {
	command := exec.Command("go", args...)
	command.Dir = s.dir
	command.Env = append(s.env[:len(s.env):len(s.env)], "GOOS="+t.os, "GOARCH="+t.arch, "CGO_ENABLED=0")
	if t.accelerators {
		command.Env = append(command.Env, "GOFLAGS=-tags=cuda,gaudi,mpi", "CGO_ENABLED=1")
	}
	return command
}

// binary is the command, built for a target.
type binary struct {
	target
	path    string
	content []byte
}

// command returns the file name of the command.
func (b *binary) command() string {
	if b.os == "windows" {
		return "octet.exe"
	}
	return "octet"
}

// build builds the command in a folder, in a file named after the target.
func (s *source) build(work string, t target) (*binary, error) {
	if t.accelerators && (runtime.GOOS != t.os || runtime.GOARCH != t.arch) {
		return nil, fmt.Errorf("it needs cgo, so build it on %s-%s", t.os, t.arch)
	}
	b := &binary{target: t, path: filepath.Join(work, t.String())}
	stamp := func(name, value string) string { return fmt.Sprintf("-X octet/internal/cli.%s=%s", name, value) }
	ldflags := []string{"-s", "-w", stamp("stampedVersion", s.version), stamp("stampedRevision", s.revision)}
	if t.accelerators {
		// NVML's functions stay unresolved until the library is loaded: build_tags.md.
		ldflags = append(ldflags, "-extldflags=-Wl,-z,lazy,--build-id=none")
	}
	command := s.goCommand(t, "build", "-trimpath", "-buildvcs=false", "-o", b.path, "-ldflags", strings.Join(ldflags, " "), ".")
	if out, err := command.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build: %w\n%s", err, bytes.TrimSpace(out))
	}
	var err error
	b.content, err = os.ReadFile(b.path)
	return b, err
}
