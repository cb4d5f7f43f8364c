package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"
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

// source is the checkout that a release is built from.
type source struct {
	dir      string
	version  string // "v0.2.0"
	revision string
	time     time.Time // of the commit, which all files have
}

var versionForm = regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`)

// newSource describes the checkout around a folder. A checkout with changes is an error:
// its files would claim a commit that they are not of.
func newSource(dir, version string) (*source, error) {
	git := func(args ...string) (string, error) {
		out, err := exec.Command("git", append([]string{"-C", dir}, args...)...).Output()
		if err != nil {
			return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), withStderr(err))
		}
		return strings.TrimSpace(string(out)), nil
	}
	s := &source{version: version}
	var err error
	if s.dir, err = git("rev-parse", "--show-toplevel"); err != nil {
		return nil, err
	}
	if s.revision, err = git("rev-parse", "HEAD"); err != nil {
		return nil, err
	}
	changed, err := git("status", "--porcelain", "--untracked-files=no")
	if err != nil {
		return nil, err
	}
	if changed != "" {
		return nil, fmt.Errorf("the checkout has changes: commit them first\n%s", changed)
	}
	text, err := git("show", "-s", "--format=%ct", "HEAD")
	if err != nil {
		return nil, err
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return nil, err
	}
	s.time = time.Unix(seconds, 0).UTC()
	if s.version == "" {
		s.version, err = git("describe", "--tags", "--exact-match", "--match", "v*")
		if err != nil { // no tag
			s.version = fmt.Sprintf("v0.0.0-%s-%s", s.time.Format("20060102150405"), s.revision[:12])
		}
	}
	if !versionForm.MatchString(s.version) {
		return nil, fmt.Errorf("version %q: expected a form such as v0.2.0 or v0.2.0-rc.1", s.version)
	}
	return s, nil
}

// withStderr adds what a command printed to its error.
func withStderr(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	return err
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

// build builds the command in a folder of its own below work.
func (s *source) build(work string, t target) (*binary, error) {
	b := &binary{target: t, path: filepath.Join(work, t.String())}
	stamp := func(name, value string) string { return fmt.Sprintf("-X octet/internal/cli.%s=%s", name, value) }
	ldflags := []string{"-s", "-w", stamp("stampedVersion", s.version), stamp("stampedRevision", s.revision)}
	args := []string{"build", "-trimpath", "-buildvcs=false", "-o", b.path}
	env := append(os.Environ(), "GOFLAGS=", "GOWORK=off", "GOOS="+t.os, "GOARCH="+t.arch, "GOAMD64=v1", "GOARM64=v8.0", "CGO_ENABLED=0")
	if t.accelerators {
		if runtime.GOOS != t.os || runtime.GOARCH != t.arch {
			return nil, fmt.Errorf("it needs cgo, so build it on %s-%s", t.os, t.arch)
		}
		// NVML's functions stay unresolved until the library is loaded: build_tags.md.
		ldflags = append(ldflags, "-extldflags=-Wl,-z,lazy,--build-id=none")
		args = append(args, "-tags", "cuda,gaudi,mpi")
		env = append(env, "CGO_ENABLED=1", "CGO_CFLAGS=-O2 -g0 -Wno-deprecated-declarations", "CGO_CXXFLAGS=-O2 -g0")
	}
	command := exec.Command("go", append(args, "-ldflags", strings.Join(ldflags, " "), ".")...)
	command.Dir, command.Env = s.dir, env
	if out, err := command.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build: %w\n%s", err, bytes.TrimSpace(out))
	}
	var err error
	b.content, err = os.ReadFile(b.path)
	return b, err
}

// file is a file of an archive or of the release.
type file struct {
	name    string
	content []byte
	mode    os.FileMode
}

// sums returns the file SHA256SUMS, as sha256sum -c reads it.
func sums(files []file) []byte {
	var b bytes.Buffer
	for _, f := range files {
		fmt.Fprintf(&b, "%x  %s\n", sha256.Sum256(f.content), f.name)
	}
	return b.Bytes()
}
