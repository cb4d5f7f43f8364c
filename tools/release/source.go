package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// source is the commit that a release is built from.
type source struct {
	checkout string // a folder in the checkout of the commit
	dir      string // the files of the commit, after export
	version  string // "v0.2.0"
	revision string
	time     time.Time // of the commit, which all files have
	env      []string  // the Go command's environment, after export
}

// newSource describes the commit of the checkout around a folder. A checkout with changes is an error,
// because its files would not match the commit that they name.
func newSource(dir, version string) (*source, error) {
	s := &source{checkout: dir, version: version}
	var err error
	if s.revision, err = s.git("rev-parse", "HEAD"); err != nil {
		return nil, err
	}
	changed, err := s.git("status", "--porcelain", "--untracked-files=no")
	if err != nil {
		return nil, err
	}
	if changed != "" {
		return nil, changesError(changed)
	}
	text, err := s.git("show", "-s", "--format=%ct", "HEAD")
	if err != nil {
		return nil, err
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return nil, err
	}
	s.time = time.Unix(seconds, 0).UTC()
	if s.version == "" {
		s.version, err = s.git("describe", "--tags", "--exact-match", "--match", "v*")
		if err != nil { // no tag
			s.version = fmt.Sprintf("v0.0.0-%s-%s", s.time.Format("20060102150405"), s.revision[:12])
		}
	}
	_, err = pythonVersion(s.version)
	return s, err
}

// changesError lists the files whose changes are not committed.
type changesError string

func (e changesError) Error() string {
	return "the checkout has changes: commit them first\n" + string(e)
}

// versionForm matches the versions of a release: those of Go that Python's PEP 440 has, too.
var versionForm = regexp.MustCompile(`^v((?:0|[1-9]\d*)\.(?:0|[1-9]\d*)\.(?:0|[1-9]\d*))(?:-(alpha|beta|rc)\.?(0|[1-9]\d*)|-(\d{14})-[0-9a-f]{12})?$`)

// pythonVersion returns a version as PEP 440 writes it: v0.2.0-rc.1 is 0.2.0rc1, and
// v0.0.0-20261129115959-466cc68a1234, a commit without a tag, is 0.0.0.dev20261129115959.
func pythonVersion(version string) (string, error) {
	part := versionForm.FindStringSubmatch(version)
	switch {
	case part == nil:
		return "", fmt.Errorf("version %q: expected v1.2.3, v1.2.3-alpha.4, v1.2.3-beta.4, v1.2.3-rc.4 or v1.2.3-DATE-HASH, from -version or the commit's tag", version)
	case part[2] != "":
		return part[1] + map[string]string{"alpha": "a", "beta": "b", "rc": "rc"}[part[2]] + part[3], nil
	case part[4] != "":
		return part[1] + ".dev" + part[4], nil
	}
	return part[1], nil
}

// git returns the output of a Git command in the checkout.
func (s *source) git(args ...string) (string, error) {
	out, err := exec.Command("git", append([]string{"-C", s.checkout}, args...)...).Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), withStderr(err))
	}
	return strings.TrimSpace(string(out)), nil
}

// withStderr adds what a command printed to its error.
func withStderr(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
	}
	return err
}

// export writes the files of the commit to a folder, which build reads. It asks Git for the stored
// bytes, since git archive applies attributes and line endings, which a user's settings may change.
func (s *source) export(dir string) (err error) {
	list, err := s.git("ls-tree", "-r", "-z", "--full-tree", s.revision)
	if err != nil {
		return err
	}
	var names []string
	var ids bytes.Buffer
	for entry := range strings.SplitSeq(strings.TrimSuffix(list, "\x00"), "\x00") {
		head, name, _ := strings.Cut(entry, "\t")
		field := strings.Fields(head) // mode, type, id
		switch {
		case len(field) != 3:
			return fmt.Errorf("git ls-tree: unexpected entry %q", entry)
		case field[0] == "120000":
			return fmt.Errorf("%s: symbolic links are not supported in a release", name)
		case field[1] == "blob": // not a submodule
			names = append(names, name)
			fmt.Fprintln(&ids, field[2])
		}
	}
	command := exec.Command("git", "-C", s.checkout, "cat-file", "--batch")
	command.Stdin = &ids
	out, err := command.Output()
	if err != nil {
		return fmt.Errorf("git cat-file: %w", withStderr(err))
	}
	contents := bytes.NewBuffer(out)
	for _, name := range names {
		var id, kind string
		var size int64
		if _, err := fmt.Fscanf(contents, "%s %s %d\n", &id, &kind, &size); err != nil {
			return fmt.Errorf("git cat-file: %s: %w", name, err)
		}
		file := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, contents.Next(int(size)), 0o644); err != nil {
			return err
		}
		if end, err := contents.ReadByte(); err != nil || end != '\n' {
			return fmt.Errorf("git cat-file: %s: %w", name, io.ErrUnexpectedEOF)
		}
	}
	s.dir = dir
	s.env, err = environment(dir)
	return err
}
