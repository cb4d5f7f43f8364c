package main

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// user is the owner of the command's process in a container, as in distroless images.
const user = 65532

// image returns the name and the content of a target's image, as docker load reads it. A static
// command is alone in it. The one with accelerators stands on the image base, or on the glibc of this
// machine.
func (s *source) image(b *binary, base string) (file string, content []byte, err error) {
	image := empty.Image
	if b.accelerators {
		if image, err = s.glibcBase(b, base); err != nil {
			return "", nil, err
		}
	}
	layer, err := s.layer(commandFiles(b), 0)
	if err != nil {
		return "", nil, err
	}
	home, err := s.layer(homeFiles(), user)
	if err != nil {
		return "", nil, err
	}
	if image, err = mutate.AppendLayers(image, layer, home); err != nil {
		return "", nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return "", nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = b.os, b.arch
	config.Created = v1.Time{Time: s.time}
	config.History = nil
	config.Config.Entrypoint, config.Config.Cmd = []string{"/usr/bin/octet"}, nil
	config.Config.User, config.Config.WorkingDir = fmt.Sprint(user), "/work"
	config.Config.Env = append(config.Config.Env, "OCTET_IMAGE=octet:"+s.imageTag(b.target))
	if !slices.ContainsFunc(config.Config.Env, func(e string) bool { return len(e) > 5 && e[:5] == "PATH=" }) {
		config.Config.Env = append(config.Config.Env, "PATH=/usr/bin")
	}
	if config.Config.Labels == nil {
		config.Config.Labels = map[string]string{}
	}
	config.Config.Labels["org.opencontainers.image.version"] = s.version
	config.Config.Labels["org.opencontainers.image.revision"] = s.revision
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return "", nil, err
	}
	tag, err := name.NewTag("octet:" + s.imageTag(b.target))
	if err != nil {
		return "", nil, err
	}
	var out bytes.Buffer
	err = tarball.Write(tag, image, &out)
	return fmt.Sprintf("octet-%s-image-%s.tar", s.version, b.target), out.Bytes(), err
}

func (s *source) imageTag(t target) string {
	if t.accelerators {
		return s.version + "-accelerators"
	}
	return s.version
}

// layer returns a layer of files.
func (s *source) layer(files []file, owner int) (v1.Layer, error) {
	raw, err := tarOf(files, s.time, owner)
	if err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(raw)), nil })
}

func commandFiles(b *binary) []file {
	return []file{{"usr/bin/octet", b.content, 0o755}}
}

// homeFiles are the folders that the command may write to: its working directory and /tmp.
func homeFiles() []file {
	return []file{{"work/", nil, 0o755}, {"tmp/", nil, 0o1777}}
}

// glibcBase returns the base image of a command that needs glibc: a named image, or a layer of the
// shared libraries that the command needs, from this machine.
func (s *source) glibcBase(b *binary, base string) (v1.Image, error) {
	if base != "" {
		ref, err := name.ParseReference(base)
		if err != nil {
			return nil, err
		}
		return remote.Image(ref, remote.WithPlatform(v1.Platform{OS: b.os, Architecture: b.arch}), remote.WithAuthFromKeychain(authn.DefaultKeychain))
	}
	files, err := libraries(b.path)
	if err != nil {
		return nil, err
	}
	layer, err := s.layer(files, 0)
	if err != nil {
		return nil, err
	}
	return mutate.AppendLayers(empty.Image, layer)
}

// folders are those in which Debian and Red Hat have the libraries of amd64.
var folders = []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64"}

// libraries returns the dynamic linker of a command and the shared libraries that it needs, with
// those that they need, under the paths of this machine, in which the linker looks.
func libraries(command string) (files []file, err error) {
	linker, err := interpreter(command)
	if err != nil {
		return nil, err
	}
	content, err := os.ReadFile(linker)
	if err != nil {
		return nil, err
	}
	files = []file{{linker[1:], content, 0o755}}
	seen := map[string]bool{path.Base(linker): true}
	waiting := []string{command}
	for len(waiting) > 0 {
		needed, err := neededBy(waiting[0])
		if err != nil {
			return nil, err
		}
		waiting = waiting[1:]
		for _, library := range needed {
			if seen[library] {
				continue
			}
			seen[library] = true
			from, err := find(library)
			if err != nil {
				return nil, err
			}
			content, err := os.ReadFile(from)
			if err != nil {
				return nil, err
			}
			files = append(files, file{from[1:], content, 0o755})
			waiting = append(waiting, from)
		}
	}
	slices.SortFunc(files, func(a, b file) int { return bytes.Compare([]byte(a.name), []byte(b.name)) })
	return files, nil
}

// interpreter returns the path of a command's dynamic linker.
func interpreter(command string) (string, error) {
	f, err := elf.Open(command)
	if err != nil {
		return "", err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			text, err := io.ReadAll(p.Open())
			return string(bytes.TrimRight(text, "\x00")), err
		}
	}
	return "", errors.New("the command is static: it needs no base")
}

func neededBy(file string) ([]string, error) {
	f, err := elf.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.ImportedLibraries()
}

func find(library string) (string, error) {
	for _, folder := range folders {
		if at := filepath.Join(folder, library); exists(at) {
			return at, nil
		}
	}
	return "", fmt.Errorf("the command needs %s, which is in none of %v: name a base image that has it by -base", library, folders)
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}
