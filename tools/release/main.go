// Release builds the files of a release into a folder, from the commit of the checkout that it runs in:
//
//	octet-V-OS-ARCH.tar.gz, .zip     the command, with the licenses of its modules
//	octet-V-py3-none-PLATFORM.whl    the command and the Python package
//	octet-V-image-linux-ARCH.tar     container images, for docker load and podman load
//	octet-V.spdx.json                the modules in each binary, as SPDX 2.3
//	SHA256SUMS
//
// The files depend on the commit, the version and the Go release alone, and those with cgo on the C
// compiler and glibc of the machine, so that two checkouts give the same bytes. It calls no service but
// the Go module proxy, and a registry only if -base names an image in one.
package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"
)

func main() {
	var o options
	flag.StringVar(&o.source, "source", ".", "folder in the checkout")
	flag.StringVar(&o.out, "o", "dist", "folder of the files")
	flag.StringVar(&o.version, "version", "", "version, such as v0.2.0 or v0.2.0-rc.1; default: the commit's tag, else v0.0.0 with its date and hash")
	flag.StringVar(&o.platforms, "platforms", "", "OS-ARCH[-accelerators] to build for, separated by commas; default: all")
	flag.StringVar(&o.base, "base", "", "image below the command of the accelerators' image, such as nvidia/cuda:13.0.1-runtime-ubuntu24.04; default: glibc of this machine")
	flag.Parse()
	if flag.NArg() > 0 {
		fail(fmt.Errorf("unexpected argument %q", flag.Arg(0)))
	}
	if err := run(o); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "release:", err)
	os.Exit(1)
}

// options are the flags.
type options struct{ source, out, version, platforms, base string }

func run(o options) (err error) {
	src, err := newSource(o.source, o.version)
	if err != nil {
		return err
	}
	targets, err := targetsOf(o.platforms)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	out, err := filepath.Abs(o.out)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "octet-release")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	if err := src.export(filepath.Join(work, "source")); err != nil {
		return err
	}
	all, packed := make([]*contents, len(targets)), make([][]file, len(targets))
	var group errgroup.Group
	group.SetLimit(2) // one compiles while the other packs on one core
	for i, t := range targets {
		group.Go(func() (err error) {
			if all[i], packed[i], err = src.pack(work, t, o.base); err != nil {
				return fmt.Errorf("%s: %w", t, err)
			}
			fmt.Println(t)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	files := slices.Concat(packed...)
	spdx, err := src.spdx(all)
	if err != nil {
		return err
	}
	files = append(files, file{name: "octet-" + src.version + ".spdx.json", content: spdx})
	files = append(files, file{name: "SHA256SUMS", content: sums(files)})
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(out, f.name), f.content, 0o644); err != nil {
			return err
		}
		fmt.Printf("%8.1f MB  %s\n", float64(len(f.content))/1e6, f.name)
	}
	return nil
}

// pack builds the command for a target, and returns its contents and its files of the release.
func (s *source) pack(work string, t target, base string) (*contents, []file, error) {
	b, err := s.build(work, t)
	if err != nil {
		return nil, nil, err
	}
	c, err := s.contents(b)
	if err != nil {
		return nil, nil, err
	}
	archive, err := s.archive(c)
	if err != nil {
		return nil, nil, err
	}
	wheel, err := s.wheel(c)
	if err != nil {
		return nil, nil, err
	}
	if t.os != "linux" {
		return c, []file{archive, wheel}, nil
	}
	image, err := s.image(c, base)
	if err != nil {
		return nil, nil, fmt.Errorf("image: %w", err)
	}
	return c, []file{archive, wheel, image}, nil
}

// file is a file of an archive or of the release.
type file struct {
	name    string // of a folder, it ends in a slash
	content []byte
	mode    os.FileMode
	owner   int
}

// sums returns the file SHA256SUMS, as sha256sum -c reads it.
func sums(files []file) []byte {
	var b bytes.Buffer
	for _, f := range files {
		fmt.Fprintf(&b, "%x  %s\n", sha256.Sum256(f.content), f.name)
	}
	return b.Bytes()
}
