// Release builds the files of a release into a folder, from the checkout that it runs in:
//
//	octet-V-OS-ARCH.tar.gz, .zip     the command, with the licenses of what it contains
//	octet-V-py3-none-PLATFORM.whl    the command and the Python package
//	octet-V-image-linux-ARCH.tar     container images, for docker load and podman load
//	octet-V.spdx.json                the modules in each binary, as SPDX 2.3
//	SHA256SUMS
//
// The files depend on the commit, the version and the Go release alone, and those with cgo on the C
// compiler, so that two checkouts give the same bytes. It calls no service but the Go module proxy,
// and a registry only if -base names an image in one.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	var o options
	flag.StringVar(&o.source, "source", ".", "folder in the checkout")
	flag.StringVar(&o.out, "o", "dist", "folder of the files")
	flag.StringVar(&o.version, "version", "", "version, such as v0.2.0; default: the commit's tag, else v0.0.0 with its date and hash")
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
	modules := &moduleList{src: src, known: map[string]module{}}
	var files []file
	add := func(name string, content []byte) {
		files = append(files, file{name: name, content: content, mode: 0o644})
	}
	for _, t := range targets {
		b, err := src.build(work, t)
		if err != nil {
			return fmt.Errorf("%s: %w", t, err)
		}
		if err := modules.add(b); err != nil {
			return fmt.Errorf("%s: %w", t, err)
		}
		licenses := modules.licenses(b)
		name, archive, err := src.archive(b, licenses)
		if err != nil {
			return fmt.Errorf("%s: %w", t, err)
		}
		add(name, archive)
		name, wheel, err := src.wheel(b, licenses)
		if err != nil {
			return fmt.Errorf("%s: %w", t, err)
		}
		add(name, wheel)
		if t.os == "linux" {
			name, image, err := src.image(b, o.base)
			if err != nil {
				return fmt.Errorf("%s: image: %w", t, err)
			}
			add(name, image)
		}
		fmt.Println(t)
	}
	spdx, err := modules.spdx()
	if err != nil {
		return err
	}
	add(fmt.Sprintf("octet-%s.spdx.json", src.version), spdx)
	add("SHA256SUMS", sums(files))
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(out, f.name), f.content, 0o644); err != nil {
			return err
		}
		fmt.Printf("%8.1f MB  %s\n", float64(len(f.content))/1e6, f.name)
	}
	return nil
}
