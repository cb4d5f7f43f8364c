package main

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"

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

// image returns a target's image, as docker load reads it. It contains only a static command; that of
// the accelerators extends base, an image in a registry, or the glibc of this machine.
func (s *source) image(c *contents, base string) (file, error) {
	image := empty.Image
	if c.accelerators {
		var err error
		if image, err = s.glibcBase(c, base); err != nil {
			return file{}, err
		}
	}
	layer, err := s.layer([]file{
		{name: "usr/bin/octet", content: c.content, mode: 0o755},
		{name: "usr/share/licenses/octet/THIRD_PARTY_LICENSES", content: c.licenses(), mode: 0o644},
		{name: "work/", mode: 0o755, owner: user},
		{name: "tmp/", mode: 0o1777},
	})
	if err != nil {
		return file{}, err
	}
	if image, err = mutate.AppendLayers(image, layer); err != nil {
		return file{}, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return file{}, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = c.os, c.arch
	config.Created = v1.Time{Time: s.time}
	config.History = nil
	config.Config.Entrypoint, config.Config.Cmd = []string{"/usr/bin/octet"}, nil
	config.Config.User, config.Config.WorkingDir = fmt.Sprint(user), "/work"
	config.Config.Env = append(config.Config.Env, "OCTET_IMAGE=octet:"+s.imageTag(c.target))
	if !slices.ContainsFunc(config.Config.Env, func(e string) bool { return strings.HasPrefix(e, "PATH=") }) {
		config.Config.Env = append(config.Config.Env, "PATH=/usr/bin")
	}
	if config.Config.Labels == nil {
		config.Config.Labels = map[string]string{}
	}
	config.Config.Labels["org.opencontainers.image.version"] = s.version
	config.Config.Labels["org.opencontainers.image.revision"] = s.revision
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return file{}, err
	}
	tag, err := name.NewTag("octet:" + s.imageTag(c.target))
	if err != nil {
		return file{}, err
	}
	var out bytes.Buffer
	err = tarball.Write(tag, image, &out)
	c.image = out.Bytes()
	return file{name: fmt.Sprintf("octet-%s-image-%s.tar", s.version, c.target), content: c.image}, err
}

func (s *source) imageTag(t target) string {
	if t.accelerators {
		return s.version + "-accelerators"
	}
	return s.version
}

// layer returns a layer of files and their folders.
func (s *source) layer(files []file) (v1.Layer, error) {
	raw, err := tarOf(withFolders(files), s.time)
	if err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(raw)), nil }
	return tarball.LayerFromOpener(open, tarball.WithCompressedCaching)
}

// withFolders returns files, each after its folders. Docker creates a folder that a layer leaves out,
// and its versions differ in the mode: 0600 is among them.
func withFolders(files []file) (all []file) {
	known := map[string]bool{}
	for _, f := range files {
		for i, r := range f.name[:len(f.name)-1] {
			if folder := f.name[:i+1]; r == '/' && !known[folder] {
				known[folder] = true
				all = append(all, file{name: folder, mode: 0o755})
			}
		}
		all = append(all, f)
	}
	return all
}

// glibcBase returns the base image of a command that needs glibc: a named image, or a layer of the
// shared libraries that the command needs, from this machine.
func (s *source) glibcBase(c *contents, base string) (v1.Image, error) {
	if base != "" {
		ref, err := name.ParseReference(base)
		if err != nil {
			return nil, err
		}
		return remote.Image(ref, remote.WithPlatform(v1.Platform{OS: c.os, Architecture: c.arch}), remote.WithAuthFromKeychain(authn.DefaultKeychain))
	}
	glibc, files, err := glibcFiles(c.path)
	if err != nil {
		return nil, err
	}
	layer, err := s.layer(files)
	if err != nil {
		return nil, err
	}
	c.glibc = glibc
	return mutate.AppendLayers(empty.Image, layer)
}
